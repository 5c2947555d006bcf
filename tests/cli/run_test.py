"""Launcher command lines and the ranks' environment, by table."""

import re

import pytest

from tf_hvd.core import contract
from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.job.asked import Job, asked_variables
from tf_hvd.launch.job.command_line import command_line
from tf_hvd.launch.job.environment import (
    Facts,
    exported_names,
    own_timeline,
    rank_environment,
    without_launcher,
)
from tf_hvd.launch.job.hosts import Host
from tf_hvd.launch.job.launchers import NO_MPI, Launcher

PROGRAM = ("python", "train.py", "--epochs", "2")
LOCAL = {"ranks": 2, "cores": 2, "here": True, "environ": {"SLURMD_NODENAME": "b"}}
FILES = {"ranks": 2, "cores": 2, "output": "o"}
TWO_HOSTS = (Host("a", 4), Host("b", 2))


def words(family, interface="", environ=(), **job):
    launcher, asked = Launcher(family, "/mpi/bin/start"), Job(command=PROGRAM, **job)
    line = command_line(launcher, asked, PROGRAM, dict(environ), interface)
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
            {"ranks": 2, "cores": 2, "interface": "lo", "output": "o", "tags": True},
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
        # A job of a rank, an elastic job of a rank, and a user's job on one host.
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
            {"ranks": 11, "cores": 11, "output": "a%b", "tags": True},
            "--ntasks=11 --export=ALL --input=0 --cpu-bind=cores --label "
            "--output=a%%b/rank.%2t/stdout --error=a%%b/rank.%2t/stderr",
        ),
        (
            {**FILES, "environ": {contract.START: "0"}},
            "--ntasks=2 --export=ALL --input=0 --cpu-bind=cores --kill-on-bad-exit=0 "
            "--output=o/rank.%1t/stdout --error=o/rank.%1t/stderr",
        ),
        (
            {**FILES, "environ": {contract.START: "10"}},
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


def test_exported_variables():
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


def test_requested_variables(tmp_path):
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
        (["1A=2"], None, "-x: '1A' is not a variable name; give NAME or NAME=VALUE"),
        (["LR"], None, "-x: the variable LR is not set; give its value, LR=VALUE"),
        ([], "A=1\nexport B=2\n", "variables, line 2: 'export B' is not a variable name"),
        ([], None, "variables: No such file or directory"),
    ],
)
def test_invalid_variables(tmp_path, settings, lines, text):
    file = tmp_path / "variables"
    if lines is not None:
        file.write_text(lines)
    with pytest.raises(UsageError, match=re.escape(text)):
        asked_variables(settings, None if settings else str(file), {})


BTL = "OMPI_MCA_btl"


@pytest.mark.parametrize(
    ("launcher", "environ", "facts", "expected"),
    [
        (
            Launcher("openmpi", "mpirun", "/mpi/lib/libmpi.so.40"),
            {"HOME": "/"},
            {"terminal": "1"},
            {"HOME": "/", "TF_HVD_MPI_LIBRARY": "/mpi/lib/libmpi.so.40", "TTY_COMPATIBLE": "1"},
        ),
        (
            Launcher("openmpi", "ompirun_wrapper", None, {"OPAL_PREFIX": "/mpi"}),
            {},
            {},
            {"OPAL_PREFIX": "/mpi", "TTY_COMPATIBLE": "0"},
        ),
        (
            Launcher("mpich", "m"),
            {"TTY_COMPATIBLE": "1"},
            {},
            {"TTY_COMPATIBLE": "1", "TF_HVD_LAST": ""},
        ),
        # One rank needs no MPI, and gets no variables for it.
        (
            NO_MPI,
            {"A": "", "PYTHONPATH": "/b"},
            {"job": "j", "start": "1", "timeline": "t", "modules": "/a", "loopback": "lo"},
            {
                "A": "",
                "PYTHONPATH": "/a:/b",
                contract.JOB: "j",
                contract.START: "1",
                "HOROVOD_TIMELINE": "t",
            },
        ),
        (
            Launcher("mpich", "m"),
            {"HYDRA_HOST_FILE": "f", "UCX_TLS": "all", "TTY_COMPATIBLE": "1"},
            {"local": "x", "loopback": "lo", "words": ("--mca", "btl", "self,tcp")},
            {
                "UCX_TLS": "all",
                "TTY_COMPATIBLE": "1",
                "FI_PROVIDER": "^tcp,sockets,udp,net,sm2",
                contract.SETTINGS: "FI_PROVIDER",
                contract.LAST: "",
            },
        ),
    ],
)
def test_rank_environment(launcher, environ, facts, expected):
    assert rank_environment(environ, launcher, Facts(**facts)) == expected


SESSION = "PRTE_MCA_prte_local_tmpdir_base"
SEGMENT = "OMPI_MCA_btl_sm_segment_size"
AVOIDED = "OMPI_MCA_btl_tcp_if_exclude"
KEPT_TO = (
    *("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include"),
    "PRTE_MCA_if_include",
)
SSH = {"PRTE_MCA_plm_ssh_args": "-x", "HOME": "/"}
CLOSED = {
    "OMPI_MCA_btl": "^tcp,ofi",
    "UCX_TLS": "^tcp",
    "FI_PROVIDER": "^tcp,sockets,udp,net,sm2",
}
SCHEDULERS = {
    **dict.fromkeys(
        ("PRTE_MCA_ras", "OMPI_MCA_ras"),
        "^alps,flux,gridengine,loadleveler,lsf,pbs,slurm,tm",
    ),
    **dict.fromkeys(("PRTE_MCA_plm", "OMPI_MCA_plm"), "^slurm"),
}


