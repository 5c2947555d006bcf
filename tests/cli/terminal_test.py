"""The output of ranks and MPI's launcher as shown by `tf_hvd run`."""

import gc
import os
import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tf_hvd.launch.job.terminal import Screen, Terminal
from tf_hvd.launch.machine.lines import Writer
from tf_hvd.launch.machine.rank_output import Copy

TRACEBACK = """Traceback (most recent call last):
  File "train.py", line 5, in <module>
    hvd.allreduce(x)
UnknownError: rank 1 (a) left
\t [[{{node g}}]] [Op:__inference_step_%d]
"""


class Shown:
    """A screen with its text. `at` is the simulated time."""

    def __init__(self, **options):
        self.text = ""
        self.screen = Screen(self._write, **options)

    def _write(self, text):
        self.text += text

    def add(self, who, text, at=0.0):
        self.screen.add(who, text, at)

    def all(self):
        self.screen.finish()
        return self.text


def test_lines_are_marked_after_several_ranks_have_printed():
    shown = Shown()
    shown.add(0, "first\n")
    shown.add(1, "here\nand ")
    shown.add(0, "too\n")
    shown.add(1, "there\n")
    assert shown.all() == "first\n[1] here\n[0] too\n[1] and there\n"


def test_single_rank_is_shown_unchanged():
    shown = Shown()
    for at, piece in enumerate(["\r 10%", "\r 20%", "\r100%\n", "", "no end"]):
        shown.add(0, piece, at)
        shown.screen.tick(at + 0.5)
    assert shown.all() == " 10%\r 20%\r100%\nno end\n"


def test_progress_bars_of_ranks_do_not_mix():
    shown = Shown()
    for percent in (10, 20):
        for rank in (0, 1):
            shown.add(rank, f"{percent}%\r")
    shown.add(1, "done\n")
    shown.add(0, "30%\r")
    assert shown.all() == "10%\r20%\r\n[1] done\n[0] 30%\r\n".replace("20%", "[0] 20%")


def test_traceback_is_shown_in_one_piece():
    shown = Shown()
    lines = (TRACEBACK % 1).splitlines(keepends=True)
    for rank in (0, 1):
        shown.add(rank, f"{rank} begins\n")
    for number, line in enumerate(lines):
        shown.add(1, line, number / 10)
        shown.add(0, f"step {number}\n", number / 10)
    text = shown.all()
    assert "".join(f"[1] {line}" for line in lines) in text
    assert text.count("[0] step") == len(lines)


def test_equal_tracebacks_are_mentioned_once():
    """Four ranks printed 300 lines that could not be distinguished."""
    shown = Shown()
    for rank in (2, 0, 3, 1):
        shown.add(rank, TRACEBACK % rank if rank != 1 else "ValueError: no images\n", rank)
        shown.screen.end(rank, rank)
    text = shown.all()
    assert text.count("UnknownError") == 1
    assert text.endswith("[ranks 0, 3] the same traceback as rank 2's\n")
    assert shown.screen.first_error == (2, "UnknownError: rank 1 (a) left")
    assert shown.screen.last_words[1].text == "ValueError: no images"
    # Users were referred to lines of rank 3 that did not exist.
    assert shown.screen.shown(3) == (2, False)
    assert shown.screen.shown(1) == (1, True)


def test_lines_before_other_ranks_printed_are_not_marked():
    """Users were referred to lines "marked [0]" that were not marked."""
    shown = Shown()
    shown.add(0, "python: can't open file 'x.py'\n")
    shown.add(1, "python: can't open file 'x.py'\n")
    shown.all()
    assert shown.screen.shown(0) == (0, False)
    assert shown.screen.shown(1) == (1, True)


INIT = """Traceback (most recent call last):
  File "t.py", line 9, in <module>
    model.fit(x)
  File "/env/lib/python3.11/site-packages/keras/trainer.py", line 117, in error_handler
    raise e
tensorflow.python.framework.errors_impl.FailedPreconditionError: Graph execution error:

Detected at node Broadcast defined at (most recent call last):
  File "t.py", line 9, in <module>

tf_hvd has not been initialized; call hvd.init() first
\t [[{{node Broadcast}}]] [Op:__inference_f_1]
"""
CONVERTED = """Traceback (most recent call last):
  File "t.py", line 28, in <module>
    step(images)
  File "/var/__autograph_generated_fileeda8r_aa.py", line 13, in tf__step
    ag__.converted_call(ag__.ld(optimizer).apply_gradients)
  File "/env/lib/python3.11/site-packages/tf_hvd/keras/guard.py", line 54, in before_update
    raise GuardError(text)
tf_hvd.training.guard.GuardError: in user code:

    File "t.py", line 23, in step  *
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    File "/env/lib/python3.11/site-packages/tf_hvd/keras/guard.py", line 54, in before_update
        raise GuardError(text)

    GuardError: this job has 2 ranks

"""
UNREADABLE = """  File "/data/t.py", line 3
    for
       ^
SyntaxError: invalid syntax
"""


