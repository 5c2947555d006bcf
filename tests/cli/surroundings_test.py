"""Jobs with closed files, full disks, little memory, low limits or missing folders."""

import os
import pwd
import re
import resource
import signal
import subprocess
import sys

import pytest
from finished import finished

from tf_hvd.core import contract
from tf_hvd.launch.job import explain, job_watch, launchers, shared_memory
from tf_hvd.launch.job.job_state import JobState
from tf_hvd.launch.job.session import Home, Session
from tf_hvd.launch.job.signals import Ending
from tf_hvd.launch.job.terminal import Screen
from tf_hvd.launch.machine import proc

COMMAND = [sys.executable, "-m", "tf_hvd_command"]
MIB = 1 << 20


def closing(*files):
    def close():
        for file in files:
            os.close(file)

    return close


@pytest.mark.parametrize("closed", [(1,), (0, 1, 2)], ids=["output", "all"])
def test_closed_standard_files(environ, start, program, tmp_path, closed):
    """The job ended with "AttributeError: 'NoneType' object has no attribute 'isatty'"."""
    write = program(f"open(f'{tmp_path}/rank.{{rank}}', 'w').write(str(sys.stdin.read()))")
    job = start("run", "-np", "2", *write, environ=environ, preexec_fn=closing(*closed))
    errors = job.communicate(timeout=600)[1]
    assert (job.returncode, errors) == (0, "")
    assert [(tmp_path / f"rank.{rank}").read_text() for rank in (0, 1)] == ["", ""]


def test_temporary_folder_without_space(start):
    """The only message was PMIx's: PMIX_ERR_FILE_WRITE_FAILURE in .../ptl_base_listener.c."""

    def little():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))

    job = start("run", "-np", "2", "true", preexec_fn=little)
    errors = job.communicate(timeout=600)[1]
    assert job.returncode == 2
    assert "the 256 KiB of free space that a job needs: File too large; remove old files" in errors
    assert "set TMPDIR" in errors
    assert "PMIX" not in errors


# Python may be installed in root's home, which other users cannot search.
UNPRIVILEGED = [
    *("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--securebits"),
    *("+no_setuid_fixup", "--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"),
]


@pytest.mark.parametrize("kind", ["missing", "file", "closed"])
def test_unusable_temporary_folder(tmp_path, kind):
    """It was ignored without a message, and /tmp was used."""
    folder = tmp_path / kind
    line, why = [*COMMAND, "run", "-np", "2", "true"], "No such file or directory"
    if kind == "file":
        folder.touch()
        why = "Not a directory"
    if kind == "closed":
        folder.mkdir(0)
        why = "Permission denied"
        line = [*UNPRIVILEGED, *line] if os.geteuid() == 0 else line
    environ = {**os.environ, "TMPDIR": str(folder)}
    ended = finished(line, env=environ)
    assert (ended.returncode, ended.stdout) == (2, "")
    cure = "set TMPDIR to a writable folder"
    assert ended.stderr == f"tf_hvd run: cannot create a folder in TMPDIR={folder}: {why}; {cure}\n"


def test_more_ranks_than_allowed_processes(call):
    """There was no message for two minutes."""
    code, output, errors = call("run", "-np", "100000000", "true")
    assert (code, output) == (2, "")
    assert "100000000 ranks on this machine need at least 200000000 processes, but only " in errors


@pytest.mark.wire
def test_low_limit_of_open_files(environ, start):
    """The only message was PMIx's, or the command ended with a traceback."""

    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))

    job = start("run", "-np", "2", "true", environ=environ, preexec_fn=few)
    errors = job.communicate(timeout=600)[1]
    assert (job.returncode, errors) == (
        2,
        "tf_hvd run: the limit of 16 open files is too low for 2 ranks on this machine: the MPI "
        "launcher needs 32; raise it: ulimit -n 32\n",
    )
    enough = start(
        *("run", "-np", "2", "true"),
        environ=environ,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32)),
    )
    assert enough.communicate(timeout=600) == ("", "")
    assert enough.returncode == 0


def test_rank_with_too_many_open_files(said):
    state = JobState()
    said(state, contract.RUNS, 1)
    said(state, contract.ENDED, 1, code=1)
    said(state, contract.RAISED, 1, load="OSError: [Errno 24] Too many open files: 'x'")
    told = explain.explain(Ending(1), state, Screen(print), 2)
    assert told.cure.startswith(f"raise the limit of {proc.most_files()} open files per process")


