"""Launcher command lines and the ranks' environment by table."""

import re

import pytest

from tf_hvd.core import contract
from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.job.command_line import Job, Output, command_line
from tf_hvd.launch.job.environment import asked_variables, exported_names, rank_environment
from tf_hvd.launch.job.hosts import Host
from tf_hvd.launch.job.launchers import Launcher

PROGRAM = ("python", "train.py", "--epochs", "2")
LOCAL = {"ranks": 2, "cores": 2, "here": True, "environ": {"SLURMD_NODENAME": "b"}}
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
            {
                "ranks": 2,
                "cores": 2,
                "environ": {"PRTE_MCA_hwloc_default_binding_policy": "none"},
            },
            "-np 2",
        ),
        (
            {"ranks": 2, "cores": 2, "environ": {"LR": "1", "HOME": "/", "PATH": "/bin"}},
            "-np 2 --bind-to core -x LR -x PATH",
        ),
        (
            {"ranks": 2, "cores": 2, "environ": {"LR": "1", "HOME": "/"}, "asked": {"HOME"}},
            "-np 2 --bind-to core -x HOME -x LR",
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
            {"ranks": 6, "cores": 4, "hosts": TWO_HOSTS, "environ": {"A": "", "B": "", "PWD": "/"}},
            "-np 6 -genvlist A,B -hosts a:4,b:2 -bind-to core:1",
        ),
        (
            {"ranks": 2, "cores": 2, "launcher_args": ("-bind-to", "numa")},
            "-np 2 -genvall -bind-to numa",
        ),
        ({"ranks": 2, "cores": 2, "environ": {"TF_HVD_X": "1"}}, "-np 2 -genvall -bind-to core:1"),
        ({"ranks": 2, "cores": 2, "environ": {"HYDRA_BINDING": "socket"}}, "-np 2 -genvall"),
        (
            {"ranks": 2, "cores": 2, "environ": {"PRTE_MCA_hwloc_default_binding_policy": "none"}},
            "-np 2 -genvall -bind-to core:1",
        ),
        (
            {"ranks": 2, "cores": 2, "interfaces": "lo,eth0", "output": Output("o", tags=True)},
            "-np 2 -genvall -iface lo -bind-to core:1",
        ),
        (
            {"ranks": 2, "cores": 2, "here": True},
            "-np 2 -genvall -rmk user -launcher fork -bind-to core:1",
        ),
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
        # Of a rank, and of a rank's elastic job; and where somebody else asks for one host.
        (
            LOCAL,
            "--ntasks=2 --export=ALL --input=0 --nodes=1 --nodelist=b --overlap "
            "--overcommit --cpu-bind=cores",
        ),
        (
            {**LOCAL, "hosts": (Host("localhost", 2),)},
            "--ntasks=2 --export=ALL --input=0 --nodes=1 --nodelist=b --overlap "
            "--overcommit --cpu-bind=cores",
        ),
        (
            {**LOCAL, "hosts": (Host("b", 2),)},
            "--ntasks=2 --export=ALL --input=0 --distribution=arbitrary --nodelist=b,b "
            "--cpu-bind=cores",
        ),
        (
            {"ranks": 11, "cores": 11, "output": Output("a%b", tags=True)},
            "--ntasks=11 --export=ALL --input=0 --cpu-bind=cores --label "
            "--output=a%%b/rank.%2t/stdout --error=a%%b/rank.%2t/stderr",
        ),
        (
            {"ranks": 2, "cores": 2, "output": Output("o"), "environ": {contract.START: "0"}},
            "--ntasks=2 --export=ALL --input=0 --cpu-bind=cores --kill-on-bad-exit=0 "
            "--output=o/rank.%1t/stdout --error=o/rank.%1t/stderr",
        ),
        (
            {"ranks": 2, "cores": 2, "output": Output("o"), "environ": {contract.START: "10"}},
            "--ntasks=2 --export=ALL --input=0 --cpu-bind=cores --kill-on-bad-exit=0 "
            "--output=o/rank.%1t/stdout --error=o/rank.%1t/stderr --open-mode=append",
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
    needed = ["AWS_SECRET_ACCESS_KEY", "DATA_DIR", "HF_HOME", "HOROVOD_FUSION_THRESHOLD", "LR"]
    needed += ["OMP_NUM_THREADS", "PATH", "PYTHONPATH", "TF_CPP_MIN_LOG_LEVEL", "WANDB_MODE"]
    needed += ["SLURM_JOB_ID", "http_proxy"]
    others = ["HOME", "HOSTNAME", "SSH_AUTH_SOCK", "OMPI_COMM_WORLD_RANK", "PRTE_MCA_x", "OLDPWD"]
    others += ["CUDA_VISIBLE_DEVICES", "NVIDIA_CUDA_VISIBLE_DEVICES", "HOROVOD_SECRET_KEY"]
    others += ["BASH_FUNC_module%%", "a.b", "_", "SLURM_PROCID", "SLURMD_NODENAME"]
    environ = dict.fromkeys([*others, *needed], "x")
    assert exported_names(environ) == sorted(needed)
    asked = ["CUDA_VISIBLE_DEVICES", "HOME"]
    assert exported_names(environ, asked) == sorted([*needed, *asked])


def test_what_is_asked_for(tmp_path):
    file = tmp_path / "variables"
    file.write_text('# ours\n\nA=1\n  # not this\nB=a "b" $C\nHOME\nEMPTY=\n')
    environ = {"HOME": "/me", "LR": "0.1"}
    assert asked_variables(["A=2=3", "LR"], str(file), environ) == {
        "A": "2=3",
        "B": 'a "b" $C',
        "HOME": "/me",
        "EMPTY": "",
        "LR": "0.1",
    }


@pytest.mark.parametrize(
    ("settings", "lines", "text"),
    [
        (["1A=2"], None, "-x: '1A' is not the name of a variable; give NAME or NAME=VALUE"),
        (["LR"], None, "-x: the variable LR is not set; give its value, LR=VALUE"),
        ([], "A=1\nexport B=2\n", "variables, line 2: 'export B' is not the name of a variable"),
        ([], None, "variables: No such file or directory"),
    ],
)
def test_what_cannot_be_asked_for(tmp_path, settings, lines, text):
    file = tmp_path / "variables"
    if lines is not None:
        file.write_text(lines)
    with pytest.raises(UsageError, match=re.escape(text)):
        asked_variables(settings, None if settings else str(file), {})


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
        (
            Launcher("mpich", "m"),
            {"TTY_COMPATIBLE": "1"},
            False,
            {"TTY_COMPATIBLE": "1", "TF_HVD_LAST": ""},
        ),
    ],
)
def test_rank_environment(launcher, environ, terminal, expected):
    assert rank_environment(launcher, environ, terminal) == expected