@pytest.mark.parametrize(
    ("printed", "error", "place"),
    [
        (
            INIT,
            "FailedPreconditionError: tf_hvd has not been initialized; call hvd.init() first",
            "t.py, line 9, in <module>",
        ),
        (CONVERTED, "GuardError: this job has 2 ranks", "t.py, line 23, in step"),
        (UNREADABLE, "SyntaxError: invalid syntax", "/data/t.py, line 3"),
    ],
    ids=["before-init", "autograph", "syntax"],
)
def test_error_and_place_of_a_traceback(printed, error, place):
    """The message was "its last line is '...FailedPreconditionError: Graph execution error:'"."""
    shown = Shown()
    for rank in (0, 1):
        shown.add(rank, printed.replace("eda8r_aa", f"{rank}ab"))
    text = shown.all()
    assert text.endswith("[1] the same traceback as rank 0's\n")
    last = shown.screen.last_words[1]
    assert (last.text, last.place, last.raised) == (error, place, True)
    assert shown.screen.first_error == (0, error)


def last_words(printed):
    """The last words of a rank that printed this."""
    shown = Shown()
    shown.add(0, printed)
    shown.all()
    return shown.screen.last_words[0]


def test_exception_without_message_is_its_name():
    """Text printed after it by another thread was taken for its type."""
    raised = 'Traceback (most recent call last):\n  File "t.py", line 5, in <module>\n'
    warned = "/usr/lib/tracker.py:254: UserWarning: a leak\n"
    assert last_words(f"{raised}AssertionError\n{warned}").text == "AssertionError"


def test_users_line_is_not_in_keras():
    """tf_keras' own function was the only one marked as converted by AutoGraph."""
    marked = CONVERTED.replace(
        '"t.py", line 23', '"/env/site-packages/tf_keras/training.py", line 9'
    )
    printed = marked.replace('/env/lib/python3.11/site-packages/tf_hvd/keras/guard.py"', 'own.py"')
    assert last_words(printed).place == "own.py, line 54, in before_update"


def test_text_after_a_stack_is_not_the_last_line():
    stack = '  File "t.py", line 5, in f\n    here\n\nI0000 00:00:1 port.cc:153] on\n'
    assert last_words(f"ready\n{stack}").text == "here"


def test_frame_without_exception_is_not_an_exception():
    shown = Shown()
    shown.add(0, '  File "data.csv", line 3\nis empty\n')
    assert shown.all() == '  File "data.csv", line 3\nis empty\n'
    assert shown.screen.first_error is None


def test_tracebacks_that_differ_are_shown():
    shown = Shown()
    for rank in (0, 1):
        shown.add(rank, (TRACEBACK % 1).replace("line 5", f"line {5 + rank}"))
    assert shown.all().count("UnknownError") == 2


def test_chained_exceptions_are_complete():
    shown = Shown()
    chain = (
        f"{TRACEBACK % 1}\nDuring handling of the above exception, another exception occurred:\n\n"
        f"{TRACEBACK % 2}"
    )
    shown.add(0, chain)
    shown.add(1, chain)
    text = shown.all()
    assert text.count("UnknownError") == 2
    assert "[1] the same traceback as rank 0's" in text


def test_traceback_of_continuing_program_is_shown_soon():
    shown = Shown()
    shown.add(0, TRACEBACK % 1, 0.0)
    assert shown.screen.tick(0.3)
    assert shown.text == ""
    shown.screen.tick(0.5)
    assert "UnknownError" in shown.text
    for at in range(20):  # and one that keeps talking
        shown.add(1, TRACEBACK.replace("line 5", "line 6") % 1 if at == 0 else "more\n", at / 4)
        shown.screen.tick(at / 4)
    assert shown.text.count("UnknownError") == 2


