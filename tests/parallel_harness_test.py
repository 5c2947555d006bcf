"""A test of tests/python/parallel that fails, or hangs: the job ends at once and says where."""

import os
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent


def run_tests(run_to_end, folder, text):
    """Exit code and output of a job of 2 ranks with these tests and the others' conftest.py."""
    path = folder / "some_test.py"
    path.write_text("import time\nimport pytest\nimport tf_hvd as hvd\n" + text)
    command = [sys.executable, "-m", "tf_hvd_command", "run", "-np", "2"]
    # Else the launcher may end a rank before it has said why it ends.
    command += ["--mpi-args=--enable-recovery", sys.executable]
    # As a plugin: a conftest.py counts for its own folder.
    command += ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "conftest", str(path)]
    of_tests = str(HERE / "python" / "parallel")
    environment = dict(os.environ, PYTHONSAFEPATH="1", PYTHONPATH=of_tests)
    return run_to_end(command, environment, 600, cwd=folder)


def test_a_failure_on_one_rank_ends_the_others(run_to_end, tmp_path):
    """Not each of their tests, one after the other."""
    code, output = run_tests(
        run_to_end,
        tmp_path,
        """
@pytest.mark.parametrize("number", range(9))
def test_of_one(rank, number):
    assert (rank, number) != (1, 3), "a fault of rank 1"
    hvd.allreduce([1.0], name="of_one")
""",
    )
    assert code != 0
    # The launcher may end the other rank before it has said so too.
    assert set(re.findall(r"\d+ failed, \d+ passed", output)) == {"1 failed, 3 passed"}, output
    assert re.search(r"rank 1 \(.*\) left: test .*some_test.py::test_of_one\[3\] failed", output)


def test_a_rank_that_hangs_shows_its_stacks(run_to_end, tmp_path):
    code, output = run_tests(
        run_to_end,
        tmp_path,
        """
def hang_here():
    time.sleep(90)

@pytest.mark.timeout(20, method="thread")
def test_of_one(rank):
    if rank == 1:
        hang_here()
""",
    )
    assert code != 0
    assert "in hang_here" in output, output
