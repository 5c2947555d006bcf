"""A launcher and an MPI that do not match never run N single-rank jobs each."""

import pathlib
import sys

MPICH = pathlib.Path(sys.prefix) / "mpi" / "mpich" / "lib" / "libmpi.so.12"
OPEN_MPI = pathlib.Path(sys.prefix) / "lib" / "libmpi.so.40"

PROGRAM = """
import tf_hvd as hvd
try:
    hvd.init()
except hvd.HorovodInitError as error:
    print("refused:", str(error).replace(chr(10), " "), flush=True)
else:
    print("rank", hvd.rank(), "of", hvd.size(), hvd.mpi_enabled(), flush=True)
"""


def refusals(output):
    return [line for line in output.splitlines() if line.startswith("refused:")]


def test_plain_mpirun_works(bare_mpirun):
    code, output = bare_mpirun(PROGRAM, OPEN_MPI)
    assert code == 0
    assert sorted(line for line in output.splitlines() if line.startswith("rank")) == [
        "rank 0 of 2 True",
        "rank 1 of 2 True",
    ]


def test_library_of_the_other_family(bare_mpirun):
    _, output = bare_mpirun(PROGRAM, MPICH)
    assert len(refusals(output)) == 2, output
    for text in refusals(output):
        for part in ("of 2", "Open MPI", "MPICH", str(MPICH), "TF_HVD_MPI_LIBRARY"):
            assert part in text, (part, output)


def test_missing_library(bare_mpirun):
    _, output = bare_mpirun(PROGRAM, "no/such/libmpi.so.40")
    assert len(refusals(output)) == 2, output
    for text in refusals(output):
        for part in ("of 2", "no/such/libmpi.so.40", "Open MPI", "openmpi"):
            assert part in text, (part, output)