def started(number, rank):
    """A line that TensorFlow prints at a rank's start."""
    return (
        f"I0000 00:00:17960306{rank}9.869344    499{rank} port.cc:{number}] on\n",
        f"2026-11-30 09:27:3{rank}.123456: I tensorflow/core/guard.cc:{number}] is optimized\n",
        "To enable the following instructions: AVX2, in other operations, rebuild TensorFlow.\n",
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n",
    )[number % 4]


START = [started(number, 0) for number in range(4)]


def test_tensorflows_start_lines_are_shown_once():
    """TensorFlow prints four lines per rank with any setting. Rank 3 is on another machine."""
    shown = Shown(ranks=4)
    for number in range(4):
        for rank in (2, 0, 3, 1):
            line, at = started(number, rank), number + rank / 10
            shown.add(*((None, f"[1,3]<stderr>: {line}") if rank == 3 else (rank, line)), at)
    stamped = [started(number, 2) for number in range(4)]
    assert shown.text == "".join(f"[ranks 0-3] {line}" for line in stamped)
    assert not shown.screen.tick(3.4), "lines that all ranks have printed are forgotten"
    assert shown.all() == shown.text
    assert shown.screen.last_words == {}


def test_log_line_waits_five_seconds_for_other_ranks():
    shown = Shown(ranks=3)
    shown.add(0, START[0])
    shown.add(2, started(0, 2), 4.0)
    assert shown.screen.tick(4.9)
    assert shown.text == ""
    shown.screen.tick(5.0)
    assert shown.text == f"[ranks 0, 2] {START[0]}"
    shown.add(1, started(0, 1), 5.1)  # not within 5 s of the first
    assert shown.all() == f"[ranks 0, 2] {START[0]}[1] {started(0, 1)}"
    assert not shown.screen.tick(5.2)


def test_program_lines_are_shown_immediately():
    """It is shown after its rank's log lines. Later repetitions by other ranks are counted."""
    shown = Shown(ranks=3)
    shown.add(0, START[0] + START[1] + "loading\n")
    assert shown.text == f"{START[0]}{START[1]}loading\n"
    for rank in (1, 2):
        shown.add(rank, started(0, rank) + started(1, rank), 0.2)
    assert shown.screen.tick(1.1)
    assert "same" not in shown.text
    shown.screen.tick(1.3)
    told = "the same 2 lines as rank 0's\n"
    assert shown.text.endswith(f"loading\n[ranks 1-2] {told}")
    shown.add(0, "done\n", 1.4)
    assert shown.all().endswith(f"{told}[0] done\n")


@pytest.mark.parametrize("said", ["Name? ", "10%\r", TRACEBACK % 0], ids=["prompt", "bar", "raise"])
def test_other_output_comes_after_log_lines(said):
    shown = Shown(ranks=2)
    shown.add(0, START[0] + said)
    shown.screen.tick(0.5)
    assert shown.text.startswith(START[0] + said)
    shown.add(1, started(0, 1) + (TRACEBACK % 1), 0.6)
    text = shown.all()
    assert text.count("port.cc") == 1
    assert "[1] the same line as rank 0's\n" in text


def test_different_log_lines_do_not_separate_equal_ones():
    """For example lines about two GPUs, or with addresses."""
    shown = Shown(ranks=2)
    for rank in (0, 1):
        device = f"I0000 00:00:1.5 1 gpu.cc:9] GPU:{rank} has 139000 MB\n"
        service = f"I0000 00:00:1.5 1 xla.cc:7] service 0x7f{rank} is there\n"
        node = "\t [[{{node IteratorGetNext}}]]\n"  # the second line of a message
        shown.add(rank, device + service + started(1, rank) + node, rank)
    text = shown.all()
    assert text.count("has 139000 MB") == 2
    assert text.count("[ranks 0-1] ") == 3


def warned(text, path="/a/train.py"):
    return f"{path}:3: UserWarning: {text}\n  warnings.warn(\n"


def test_equal_warnings_are_shown_once():
    """Keras' warning about shuffle=True was shown for each rank."""
    shown = Shown(ranks=3)
    for rank in (0, 2, 1):
        shown.add(rank, warned("no shuffle"), rank / 10)
    first, second = warned("no shuffle").splitlines()
    assert shown.text == f"[ranks 0-2] {first}\n[ranks 0-2] {second}\n"
    assert shown.all() == shown.text


