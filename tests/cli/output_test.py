"""The output of ranks: complete lines marked with the rank, and output that cannot be written."""

import errno
import os
import re
import resource
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from finished import finished

from tf_hvd.core import contract
from tf_hvd.launch.job import run
from tf_hvd.launch.job.asked import Job
from tf_hvd.launch.job.command_line import rank_command
from tf_hvd.launch.job.signals import Ending
from tf_hvd.launch.machine.lines import Writer, is_closed, lost_text
from tf_hvd.launch.machine.rank_output import Copy

COMMAND = [sys.executable, "-m", "tf_hvd_command"]
LINES = 3000


def test_tagged_lines_are_complete(environ, call, program):
    """MPICH's launcher put labels, and other lines, into the middle of lines."""
    loud = program(
        f"for i in range({LINES}):\n"
        "    for text in ('line ', str(i), 'x' * (i % 97), '\\n'):\n"
        "        os.write(1, text.encode())\n"
    )
    code, output, errors = call("run", "-np", "2", "--tag-output", *loud, environ=environ)
    assert code == 0, errors
    for rank in range(2):
        mine = [line for line in output.split("\n") if line.startswith(f"[1,{rank}]<stdout>: ")]
        # On a busy machine a line may also be shown before it has ended.
        after = [*mine[1:], ""]
        whole = [
            line
            for line, next_line in zip(mine, after, strict=True)
            if not next_line.startswith(line)
        ]
        assert whole == [f"[1,{rank}]<stdout>: line {i}{'x' * (i % 97)}" for i in range(LINES)]


def test_timestamps_need_no_folder(environ, call, program):
    show = program("say('out'); sys.stderr.write('error\\n')")
    for ranks in ("2", "1"):
        code, output, errors = call(
            *("run", "-np", ranks, "--prefix-output-with-timestamp", *show), environ=environ
        )
        assert code == 0, errors
        stamp = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] "
        assert re.fullmatch(rf"({stamp}out\n){{{ranks}}}", output)
        assert re.fullmatch(rf"({stamp}error\n){{{ranks}}}", errors)


def test_restart_appends_to_output_files(session, tmp_path):
    """Earlier output may show why an elastic job restarted. A new job replaces the files."""
    session.serve()
    for number in (0, 0, 1, 2):
        program = ("/bin/sh", "-c", f"echo {number}")
        job = Job(ranks=1, command=program, output=str(tmp_path))
        command = rank_command("", job, session.home.job, session.state.job)
        environ = {**os.environ, contract.START: str(number)}
        # Its output ends when everything is copied.
        subprocess.run(command, env=environ, capture_output=True, check=True)
    assert (tmp_path / "rank.0" / "stdout").read_text() == "0\n1\n2\n"


@pytest.mark.parametrize(
    ("plant", "text"),
    [
        (lambda path, victim: path.symlink_to(victim), "is a symbolic link, not a file"),
        (lambda path, victim: os.mkfifo(path), "is a pipe, not a file"),
    ],
)
def test_planted_output_file_is_refused(session, tmp_path, plant, text):
    session.serve()
    victim, path = tmp_path / "victim", tmp_path / "rank.0" / "stdout"
    victim.write_text("precious")
    path.parent.mkdir()
    plant(path, victim)
    job = Job(ranks=1, command=("/bin/sh", "-c", "echo out"), output=str(tmp_path))
    command = rank_command("", job, session.home.job, session.state.job)
    done = finished(command)
    assert done.returncode == 1
    assert f"tf_hvd run: --output-filename: {path} {text}" in done.stderr
    assert victim.read_text() == "precious"


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("a\nb", ["a\n", "b\n"]),
        ("a\r\nb\r\n", ["a\r", "a\n", "b\r", "b\n"]),
        ("\n\n", ["\n", "\n"]),
        # Keras goes back to the start of the line, then prints the bar.
        ("\b\b\r1/2\b\b\b\r2/2\n", ["1/2\r", "2/2\n"]),
        ("x" * 100_000 + "\n", ["x" * 65536 + "\n", "x" * 34464 + "\n"]),
    ],
)
def test_redrawn_lines(tmp_path, printed, shown):
    with open(tmp_path / "shown", "wb") as file:
        copy = Copy(file.fileno(), "[1,0]<stdout>: ", None, False)
        for begin in range(0, len(printed), 65536):
            copy.take(printed.encode()[begin : begin + 65536])
        copy.take(b"")
    output = (tmp_path / "shown").read_bytes().decode()
    assert output == "".join(f"[1,0]<stdout>: {line}" for line in shown)