def test_removed_current_folder(tmp_path):
    """Each launcher had its own message, with exit code 230 or 0. One rank needs no launcher."""
    ran = {}
    for ranks in ("2", "1"):
        removed = 'mkdir gone && cd gone && rmdir ../gone && exec "$@"'
        command = ["sh", "-c", removed, "sh", *COMMAND, "run", "-np", ranks, "echo", "ran"]
        ended = finished(command, cwd=tmp_path)
        ran[ranks] = ended.returncode, ended.stdout, ended.stderr
    told = f"the current folder, {tmp_path}/gone, was removed; change to an existing folder (cd)"
    assert ran == {"2": (2, "", f"tf_hvd run: {told}\n"), "1": (0, "ran\n", "")}


def has_namespaces():
    ended = os.geteuid() or subprocess.run(["unshare", "-m", "-n", "true"], check=False).returncode
    return not ended


@pytest.mark.wire
def test_network_without_loopback(environ, family):
    """Open MPI reported tool connections, or waited. MPICH needs no loopback interface."""
    if not has_namespaces():
        pytest.skip("only root can create namespaces")
    ended = finished(["unshare", "-n", *COMMAND, "run", "-np", "2", "echo", "ran"], env=environ)
    told = "tf_hvd run: this machine's loopback interface, which Open MPI needs, is down; "
    cure = "run: ip link set lo up\n"
    expected = {"openmpi": (2, "", told + cure), "mpich": (0, "ran\nran\n", "")}
    assert (ended.returncode, ended.stdout, ended.stderr) == expected[family]


BARE = """
import ctypes
mpi = ctypes.CDLL(os.environ["TF_HVD_MPI_LIBRARY"], mode=ctypes.RTLD_GLOBAL)
mpi.MPI_Init(None, None)
say(os.environ.get("HOME"))
mpi.MPI_Finalize()
"""


@pytest.mark.wire
def test_environment_without_home(environ, family, call, program):
    """As under cron, which gave "no MPI was found". Open MPI's ranks do not start either."""
    kept = ("PATH", "TF_HVD_MPI_LIBRARY", "PYTHONPATH")
    bare = {name: environ[name] for name in kept if name in environ}
    code, output, errors = call("run", "-np", "2", *program(BARE), environ=bare)
    assert (code, errors) == (0, "")
    home = {"openmpi": pwd.getpwuid(os.geteuid()).pw_dir, "mpich": None}[family]
    assert output == f"{home}\n" * 2


def test_home_of_unknown_user(monkeypatch):
    """As in a container that runs with an arbitrary user id."""
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    assert launchers.user_home() == "/"


def test_limits_on_processes(monkeypatch, tmp_path):
    (tmp_path / "all").write_text("32768\n")
    (tmp_path / "group").write_text("max\n")
    files = [str(tmp_path / name) for name in ("all", "group", "missing")]
    monkeypatch.setattr(proc, "_LIMITS", files)
    monkeypatch.setattr(proc.os, "geteuid", lambda: 0)
    assert proc.most() == (32768, files[0])
    (tmp_path / "group").write_text("100\n")
    assert proc.most() == (100, files[1])
    monkeypatch.setattr(proc.os, "geteuid", lambda: 1)
    monkeypatch.setattr(proc.resource, "getrlimit", lambda _: (7, 9))
    assert proc.most() == (7, "ulimit -u")