def test_line_below_a_warning_stays_with_it():
    shown = Shown(ranks=3)
    first, second = [warned(text).splitlines(keepends=True) for text in ("one", "two")]
    shown.add(0, first[0])
    shown.add(1, second[0])
    shown.add(0, first[1])
    shown.add(1, second[1] + "  indented\n")
    lines = [line.partition("] ")[2] or line for line in shown.all().splitlines(keepends=True)]
    assert lines[lines.index(first[0]) + 1] == first[1]
    assert lines[lines.index(second[0]) + 1] == second[1]
    assert lines.count("  indented\n") == 1


def test_single_rank_shows_log_lines_immediately():
    shown = Shown(ranks=1)
    shown.add(0, START[0])
    assert shown.text == START[0]


def test_many_log_lines_are_not_remembered():
    shown = Shown(ranks=2)
    for number in range(1000):
        shown.add(0, f"W0000 00:00:1.5 1 a.cc:1] retry {number}\n")
    assert shown.text.count("retry") > 800
    assert shown.all().count("retry") == 1000


SPEECH = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("abc.."), st.floats(0, 3)), max_size=40
)


def said_by_each(text):
    """The kinds of a screen's lines by rank; None for a line that is only counted."""
    told = {rank: [] for rank in range(3)}
    for line in text.splitlines():
        who, text = re.fullmatch(r"\[(?:ranks )?([\d, -]+)\] (.*)", line).groups()
        same = re.fullmatch(r"the same (?:(\d+) lines|line) as rank \d's", text)
        kinds = [None] * int(same[1] or 1) if same else [text.rpartition(" ")[2]]
        for part in who.split(", "):
            first, _, last = part.partition("-")
            for rank in range(int(first), int(last or first) + 1):
                told[rank] += kinds
    return told


@given(SPEECH, st.sampled_from([0, 2, 3]))
def test_no_log_line_is_lost_or_repeated(events, ranks):
    """Each rank's lines are shown in order, or counted as repetitions."""
    shown, now, said = Shown(ranks=ranks), 0.0, {rank: [] for rank in range(3)}
    for rank in range(3):
        shown.add(rank, "begins\n")
    for number, (rank, kind, passed) in enumerate(events):
        now += passed
        shown.screen.tick(now)
        line = str(number) if kind == "." else f"I0000 00:00:{number}.5 {rank} a.cc:1] {kind}"
        shown.add(rank, f"{line}\n", now)
        said[rank].append(line.rpartition(" ")[2])
    marked = "".join(shown.all().splitlines(keepends=True)[3:])
    told = said_by_each(marked)
    for rank in range(3):
        assert len(told[rank]) == len(said[rank])
        for have, want in zip(told[rank], said[rank], strict=True):
            assert have == want or (have is None and want in "abc")
    assert not shown.screen.tick(now)


PRRTE = """--------------------------------------------------------------------------
prterun noticed that process rank 1 with PID 7 on node a exited on
signal 9 (Killed).
--------------------------------------------------------------------------
"""


@pytest.mark.parametrize("saying", ["noticed that process rank", "has exited due to process rank"])
def test_launchers_banner_is_held_back(saying):
    for banners in (False, True):
        shown = Shown(banners=banners)
        banner = PRRTE.replace("noticed that process rank", saying)
        shown.add(None, f"a warning of Open MPI\n{banner}")
        shown.add(None, PRRTE.replace("noticed that process rank", "cannot find the program"))
        text = shown.all()
        assert "a warning of Open MPI" in text
        assert "cannot find the program" in text
        assert (saying in text) is banners
        assert ("".join(f"{line}\n" for line in shown.screen.banner) == banner) is not banners


def on_screen(write, before=""):
    """Takes the output of rank 0 while a line of rank 1 is unfinished."""
    screen = Screen(write)
    screen.add(1, "rank 1 asks ", 0.0)
    screen.tick(1.0)
    screen.add(0, before, 1.0)
    return lambda piece: screen.add(0, piece.decode(), 1.0)


def from_launcher(write):
    """Takes the output of a rank through the launcher, as in a notebook's cell."""
    screen = Screen(write)
    screen.add(None, "[1,0]<stderr>: ", 0.0)
    return lambda piece: screen.add(None, piece.decode(), 1.0)


USERS = {
    "screen": on_screen,
    "traceback": lambda write: on_screen(write, TRACEBACK % 0),
    "launcher": from_launcher,
    "rank": lambda write: Copy(1, "[1,0]<stdout>: ", None, timestamps=False).take,
}