def test_prompt_is_shown_before_its_line_ends(start, program):
    """`input("name? ")` waits for an answer, so its line must be shown before it ends."""
    ask = program("os.write(1, b'name? '); say(sys.stdin.readline().strip())")
    job = start("run", "-np", "1", "--tag-output", *ask, environ=os.environ, stdin=subprocess.PIPE)
    asked = "[1,0]<stdout>: name? "
    assert job.stdout.read(len(asked)) == asked
    output, errors = job.communicate("it\n", timeout=600)
    assert (output, errors) == (f"{asked}it\n", "")  # a terminal overwrites the first text


LEAVES = "import subprocess; subprocess.Popen(['sh', '-c', 'sleep 2; echo late'])\n"


def test_output_of_background_processes_is_shown(environ, call, program):
    """MPI's launchers wait for the end of the ranks' output as well."""
    words = ("run", "-np", "2", "--tag-output", *program(LEAVES))
    code, output, errors = call(*words, environ=environ)
    assert code == 0, errors
    assert sorted(output.splitlines()) == [f"[1,{rank}]<stdout>: late" for rank in range(2)]


def test_failed_rank_does_not_wait_for_background_processes(environ, call, program):
    """Its last output is shown, and the launcher notices its end immediately."""
    fails = "import subprocess\nif rank == 0: time.sleep(1000)\n"
    fails += "subprocess.Popen(['sleep', '1000'])\nos.write(1, b'x' * 200_000 + b'\\nlast')\n"
    words = ("run", "-np", "2", "--tag-output", *program(f"{fails}os.kill(os.getpid(), 9)"))
    code, output, errors = call(*words, environ=environ)
    assert code == 137, errors
    assert output.count("x") == 200_000
    assert output.endswith("[1,1]<stdout>: last\n")


SINGLE = """
import subprocess
subprocess.Popen(["sleep", "1000"])
for signum in (signal.SIGUSR1, signal.SIGTERM):
    signal.signal(signum, lambda signum, _: (say("got", signum), signum == 15 and sys.exit(7)))
say("ready")
while True:
    time.sleep(0.05)
"""


def test_signals_reach_a_single_rank_once(start, program):
    """Its keeper is between, and does not wait for processes left running."""
    process = start("run", "-np", "1", "--tag-output", *program(SINGLE), environ=os.environ)
    said = iter(process.stdout.readline, "")
    assert next(said) == "[1,0]<stdout>: ready\n"
    process.send_signal(signal.SIGUSR1)
    assert next(said) == f"[1,0]<stdout>: got {int(signal.SIGUSR1)}\n"
    process.send_signal(signal.SIGTERM)
    assert list(said) == [f"[1,0]<stdout>: got {int(signal.SIGTERM)}\n"]
    assert process.wait(600) == 128 + signal.SIGTERM


FULL = "tf_hvd run: output was lost: standard output: No space left on device\n"


@pytest.mark.wire
def test_output_lost_on_full_disk_is_reported(environ, start, program):
    """The job ended with exit code 0 and no message. A failed job keeps its own exit code."""
    for code in (0, 3):
        ends = program(f"say('lost'); sys.exit({code} if rank == 1 else 0)")
        with open("/dev/full", "w") as full:
            job = start("run", "-np", "2", *ends, environ=environ, stdout=full)
        errors = job.communicate(timeout=600)[1]
        assert job.returncode == (code or 1), errors
        assert errors.endswith(FULL)
        assert (errors == FULL) is (code == 0)


CLOSED = (
    "tf_hvd run: the job has ended because the reader of its output, such as head, closed it; "
    "further output is lost\n"
)
READERS = {
    # Ranks that would print indefinitely, and ranks that succeed after the reader is gone.
    "in the middle": "while True: say('x' * 1000)",
    "at the end": "say('x'); sys.stdin.readline(); say('y')",
}


@pytest.mark.wire
@pytest.mark.parametrize("when", READERS)
def test_closed_output_ends_the_job(environ, start, program, when):
    """With `| head -1`, one of the ranks was reported as the first to fail."""
    read_end, write_end = os.pipe()
    words = ["run", "-np", "2", *program(READERS[when])]
    job = start(*words, environ=environ, stdout=write_end, stdin=subprocess.PIPE)
    os.close(write_end)
    assert os.read(read_end, 1) == b"x"
    os.close(read_end)
    errors = job.communicate("continue\n", timeout=600)[1]
    assert (job.returncode, errors) == (128 + signal.SIGPIPE, CLOSED)


@pytest.mark.parametrize(
    ("code", "by_us", "ended"),
    [(0, False, True), (143, True, True), (1, False, False)],
    ids=["well", "for this", "failed"],
)
def test_failed_job_is_not_attributed_to_the_reader(code, by_us, ended):
    lost = {"standard output": errno.EPIPE}
    watch = SimpleNamespace(terminal=True, closed=by_us)
    assert run._is_ended_by_reader(Ending(code), watch, lost) is ended