def test_descendants_and_ancestors():
    program = ["sh", "-c", "sleep 300 & echo $!; wait"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as shell:
        below = int(shell.stdout.readline())
        assert {shell.pid, below} <= set(proc.descendants())
        assert not {shell.pid, below}.intersection(proc.descendants(without=shell.pid))
        assert {shell.pid, os.getpid()} <= proc.ancestors(below)
        assert proc.send(below, signal.SIGKILL)
        shell.wait()
        assert not proc.is_alive(shell.pid)
        assert not proc.is_alive(below)
        assert not proc.send(shell.pid, signal.SIGKILL)


def test_slow_start_is_reported_with_progress(capsys, monkeypatch, said):
    def at(passed):
        monkeypatch.setattr(job_watch.time, "monotonic", lambda: 1000.0 + passed)

    # Processes left by other tests may have loaded TensorFlow.
    monkeypatch.setattr(job_watch.proc, "has_tensorflow", lambda process: False)
    with Home() as home, Session(home) as session:
        job = job_watch.JobWatch(session, 3, 3, None)
        at(0)
        job.started(os.getpid())
        for passed, come in (
            (1, 0),
            (14, 0),
            (16, 0),
            (29, 1),
            (30, 2),
            (45, 2),
            (61, 3),
            (121, 3),
        ):
            at(passed)
            for rank in range(come):
                said(session.state, contract.RUNS, rank, process=os.getpid())
            job.look()
        first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("tf_hvd run: after 15 s none of 3 ranks on this machine has started; ")
    assert second.startswith(
        "tf_hvd run: after 30 s only ranks 0, 1 of 3 ranks on this machine have started; "
    )


class Waiting:
    """A job of three ranks in which rank 0 waits in init, with a simulated clock."""

    def __init__(self, session, monkeypatch, said, called=(0,)):
        self._patch = monkeypatch
        self.alive = {0, 1, 2}
        monkeypatch.setattr(proc, "has_tensorflow", lambda process: False)
        monkeypatch.setattr(proc, "is_alive", lambda process: process - 100 in self.alive)
        monkeypatch.setattr(proc, "is_stopped", lambda process: process == 102)
        monkeypatch.setattr(proc, "arguments", lambda process: ["/usr/bin/python3", "a.py"])
        for rank in range(3):
            said(session.state, contract.RUNS, rank, process=100 + rank)
        said(session.state, contract.CALLED, None, process=100)
        for rank in called:
            said(session.state, contract.CALLED, rank, process=100 + rank)
        self.watch = job_watch.JobWatch(session, 3, 3, None)

    def look(self, passed):
        self._patch.setattr(job_watch.time, "monotonic", lambda: 1000.0 + passed)
        return self.watch.look()


def test_ranks_missing_in_init_are_reported_once(capsys, monkeypatch, said):
    with Home() as home, Session(home) as session:
        job = Waiting(session, monkeypatch, said)
        for passed in (1, 20, 30):
            assert job.look(passed) is not None
        assert capsys.readouterr().err == ""
        for passed in (31, 60, 90):
            assert job.look(passed) is not None
        assert capsys.readouterr().err == (
            "tf_hvd run: init() has waited 30 s for other ranks; rank 1, process 101 (python3 "
            "a.py), has not called it yet (still importing, or stuck before it); rank 2, process "
            "102 (python3 a.py), is stopped (SIGSTOP, or a debugger). All ranks of the job must "
            "call hvd.init()\n"
        )


def test_ranks_waiting_in_init_for_ended_rank_are_ended(capsys, monkeypatch, said):
    ended = []
    with Home() as home, Session(home) as session:
        job = Waiting(session, monkeypatch, said)
        monkeypatch.setattr(job_watch.os, "kill", lambda *how: ended.append(how))
        job.alive = {0, 2}
        said(session.state, contract.ENDED, 1)
        job.look(1)
        job.look(3)
        assert not ended
        job.look(4)
        job.look(7)
        assert ended == [(100, signal.SIGTERM), (100, signal.SIGKILL)]
        assert capsys.readouterr().err == (
            "tf_hvd run: init() can never finish: rank 1 has ended without calling it. All ranks "
            "of the job must call hvd.init()\n"
        )


@pytest.mark.parametrize("called", [(), (0, 1, 2)])
def test_init_of_a_subset_reports_no_missing_ranks(capsys, monkeypatch, said, called):
    """Because of `init(comm)`, or because all started ranks have called init."""
    with Home() as home, Session(home) as session:
        job = Waiting(session, monkeypatch, said, called)
        if called:
            monkeypatch.setattr(proc, "is_stopped", lambda process: False)
        job.alive = {0, 1}
        assert job.look(1) is not None
        assert job.look(99) is not None
        assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("free", "size"), [(9 * MIB, "2097152"), (64 * MIB, ""), (None, "")])
def test_open_mpi_gets_smaller_segments_in_little_memory(monkeypatch, free, size):
    monkeypatch.setattr(shared_memory, "free", lambda: free)
    assert shared_memory.small_segment(2) == size


def test_message_about_little_shared_memory():
    assert shared_memory.little_text("openmpi", 9 * MIB, 2).startswith(
        "tf_hvd run: /dev/shm had 9 MiB free when the job started, but 2 ranks need 10 MiB. Remove"
    )
    bus = "/dev/shm had 9 MiB free when the job started, but 2 ranks need 20 MiB; MPICH crashes"
    assert bus in shared_memory.little_text("mpich", 9 * MIB, 2)
    assert shared_memory.little_text("openmpi", 10 * MIB, 2) == ""
    assert shared_memory.little_text("", 0, 2) == ""


JOIN_ALONE = """
if rank == 1: os.environ["TF_HVD_ALONE"] = "1"
import tf_hvd as hvd
hvd.init()
say("of", hvd.size())
"""


def test_rank_with_alone_set_is_named(environ, call, program, closing):
    """The message was only "rank 0 was process 8814, rank 1 was process 8815"."""
    code, _, errors = call("run", "-np", "2", *program(JOIN_ALONE), environ=environ)
    assert code != 0
    told = closing(errors)
    assert told["what"] == "rank 1 had TF_HVD_ALONE=1, which keeps a rank out of the job"
    assert told["next"] == "unset TF_HVD_ALONE"


def test_rank_with_alone_set_counts_as_joined(said):
    """If it is set on all ranks, each runs a separate training, as requested."""
    state = JobState()
    for rank in range(2):
        said(state, contract.RUNS, rank)
    for what in (contract.CALLED, contract.ALONE):
        said(state, what, 1)
    assert state.joined()
    assert state.ranks_with_alone_set() == []
    said(state, contract.CALLED)
    assert state.ranks_with_alone_set() == [1]
    said(state, contract.JOINED)
    found = explain.explain(Ending(3), state, Screen(print), 2)
    assert "rank 1 had TF_HVD_ALONE=1" in found.what