@pytest.mark.parametrize("user", USERS)
def test_unfinished_line_is_not_buffered_without_limit(user, monkeypatch):
    """The whole line was kept and parsed again with each piece: 20 MB took minutes."""
    given, handed, shown = 0, 0, []
    monkeypatch.setattr(Writer, "write", lambda _, to, data: shown.append(data))
    take = USERS[user](shown.append)
    shown.clear()
    for size in [100] * 5000 + [1 << 16] * 500:
        take(b"z" * size)
        given += size
        handed += sum(map(len, shown))
        shown.clear()
        assert given - (1 << 18) <= handed <= 1.01 * given + 1000


EVENTS = st.lists(
    st.tuples(
        st.sampled_from([None, 0, 1, 2]),
        st.sampled_from(["", "\r", "\n", "\n---------------------\n"]),
        st.floats(0, 0.3),
    ),
    max_size=30,
)


@given(EVENTS)
def test_no_finished_line_is_lost(events):
    """With any order and pauses of output, each line's end is shown once and in order."""
    shown, now, said = Shown(), 0.0, {}
    for number, (who, end, passed) in enumerate(events):
        now += passed
        shown.screen.tick(now)
        shown.add(who, f"<{number}>{end}", now)
        said[who] = f"{said.get(who, '')}<{number}>{end}"
    shown.all()
    assert not shown.screen.tick(now)
    for text in said.values():
        wanted = [
            word
            for line in text.split("\n")
            for word in re.findall(r"<\d+>", line.rpartition("\r")[2])
        ]
        assert [word for word in re.findall(r"<\d+>", shown.text) if word in wanted] == wanted


def test_refused_start_leaves_no_open_files():
    """Each refused start of an elastic job left four open files."""
    gc.collect()
    before = os.listdir("/proc/self/fd")
    with Terminal():
        pass
    gc.collect()  # closes the objects that wait for the pipes
    assert os.listdir("/proc/self/fd") == before


def test_all_output_is_shown_at_the_end(capfd, monkeypatch):
    """Also if a process still holds the pipes, or the launcher marks lines of other machines."""
    # The banner arrives in two pieces.
    monkeypatch.setattr("tf_hvd.launch.job.terminal.UNFINISHED", 60.0)
    terminal = Terminal()
    launcher, output = terminal.errors(None), terminal.output("mpich")
    terminal.serve()
    ranks = [terminal.errors(number) for number in range(3)]

    def speak(number):
        for step in range(500):
            os.write(ranks[number], f"rank {number} at {step}\n".encode())

    speakers = [threading.Thread(target=speak, args=(number,)) for number in range(3)]
    for speaker in speakers:
        speaker.start()
    os.write(launcher, b"[1,7]<stderr>: from another machine\nits own words\n")
    banner = (
        b"\n" + b"=" * 83 + b"\n=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n= x\n"
    )
    for piece in (b"said\n\n==", b"= not it\nend", banner[:40], banner[40:]):
        os.write(output, piece)
    for speaker in speakers:
        speaker.join()
    terminal.finish()
    out, errors = capfd.readouterr()
    assert out == "said\n\n=== not it\nend"
    assert terminal.heard.banner[2].startswith("=   BAD TERMINATION")
    lines = errors.splitlines()
    for number in range(3):
        own = [line.removeprefix(f"[{number}] ") for line in lines if f"rank {number} " in line]
        assert own == [f"rank {number} at {step}" for step in range(500)]
    # Marked, unless it was the first line.
    assert "from another machine" in [line.removeprefix("[7] ") for line in lines]
    assert "its own words" in lines
    for each in (launcher, output, *ranks):
        os.close(each)


def test_slow_reader_delays_no_errors_and_loses_nothing(capfd, monkeypatch):
    """Output not read 5 s after the launcher's end was lost, and errors waited for the reader."""
    reads, got, whole = threading.Event(), [], Writer.write

    def write(writer, to, data):
        if to == 1:
            reads.wait()
            got.append(data)
        else:
            whole(writer, to, data)

    monkeypatch.setattr(Writer, "write", write)
    monkeypatch.setattr("tf_hvd.launch.job.terminal._LAST_WORDS", 0.0)
    terminal = Terminal()
    output, errors = terminal.output("openmpi"), terminal.errors(0)
    terminal.serve()
    os.write(output, b"x")
    os.write(errors, b"wrong\n")
    os.close(output)
    os.close(errors)
    said = ""
    while "wrong" not in said:
        said += capfd.readouterr().err
    ended = threading.Thread(target=terminal.finish)
    ended.start()
    ended.join(0.5)
    assert ended.is_alive()
    reads.set()
    ended.join()
    assert b"".join(got) == b"x"
