"""Forks of ranks in tests: a program in one is as if Python had just been started for it."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

# A Python with this goes on in the forker of that name.
BEGINS = """
import os, tests_forker, tests_standby
name = os.environ.pop("FORKER", "")
if name:
    about = {"job": "", "rank": 0, "keeper": 0}
    tests_forker.hand_over("\\0" + name, tests_standby.rank_module().keeper, about)
    raise SystemExit("no forker")
"""
SERVES = """
import sys, tests_forker, tests_standby
name, tests = sys.argv[1:]
rank = tests_standby.rank_module()
tests_forker.run(*tests_forker.serve("\\0" + name, int(tests), ["numpy"], rank))
"""


@pytest.fixture(scope="module")
def environ(tmp_path_factory):
    folder = tmp_path_factory.mktemp("begins")
    (folder / "sitecustomize.py").write_text(BEGINS)
    path = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "PYTHONPATH": ":".join(path)}


@pytest.fixture(scope="module")
def forker(environ):
    """The name of one that runs."""
    name = f"tf_hvd_forker_test.{os.getpid()}"
    command = [sys.executable, "-c", SERVES, name, str(os.getpid())]
    with subprocess.Popen(command, env=environ, cwd="/", stdin=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + 120
        while f"@{name}" not in pathlib.Path("/proc/net/unix").read_text():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield name
        process.kill()


@pytest.fixture
def rank(environ, tmp_path):
    """Starts a rank: in the forker of that name, or as ever."""

    @contextlib.contextmanager
    def start(name, *arguments, **options):
        with subprocess.Popen(
            [sys.executable, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
            env={**environ, "FORKER": name},
            **options,
        ) as process:
            yield process

    return start


PROGRAMS = {
    "what it is": """
import os, signal, sys
print(__name__, __file__, __package__, __spec__, type(__loader__).__name__, __doc__)
print(sys.argv, sys.orig_argv[1:], sys.path[0], sys.flags, sys.executable)
print(sys.stdout.line_buffering, sys.stdout.write_through, sys.stderr.line_buffering)
print(os.getcwd(), sorted(os.environ.items()) == sorted(os.environb.items()), os.umask(0o77))
print({n: v for n, v in os.environ.items() if n not in ("_",)})
print([signal.getsignal(s) for s in (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP)])
print(signal.pthread_sigmask(signal.SIG_BLOCK, []), os.sched_getaffinity(0))
import __main__
print(__main__.__dict__ is globals(), sorted(n for n in globals() if n.startswith("__")))
print(open("/proc/self/comm").read(), type(__builtins__))
""",
    "input": "import sys; print(sys.stdin.read().upper()); print('e', file=sys.stderr)",
    "raises": "def fail():\n    raise ValueError('no')\n\nfail()",
    "syntax": "def fail(:",
    "exits": "import sys; sys.exit(7)",
    "exits with a text": "import sys; sys.exit('for a reason')",
    "ends at once": "import os; os._exit(5)",
    "a signal": "import os; os.kill(os.getpid(), 11)",
    "interrupted": "import atexit; atexit.register(print, 'last'); raise KeyboardInterrupt",
    "a hook": "import sys; sys.excepthook = lambda *e: print('hook', e[0]); 1 / 0",
    "at the end": """
import atexit, threading, time
atexit.register(print, "registered")
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
print("main")
""",
    "processes": """
import multiprocessing
def twice(number):
    return 2 * number
if __name__ == "__main__":
    for kind in ("fork", "spawn"):
        with multiprocessing.get_context(kind).Pool(1) as pool:
            print(pool.map(twice, [1, 2]))
""",
    "closed output": "import os, signal; os.close(1); print(1)",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_is_as_if_python_had_been_started_for_it(name, forker, rank, tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "program.py").write_text(PROGRAMS[name])
    found = []
    for one in ("", forker):
        with rank(one, "below/program.py", "a", "-b") as process:
            output, errors = process.communicate("typed", timeout=60)
        found.append((process.returncode, output, errors))
    assert found[0] == found[1]


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "package.module", "a"],
        ["-m", "package", "a"],
        ["-m", "missing"],
        ["-c", "import sys; print(sys.argv, sys.path[0], __name__, sorted(globals())); 1 / 0", "b"],
    ],
    ids=["module", "package", "no_module", "text"],
)
def test_so_are_modules_and_texts(command, forker, rank, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    text = "import sys; print(__name__, sys.argv, sys.path[0], __spec__.name); import package.other"
    (package / "__init__.py").touch()
    (package / "module.py").write_text(text)
    (package / "__main__.py").write_text(text)
    (package / "other.py").write_text("raise ValueError('in other')")
    found = []
    for one in ("", forker):
        with rank(one, *command) as process:
            output, errors = process.communicate(timeout=60)
        found.append((process.returncode, output, errors))
    assert found[0] == found[1]


def test_files_have_the_numbers_that_they_had(forker, rank, tmp_path):
    """A recording, and what an MPI's launcher listens to, are known to programs by their number."""
    (tmp_path / "program.py").write_text(
        "import os, sys; [os.write(int(n), n.encode()) for n in sys.argv[1:]]"
    )
    ends = [os.pipe() for _ in range(3)]
    try:
        numbers = [str(end) for _, end in ends]
        with rank(forker, "program.py", *numbers, pass_fds=[end for _, end in ends]) as process:
            assert process.wait(30) == 0
        assert [os.read(end, 9).decode() for end, _ in ends] == numbers
    finally:
        for pair in ends:
            for end in pair:
                os.close(end)


SLEEPS = """
import os, signal, sys, time
if "handles" in sys.argv:
    signal.signal(signal.SIGUSR1, lambda *_: sys.exit(9))
if "starts" in sys.argv and os.fork() == 0:
    time.sleep(600)
print(os.getpid(), flush=True)
time.sleep(600)
"""


def lives(process):
    with contextlib.suppress(OSError):
        stat = pathlib.Path(f"/proc/{process}/stat").read_text()
        return stat.rpartition(")")[2].split()[0] not in "ZX"
    return False


@pytest.mark.parametrize(
    ("signum", "argument", "code"),
    [
        (signal.SIGTERM, "", -signal.SIGTERM),
        (signal.SIGUSR1, "handles", 9),
        (signal.SIGKILL, "starts", -signal.SIGKILL),
    ],
    ids=["ended", "handled", "killed"],
)
def test_signals_reach_the_program(signum, argument, code, forker, rank, tmp_path):
    """Also that which nobody can hand on: what the launcher kills must not go on."""
    (tmp_path / "program.py").write_text(SLEEPS)
    with rank(forker, "program.py", argument) as process:
        program = int(process.stdout.readline())
        assert program != process.pid
        process.send_signal(signum)
        assert process.wait(20) == code
        # Whoever still had the output would keep a launcher waiting.
        assert process.stdout.read() == ""
    deadline = time.monotonic() + 20
    while lives(program):  # its files are closed a moment before it has ended
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_a_dead_program_has_started_is_killed(forker, rank, tmp_path):
    (tmp_path / "program.py").write_text(SLEEPS)
    with rank(forker, "program.py", "starts") as process:
        os.kill(int(process.stdout.readline()), signal.SIGKILL)
        assert process.wait(20) == -signal.SIGKILL
        assert process.stdout.read() == ""


def test_numpy_draws_other_numbers_in_each_rank(forker, rank, tmp_path):
    (tmp_path / "program.py").write_text("import numpy; print(numpy.random.rand())")
    drawn = set()
    for _ in range(3):
        with rank(forker, "program.py") as process:
            drawn.add(process.communicate(timeout=30)[0])
    assert len(drawn) == 3