LITTLE = "mount -t tmpfs -o size=9m tmpfs /dev/shm && ip link set lo up && exec "


def test_open_mpi_with_little_shared_memory_and_no_network(environ, program, family):
    """Open MPI's message was "BTLs attempted: self" without /dev/shm. MPICH needs more room."""
    if not has_namespaces():
        pytest.skip("only root can create namespaces")
    join = program("import tf_hvd as hvd; hvd.init(); say('joined', hvd.size())")
    line = ["unshare", "-m", "-n", "sh", "-c", LITTLE + '"$@"', "sh", *COMMAND, "run", "-np", "3"]
    ended = finished([*line, *join], env=environ)
    assert ended.returncode != 0
    assert "BTLs attempted" not in ended.stderr
    assert "/dev/shm ha" in ended.stderr
    assert "--shm-size" in ended.stderr


# As an unprivileged user who sees no processes of others in /proc: kills a rank, interrupts a job.
HIDDEN = r"""
import os, pathlib, signal, subprocess, sys, time

assert not os.path.exists("/proc/1"), "nothing is hidden"
folder, joins, waits = pathlib.Path(sys.argv[1]), *sys.argv[2:]
command = [sys.executable, "-m", "tf_hvd_command"]

def start(program):
    job = [*command, "run", "-np", "2", sys.executable, "-c", program]
    process = subprocess.Popen(job, cwd=folder, stderr=subprocess.PIPE, text=True)
    files = [folder / f"pid{rank}" for rank in (0, 1)]
    while process.poll() is None and not all(file.exists() for file in files):
        time.sleep(0.05)
    pids = [int(file.read_text()) for file in files if file.exists()]
    [file.unlink() for file in files if file.exists()]
    return process, pids

process, pids = start(joins)
dump = subprocess.run([*command, "dump", str(process.pid), "--to", str(folder)],
                      capture_output=True, text=True)
print("dump:", dump.returncode, dump.stderr)
os.kill(pids[1], signal.SIGKILL)
print(process.communicate()[1], process.returncode)
process, pids = start(waits)
process.send_signal(signal.SIGINT)
print(process.communicate()[1], process.returncode)
print("saved:", sorted(each.name for each in folder.glob("saved*")))
there = {int(each) for each in os.listdir("/proc") if each.isdigit()}
print("left:", there - {os.getpid()})
"""
HELD = (
    "import os, sys, time\n"
    "told = [os.environ.get(n) for n in ('OMPI_COMM_WORLD_RANK', 'PMI_RANK')]\n"
    "rank = next(int(t) for t in told if t is not None)\n"
    "{first}\n"
    "open(f'new{{rank}}', 'w').write(str(os.getpid())); os.rename(f'new{{rank}}', f'pid{{rank}}')\n"
    "try:\n"
    "    time.sleep(300)\n"
    "except KeyboardInterrupt:\n"
    "    open(f'saved{{rank}}', 'w').close()\n"
)
UNSEEN = "mount -t proc -o hidepid=2 proc /proc || exit 42; "


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create namespaces")
def test_user_who_sees_only_own_processes(environ, tmp_path):
    if subprocess.run(["unshare", "-m", "-p", "-f", "true"], check=False).returncode:
        pytest.skip("cannot create namespaces")
    own = tmp_path / "own"
    own.mkdir()
    own.chmod(0o777)
    first = "import tf_hvd as hvd; hvd.init(); hvd.allreduce(1.0, name='met')"
    inside = [*UNPRIVILEGED, sys.executable, "-c", HIDDEN, str(own)]
    inside += [HELD.format(first=first), HELD.format(first="")]
    # A shell of root is the first process, and keeps running.
    line = ["unshare", "-m", "-p", "-f", "--kill-child", "sh", "-c", UNSEEN + '"$@"; exit', "sh"]
    ended = finished([*line, *inside], env={**environ, "HOME": str(own), "TMPDIR": str(own)})
    if ended.returncode == 42:
        pytest.skip("cannot mount another /proc")
    told = ended.stdout
    assert ended.returncode == 0, told + ended.stderr
    assert re.search(r"dump: 0 2 of 2 ranks of job tf_hvd-\w+: tf_hvd doctor ", told)
    assert "rank 1 was the first to end with an error (signal 9, Killed)" in told
    assert "its last call, number 2, was allreduce 'met'" in " ".join(told.split())
    assert "the job was ended by SIGINT; all ranks ended on their own\n 130\n" in told
    assert "saved: ['saved0', 'saved1']\nleft: set()\n" in told