def told(family, facts, environ=(), words=()):
    """The variables that the launcher and ranks of this family get for these facts."""
    before = {"TTY_COMPATIBLE": "0", **dict(environ)}
    ranks = rank_environment(before, Launcher(family, "m"), Facts(words=words, **facts))
    changed = {name: text for name, text in ranks.items() if before.get(name) != text}
    changed.pop(contract.LAST, None)
    changed.pop(contract.SETTINGS, None)
    return changed


@pytest.mark.parametrize(
    ("family", "facts", "environ", "words", "expected"),
    [
        (
            *("openmpi", {"ssh": "-p 22"}, SSH, ()),
            {"PRTE_MCA_plm_ssh_args": "-x -p 22", "OMPI_MCA_plm_rsh_args": "-p 22"},
        ),
        ("mpich", {"ssh": "-p 22"}, SSH, (), {"HYDRA_LAUNCHER_EXTRA_ARGS": "-p 22"}),
        ("openmpi", {"interfaces": "lo,eth0"}, {}, (), dict.fromkeys(KEPT_TO, "lo,eth0")),
        ("mpich", {"interfaces": "lo"}, {}, (), {}),
        # Open MPI's folder for files.
        ("openmpi", {"folder": "/job"}, {}, (), {SESSION: "/job"}),
        ("openmpi", {"folder": "/job"}, {SESSION: "/mine"}, (), {}),
        ("openmpi", {"folder": "/job"}, {"PRTE_MCA_prte_tmpdir_base": "/x"}, (), {}),
        ("mpich", {"folder": "/job"}, {}, (), {}),
        # /dev/shm with little room.
        ("openmpi", {"little": "2"}, {}, (), {SEGMENT: "2"}),
        ("openmpi", {"little": "2"}, {SEGMENT: "9"}, (), {}),
        ("openmpi", {"little": "2"}, {}, ("--mca", "btl_sm_segment_size", "9"), {}),
        ("mpich", {"little": "2"}, {}, (), {}),
        # Open MPI must not use schedulers, and no MPI transports to other machines, unless the
        # user chooses so.
        ("openmpi", {"local": "x"}, {}, (), SCHEDULERS),
        *(
            (
                *("openmpi", {"local": "x"}, {chosen: "ssh"}, ()),
                {name: text for name, text in SCHEDULERS.items() if name.endswith("ras")},
            )
            for chosen in ("PRTE_MCA_plm", "OMPI_MCA_plm")
        ),
        ("mpich", {"local": "x"}, {}, (), {}),
        ("mpich", {"loopback": "lo"}, {}, (), CLOSED),
        (
            *("openmpi", {"loopback": "lo"}, {BTL: "self,tcp", "FI_PROVIDER": "verbs"}, ()),
            {"UCX_TLS": "^tcp"},
        ),
        (
            *("openmpi", {"loopback": "lo"}, {"UCX_TLS": "all", "FI_PROVIDER": "x"}),
            *(("--mca", "btl", "self,tcp"), {}),
        ),
        # On several machines.
        ("openmpi", {"network": "10.0.0.0/8"}, {}, (), dict.fromkeys(KEPT_TO, "10.0.0.0/8")),
        ("mpich", {"network": "10.0.0.0/8", "private": "172.17.0.0/16"}, {}, (), {}),
        (
            *("openmpi", {"private": "172.17.0.0/16,10.9.0.0/24"}, {}, ()),
            {AVOIDED: "127.0.0.0/8,172.17.0.0/16,10.9.0.0/24"},
        ),
        (
            *("openmpi", {"network": "10.0.0.0/8", "private": "172.17.0.0/16"}, {}, ()),
            dict.fromkeys(KEPT_TO, "10.0.0.0/8"),
        ),
        (
            *("openmpi", {"network": "10.0.0.0/8", "private": "172.17.0.0/16"}, {}),
            *(("--mca", "btl_tcp_if_include", "ib0"), {}),
        ),
        ("openmpi", {"private": "172.17.0.0/16"}, {KEPT_TO[0]: "eth0"}, (), {}),
        (
            *("openmpi", {"interfaces": "ib0", "network": "10.0.0.0/8", "private": "1.0.0.0/8"}),
            *({}, (), dict.fromkeys(KEPT_TO, "ib0")),
        ),
    ],
)
def test_variables_by_launcher(family, facts, environ, words, expected):
    assert told(family, facts, environ, words) == expected


def test_job_of_a_rank_may_use_other_machines():
    rank = {"OMPI_COMM_WORLD_RANK": "0", "UCX_LOG_LEVEL": "info", "TTY_COMPATIBLE": "0"}
    facts = Facts(local="x", loopback="lo")
    ranks = rank_environment(rank, Launcher("openmpi", "m"), facts)
    assert "OMPI_MCA_plm" in ranks
    assert without_launcher(ranks) == {"UCX_LOG_LEVEL": "info", "TTY_COMPATIBLE": "0"}
    assert contract.SETTINGS not in rank_environment({}, Launcher("openmpi", "m"), Facts())


def test_last_variable_for_mpich_is_a_dummy():
    """On other machines its launcher loses the last variable, which once was a rank's job."""
    facts = Facts(job="tf_hvd-1", local="x", loopback="lo")
    ranks = rank_environment({}, Launcher("mpich", "mpiexec"), facts)
    assert list(ranks)[-1] == contract.LAST
    assert contract.LAST in exported_names(ranks)


@pytest.mark.parametrize(
    ("path", "start", "own"),
    [
        ("/a/trace.json", "0", "/a/trace.json"),
        ("/a/trace.json", "2", "/a/trace.restart-2.json"),
        ("DYNAMIC", "1", "DYNAMIC"),
        ("", "1", ""),
    ],
)
def test_timeline_name_of_a_start(path, start, own):
    assert own_timeline(path, start) == own