def test_single_rank_notices_closed_output(start, program):
    read_end, write_end = os.pipe()
    words = ["run", "-np", "1", "--tag-output", *program(READERS["in the middle"])]
    job = start(*words, stdout=write_end)
    os.close(write_end)
    os.read(read_end, 1)
    os.close(read_end)
    errors = job.communicate(timeout=600)[1]
    assert (job.returncode, errors.splitlines(keepends=True)[-1]) == (141, CLOSED)


def test_errors_are_complete_after_output_is_closed(start, program):
    """A single rank lost all output after the first piece, the end of its traceback."""
    read_end, write_end = os.pipe()
    says = """
try:
    while True: os.write(1, b'x'); time.sleep(0.01)
except BrokenPipeError:
    for number in range(9): os.write(2, f'{number}{chr(10)}'.encode()); time.sleep(0.05)
"""
    job = start("run", "-np", "1", "--output-filename", "logs", *program(says), stdout=write_end)
    os.close(write_end)
    os.read(read_end, 1)
    os.close(read_end)
    errors = job.communicate(timeout=600)[1]
    assert errors.splitlines()[:-1] == [str(number) for number in range(9)]


@pytest.mark.wire
def test_ranks_can_save_after_output_is_closed(environ, start, program, tmp_path):
    """As after a signal to end: a closed terminal also ends `| tee`."""
    saves = """
def save(*_):
    open(f"saved{rank}", "w").close()
    os._exit(0)
signal.signal(signal.SIGTERM, save)
open(f"hears{rank}", "w").close()
while not (os.path.exists("hears0") and os.path.exists("hears1")):
    time.sleep(0.01)
while True:
    say("x")
    time.sleep(0.01)
"""
    read_end, write_end = os.pipe()
    job = start("run", "-np", "2", *program(saves), environ=environ, stdout=write_end)
    os.close(write_end)
    os.read(read_end, 1)
    os.close(read_end)
    errors = job.communicate(timeout=600)[1]
    assert (job.returncode, errors) == (128 + signal.SIGPIPE, CLOSED)
    assert sorted(each.name for each in tmp_path.glob("saved?")) == ["saved0", "saved1"]


LITTLE = 'mkdir logs && mount -t tmpfs -o size=64k tmpfs logs && exec "$@"'


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can create namespaces")
@pytest.mark.parametrize("ranks", [1, 2])
def test_truncated_output_files_are_named(call, program, tmp_path, ranks):
    """They were truncated without a message, and the exit code was 0."""
    if subprocess.run(["unshare", "-m", "true"], check=False).returncode:
        pytest.skip("cannot create namespaces")
    words = ["run", "-np", str(ranks), "--output-filename", "logs", *program("say('x' * 100_000)")]
    ended = finished(["unshare", "-m", "sh", "-c", LITTLE, "sh", *COMMAND, *words], cwd=tmp_path)
    assert (ended.returncode, ended.stdout) == (1, f"{'x' * 100_000}\n" * ranks), ended.stderr
    named = [f"{tmp_path}/logs/rank.{rank}/stdout" for rank in range(ranks)]
    lost = ended.stderr.removeprefix("tf_hvd run: output was lost: ").rstrip("\n").split("; ")
    assert sorted(lost) == [f"{name}: No space left on device" for name in named]


def test_many_lost_files_are_counted():
    lost = {f"/logs/rank.{rank}/stdout": errno.ENOSPC for rank in range(9)}
    assert lost_text(lost).count("No space left on device") == 4
    assert lost_text(lost).endswith("; 5 more files")


def test_rank_without_agent_reports_lost_files(tmp_path):
    """As on another machine without an agent."""
    show = (sys.executable, "-c", "print('x' * 100_000)")
    job = Job(ranks=1, command=show, output=str(tmp_path))
    ended = finished(
        rank_command("", job, "no_agent", "no_agent"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
        check=True,
    )
    assert ended.stdout == f"{'x' * 100_000}\n"
    file = tmp_path / "rank.0" / "stdout"
    assert ended.stderr == f"tf_hvd run: output was lost: {file}: File too large\n"
    assert file.stat().st_size == 1000


def test_lost_output_is_recorded_by_name():
    written, (read_end, write_end) = Writer(), os.pipe()
    with open("/dev/full", "wb", buffering=0) as full:
        written.write(full.fileno(), b"x")
    assert written.lost == {"/dev/full": errno.ENOSPC}
    os.close(read_end)
    written.write(write_end, b"x")
    os.close(write_end)
    assert not is_closed(written.lost)  # not a standard file


def test_nonblocking_file_is_written_completely():
    """A process that shares the standard output may set O_NONBLOCK; the rest was lost."""
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    writer, got = Writer(), []
    thread = threading.Thread(target=lambda: writer.write(write_end, b"x" * 1_000_000))
    thread.start()
    while sum(map(len, got)) < 1_000_000:
        got.append(os.read(read_end, 1 << 16))
    thread.join()
    assert writer.lost == {}
    os.close(read_end)
    os.close(write_end)
