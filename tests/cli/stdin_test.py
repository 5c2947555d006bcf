"""Standard input: rank 0 gets it, other ranks get an empty one, and no job waits for it."""

import os
import pty
import select
import signal
import sys

import pytest

from tf_hvd.launch.job import interpreter

READ = "say(rank, len(sys.stdin.buffer.read()))"
LONG = 10_000_000


def read_by_ranks(process):
    output, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return {int(rank): int(size) for rank, size in map(str.split, output.splitlines())}


@pytest.mark.parametrize("size", [0, 6, LONG], ids=["empty", "small", "10 MB"])
def test_a_file_goes_to_rank_0(environ, start, program, tmp_path, size):
    (tmp_path / "input").write_bytes(b"x" * size)
    with open(tmp_path / "input", "rb") as file:
        process = start("run", "-np", "2", *program(READ), environ=environ, stdin=file)
    assert read_by_ranks(process) == {0: size, 1: 0}


def test_a_pipe_goes_to_rank_0(environ, start, program):
    read_end, write_end = os.pipe()
    process = start("run", "-np", "3", *program(READ), environ=environ, stdin=read_end)
    os.close(read_end)
    with open(write_end, "wb") as pipe:
        pipe.write(b"x" * LONG)
    assert read_by_ranks(process) == {0: LONG, 1: 0, 2: 0}


def test_dev_null_and_a_closed_input_are_empty(environ, start, program):
    null = start("run", "-np", "2", *program(READ), environ=environ)
    closed = start(
        *["run", "-np", "2", *program(READ)], environ=environ, preexec_fn=lambda: os.close(0)
    )
    assert read_by_ranks(null) == read_by_ranks(closed) == {0: 0, 1: 0}


def test_a_job_does_not_wait_for_a_pipe_that_stays_open(environ, start, program):
    read_end, write_end = os.pipe()
    os.write(write_end, b"one\ntwo\n")
    line = program("say(rank, len(sys.stdin.readline()))")
    process = start("run", "-np", "2", *line, environ=environ, stdin=read_end)
    assert read_by_ranks(process) == {0: 4, 1: 0}
    os.close(write_end)
    os.close(read_end)


def test_unread_input_is_left_to_the_caller(environ, start, program):
    """As in `while read line; do tf_hvd run ...; done < list`."""
    read_end, write_end = os.pipe()
    os.write(write_end, b"left\n")
    os.close(write_end)
    process = start("run", "-np", "2", *program("say(rank, 0)"), environ=environ, stdin=read_end)
    assert read_by_ranks(process) == {0: 0, 1: 0}
    assert os.read(read_end, 100) == b"left\n"
    os.close(read_end)


def test_a_files_position_is_kept(environ, start, program, tmp_path):
    (tmp_path / "input").write_text("first\nsecond\n")
    with open(tmp_path / "input", "rb", buffering=0) as file:
        os.read(file.fileno(), len("first\n"))
        process = start("run", "-np", "2", *program(READ), environ=environ, stdin=file)
        assert read_by_ranks(process) == {0: len("second\n"), 1: 0}


def test_a_terminal_goes_to_rank_0(environ, program):
    """`tf_hvd run` in a separate terminal, into which two lines and the end are typed."""
    show = program("[say(rank, 'read', line.strip()) for line in sys.stdin]; say(rank, 'end')")
    pid, terminal = pty.fork()
    if pid == 0:
        command = [sys.executable, "-m", "tf_hvd_command", "run", "-np", "2", *show]
        os.execvpe(command[0], command, environ)
    os.write(terminal, b"ab\ncd\n\x04")
    output = b""
    try:
        while select.select([terminal], [], [], 60)[0]:
            output += os.read(terminal, 4096)
        os.kill(pid, signal.SIGTERM)
    except OSError:  # a terminal's error when its last user is gone
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, output
    lines = {line.strip() for line in output.decode().splitlines()}
    assert lines >= {"0 read ab", "0 read cd", "0 end", "1 end"}
    assert not {"1 read ab", "1 read cd"} & lines


@pytest.mark.parametrize(
    ("words", "reads"),
    [
        ("", True),
        ("-", True),
        ("-u - --lr 1", True),
        ("-X dev -W ignore", True),
        ("train.py -", False),
        ("-u -m train", False),
        ("-c pass", False),
        ("--version", False),
    ],
)
def test_python_reading_its_program_from_standard_input(words, reads):
    assert interpreter.reads_program(["python", *words.split()]) is reads


@pytest.mark.parametrize(
    ("program", "is_one"),
    [("python", True), ("python3.13t", True), ("python3-dbg", True), ("python_train.sh", False)],
)
def test_program_named_python_something_is_not_an_interpreter(tmp_path, program, is_one):
    assert interpreter.is_interpreter(str(tmp_path / program)) is is_one


def test_program_on_standard_input_is_refused(start, program, tmp_path):
    """With `python - < train.py` the other ranks ran an empty program, and the job succeeded."""
    words = program("say('ran', rank)")
    ran = {}
    for ranks, command in (("2", [words[0], "-"]), ("1", [words[0], "-"]), ("2", words)):
        with open(words[1]) as file:
            job = start("run", "-np", ranks, *command, stdin=file)
        output, errors = job.communicate(timeout=600)
        ran[ranks, command[1]] = sorted(output.splitlines()), errors
    assert ran == {
        ("2", "-"): (
            [],
            f"tf_hvd run: {words[0]!r} would read its program from the standard input, which only "
            "rank 0 has; save the program to a file and pass that file\n",
        ),
        ("1", "-"): (["ran None"], ""),
        ("2", words[1]): (["ran 0", "ran 1"], ""),
    }


def test_single_rank_reads_program_from_standard_input(start, program, tmp_path):
    (tmp_path / "input").write_bytes(b"x" * LONG)
    with open(tmp_path / "input", "rb") as file:
        process = start(
            "run", "-np", "1", *program("say(0, len(sys.stdin.buffer.read()))"), stdin=file
        )
    assert read_by_ranks(process) == {0: LONG}
