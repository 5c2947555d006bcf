"""The standby: a program in it is as if Python had just been started for it."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from tf_hvd.core import commit_store
from tf_hvd.elastic import standby
from tf_hvd.launch import stand_in

# Becomes what `rank.py` makes of a rank: the program, in the standby or as ever.
RANK = """
import os, signal, sys
sys.path.append(sys.argv[1])
import keeper, stand_in
token, *command = sys.argv[2:]
if token:
    code = stand_in.run(command, token, lambda process: None)
    if code is None:
        sys.exit("no standby")
    keeper.end_as(code)
for signum in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(signum, signal.SIG_DFL)
os.execvp(command[0], command)
"""
ENVIRON = {
    "PATH": os.environ["PATH"],
    "LC_ALL": "C.UTF-8",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "OF_ALL": "1",
}
LAUNCH = pathlib.Path(stand_in.__file__).parent


@pytest.fixture(scope="module")
def token(tmp_path_factory, has_standby):
    """Of a standby that runs, started as the commit store does that."""
    name = f"test{os.getpid()}"
    folder = tmp_path_factory.mktemp("standby")
    asked = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "orig_argv", [sys.executable, "program.py"])
        patch.setenv(commit_store.JOB_VARIABLE, f"{name}:0")
        standby.ask_for(asked.append)
    request = json.loads(asked[0])
    about = {**request["about"], "given": standby.common(ENVIRON), "modules": ["numpy"]}
    about["environ"] = ENVIRON
    with subprocess.Popen(
        request["command"], env=ENVIRON, cwd=folder, stdin=subprocess.PIPE
    ) as process:
        process.stdin.write(json.dumps(about).encode() + b"\n")
        process.stdin.flush()
        deadline = time.monotonic() + 120
        while not has_standby(name):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield name
        process.stdin.close()
        assert process.wait(20) == 0


@pytest.fixture
def rank(tmp_path):
    """Starts a rank: in the standby of that name, or as ever."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)

    @contextlib.contextmanager
    def start(token, *command, **options):
        words = [sys.executable, "-I", "-S", str(script), str(LAUNCH), token, *command]
        with subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=options.pop("cwd", tmp_path),
            env={**ENVIRON, **options.pop("environ", {})},
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
print({n: v for n, v in os.environ.items() if n not in ("_", "TF_HVD_STARTED")})
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
def test_a_program_is_as_if_python_had_been_started_for_it(name, token, rank, tmp_path):
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "program.py").write_text(PROGRAMS[name])
    found = []
    for one in ("", token):
        with rank(one, sys.executable, "below/program.py", "a", "-b") as process:
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
        ["missing.py"],
    ],
    ids=["module", "package", "no_module", "text", "no_file"],
)
def test_so_are_modules_and_texts(command, token, rank, tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    text = "import sys; print(__name__, sys.argv, sys.path[0], __spec__.name); import package.other"
    (package / "__init__.py").touch()
    (package / "module.py").write_text(text)
    (package / "__main__.py").write_text(text)
    (package / "other.py").write_text("raise ValueError('in other')")
    found = []
    for one in ("", token):
        with rank(one, sys.executable, *command) as process:
            output, errors = process.communicate(timeout=60)
        found.append((process.returncode, output, errors))
    assert found[0] == found[1]


def test_files_have_the_numbers_that_they_had(token, rank, tmp_path):
    """A recording, and what an MPI's launcher listens to, are known to programs by their number."""
    (tmp_path / "program.py").write_text(
        "import os, sys; [os.write(int(n), n.encode()) for n in sys.argv[1:]]"
    )
    ends = [os.pipe() for _ in range(3)]
    try:
        numbers = [str(end) for _, end in ends]
        with rank(
            token,
            *(sys.executable, "program.py", *numbers),
            pass_fds=[end for _, end in ends],
        ) as process:
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
        return state(process) not in "ZX"
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
def test_signals_reach_the_program(signum, argument, code, token, rank, tmp_path, wait_until):
    """Also that which nobody can hand on: what the launcher kills must not go on."""
    (tmp_path / "program.py").write_text(SLEEPS)
    with rank(token, sys.executable, "program.py", argument) as process:
        program = int(process.stdout.readline())
        assert program != process.pid
        process.send_signal(signum)
        assert process.wait(20) == code
        # Whoever still had the output would keep a launcher waiting.
        assert process.stdout.read() == ""
    wait_until(lambda: not lives(program))  # its files are closed a moment before it has ended


def test_ctrl_z_stops_the_program_until_it_is_to_go_on(token, rank, tmp_path, wait_until):
    """The kernel lets SIGTSTP stop nobody in a session without a terminal."""
    (tmp_path / "program.py").write_text(SLEEPS)
    with rank(token, sys.executable, "program.py") as process:
        both = {int(process.stdout.readline()), process.pid}
        process.send_signal(signal.SIGTSTP)
        wait_until(lambda: {*map(state, both)} == {"T"})
        process.send_signal(signal.SIGCONT)
        wait_until(lambda: "T" not in map(state, both))
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == -signal.SIGTERM


def state(process):
    stat = pathlib.Path(f"/proc/{process}/stat").read_text()
    return stat.rpartition(")")[2].split()[0]


def test_what_a_dead_program_has_started_is_killed(token, rank, tmp_path):
    (tmp_path / "program.py").write_text(SLEEPS)
    with rank(token, sys.executable, "program.py", "starts") as process:
        os.kill(int(process.stdout.readline()), signal.SIGKILL)
        assert process.wait(20) == -signal.SIGKILL
        assert process.stdout.read() == ""


def test_numpy_draws_other_numbers_in_each_rank(token, rank, tmp_path):
    (tmp_path / "program.py").write_text("import numpy; print(numpy.random.rand())")
    drawn = set()
    for _ in range(3):
        with rank(token, sys.executable, "program.py") as process:
            drawn.add(process.communicate(timeout=30)[0])
    assert len(drawn) == 3


@pytest.mark.parametrize(
    ("command", "environ", "why"),
    [
        (["/bin/sh", "-c", "true"], {}, "is /bin/sh"),
        ([sys.executable, "-O", "program.py"], {}, "the same options"),
        ([sys.executable, "-i", "program.py"], {}, "the same options"),
        ([sys.executable, "."], {}, "no text"),
        ([sys.executable, "program.pyc"], {}, "no text"),
        ([sys.executable, "program.py"], {"OF_ALL": "2"}, "OF_ALL"),
        ([sys.executable, "program.py"], {"TF_HVD_GUARD": "off"}, "TF_HVD_GUARD"),
        ([sys.executable, "program.py"], {"TF_CPP_MIN_LOG_LEVEL": ""}, "TF_CPP_MIN_LOG_LEVEL"),
    ],
    ids=["shell", "optimized", "unknown", "folder", "compiled", "variable", "setting", "empty"],
)
def test_it_says_what_it_cannot_run(command, environ, why, token, rank, tmp_path):
    (tmp_path / "program.py").touch()
    with rank(token, *command, environ={**environ, "TF_HVD_LOG_LEVEL": "debug"}) as process:
        _, errors = process.communicate(timeout=30)
    assert errors.endswith("no standby\n")
    assert why in errors


def test_command_lines_are_read_as_python_does():
    assert standby.parse(["-u", "-X", "dev", "-Wonce", "a.py", "-m", "b"]) == standby.Program(
        ("-u", "-X", "dev", "-Wonce"), "", "a.py", ("-m", "b")
    )
    assert standby.parse(["-m", "a", "-c"]) == standby.Program((), "-m", "a", ("-c",))
    for other in (
        [],
        ["-"],
        ["-V"],
        ["-um", "a"],
        ["-m"],
        ["--check-hash-based-pycs", "x", "a.py"],
    ):
        assert standby.parse(other) is None
