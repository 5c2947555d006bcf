"""Launcher command lines and the ranks' environment by table."""

import pytest

from tf_hvd.cli.command_line import Job, command_line
from tf_hvd.cli.environment import exported_names, rank_environment
from tf_hvd.cli.hosts import Host
from tf_hvd.cli.launchers import Launcher

PROGRAM = ("python", "train.py", "--epochs", "2")
TWO_HOSTS = (Host("a", 4), Host("b", 2))


def words(family, **job):
    line = command_line(Launcher(family, "/mpi/bin/start"), Job(command=PROGRAM, **job))
    assert line[0] == "/mpi/bin/start"
    assert line[-len(PROGRAM) :] == list(PROGRAM)
    return " ".join(line[1 : -len(PROGRAM)])


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({"ranks": 2, "cores": 2}, "-np 2 --bind-to core"),
        ({"ranks": 2, "cores": 3}, "-np 2 --bind-to core"),
        ({"ranks": 2, "cores": 16}, "-np 2 --map-by slot:PE=8 --bind-to core"),
        ({"ranks": 4, "cores": 2}, "-np 4 --oversubscribe --bind-to none"),
        (
            {"ranks": 2, "cores": 2, "as_root": True},
            "-np 2 --allow-run-as-root --bind-to core",
        ),
        (
            {"ranks": 5, "cores": 8, "hosts": TWO_HOSTS},
            "-np 5 --host a:4,b:2 --map-by slot:PE=2 --bind-to core",
        ),
        (
            {"ranks": 2, "cores": 2, "launcher_args": ("--tag-output",)},
            "-np 2 --bind-to core --tag-output",
        ),
        (
            {"ranks": 2, "cores": 2, "launcher_args": ("--bind-to", "socket")},
            "-np 2 --bind-to socket",
        ),
        (
            {"ranks": 4, "cores": 2, "launcher_args": ("--map-by", "node")},
            "-np 4 --oversubscribe --map-by node",
        ),
        (
            {"ranks": 2, "cores": 2, "environ": {"TF_HVD_X": "1", "HOME": "/", "PATH": "/bin"}},
            "-np 2 --bind-to core -x PATH -x TF_HVD_X",
        ),
    ],
)
def test_openmpi(job, expected):
    assert words("openmpi", **job) == expected


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({"ranks": 2, "cores": 2, "as_root": True}, "-np 2 -genvall -bind-to core:1"),
        ({"ranks": 2, "cores": 16}, "-np 2 -genvall -bind-to core:8"),
        ({"ranks": 4, "cores": 2}, "-np 4 -genvall -bind-to none"),
        (
            {"ranks": 6, "cores": 4, "hosts": TWO_HOSTS},
            "-np 6 -genvall -hosts a:4,b:2 -bind-to core:1",
        ),
        (
            {"ranks": 2, "cores": 2, "launcher_args": ("-bind-to", "numa")},
            "-np 2 -genvall -bind-to numa",
        ),
        ({"ranks": 2, "cores": 2, "environ": {"TF_HVD_X": "1"}}, "-np 2 -genvall -bind-to core:1"),
    ],
)
def test_mpich(job, expected):
    assert words("mpich", **job) == expected


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({"ranks": 2, "cores": 2}, "--ntasks=2 --export=ALL --input=0 --cpu-bind=cores"),
        (
            {"ranks": 4, "cores": 2},
            "--ntasks=4 --export=ALL --input=0 --overcommit --cpu-bind=none",
        ),
        (
            {"ranks": 5, "cores": 4, "hosts": TWO_HOSTS},
            "--ntasks=5 --export=ALL --input=0 --distribution=arbitrary --nodelist=a,a,a,a,b "
            "--cpu-bind=cores",
        ),
        (
            {"ranks": 2, "cores": 2, "launcher_args": ("--cpu-bind=rank",)},
            "--ntasks=2 --export=ALL --input=0 --cpu-bind=rank",
        ),
    ],
)
def test_slurm(job, expected):
    assert words("slurm", **job) == expected


def test_what_is_exported():
    needed = ["HOROVOD_FUSION_THRESHOLD", "NCCL_DEBUG", "OMP_NUM_THREADS", "PATH", "PYTHONPATH"]
    needed += ["TF_CPP_MIN_LOG_LEVEL", "TF_HVD_STALL_CHECK_TIME", "TTY_COMPATIBLE", "XLA_FLAGS"]
    others = ["HOME", "SSH_AUTH_SOCK", "OMPI_COMM_WORLD_RANK", "TERM"]
    assert exported_names(dict.fromkeys([*others, *needed], "x")) == needed


@pytest.mark.parametrize(
    ("launcher", "environ", "terminal", "expected"),
    [
        (
            Launcher("openmpi", "mpirun", "/mpi/lib/libmpi.so.40"),
            {"HOME": "/"},
            True,
            {"HOME": "/", "TF_HVD_MPI_LIBRARY": "/mpi/lib/libmpi.so.40", "TTY_COMPATIBLE": "1"},
        ),
        (
            Launcher("openmpi", "ompirun_wrapper", None, {"OPAL_PREFIX": "/mpi"}),
            {},
            False,
            {"OPAL_PREFIX": "/mpi", "TTY_COMPATIBLE": "0"},
        ),
        (Launcher("mpich", "m"), {"TTY_COMPATIBLE": "1"}, False, {"TTY_COMPATIBLE": "1"}),
    ],
)
def test_rank_environment(launcher, environ, terminal, expected):
    assert rank_environment(launcher, environ, terminal) == expected
