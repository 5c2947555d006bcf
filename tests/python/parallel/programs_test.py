"""Random programs of collectives give, on every rank, the bits that NumPy gives."""

import programs_run

# In each job of tests/parallel_runs_test.py, the same programs each time.
PROGRAMS = {1: 60, 2: 200, 3: 60, 4: 40}


def test_programs(size):
    count = PROGRAMS.get(size, 40)
    assert programs_run.run_programs(count) >= count
