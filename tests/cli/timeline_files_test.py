"""Which files `tf_hvd timeline` reads, and which it does not take together."""

import json
import os
import signal
import sys

import pytest

from tf_hvd.launch.commands import main, timeline
from tf_hvd.launch.errors import UsageError
from tf_hvd.observe import step_report

pytestmark = pytest.mark.one_mpi


def write(path, rank, size=2, calls=range(1, 7), start=0, process=0):
    """A rank's timeline: calls every 10 ms, which all ranks make at about the same time."""
    head = {"size": size, "host": "h", "process": process or 100 + rank}
    events = [
        {"ph": "M", "name": "tf_hvd", "args": head},
        {"ph": "M", "name": "thread_name", "tid": 1, "args": {"name": "agreement"}},
    ]
    for order in calls:
        values = {"set": 0, "order": order, "bytes": 8, "tensors": 1, "operation": order}
        at = start + 10_000 * order + rank + 0.5
        events.append({"ph": "X", "name": "x", "tid": 1, "ts": at, "dur": 20.5, "args": values})
    lines = [json.dumps({"pid": rank, **event}) + ",\n" for event in events]
    path.write_text("[\n" + "".join(lines))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def orders_of(traces):
    """By rank."""
    return {
        trace.rank: [span.values["order"] for span in trace.spans["agreement"]] for trace in traces
    }


@pytest.mark.parametrize("named", ["a.json", "a.rank-1.json"])
def test_any_ranks_file_stands_for_all(folder, named):
    for rank, name in enumerate(["a.json", "a.rank-1.json"]):
        write(folder / name, rank)
    write(folder / "a.restart-1.json", 0, start=10_000_000)
    write(folder / "a.rank-1.copy.json", 1)
    write(folder / "b.json", 0)
    assert list(orders_of(timeline.read_all([named]))) == [0, 1]


@pytest.mark.parametrize("named", ["a.json", "a.rank-1.before.json"])
def test_a_file_goes_on_where_the_one_before_was_full(folder, named):
    for rank, name in enumerate(["a", "a.rank-1"]):
        write(folder / f"{name}.before.json", rank, calls=range(1, 4))
        write(folder / f"{name}.json", rank, calls=range(4, 7))
    assert orders_of(timeline.read_all([named])) == {rank: [*range(1, 7)] for rank in (0, 1)}
    names = ["a.json", "a.rank-1.json", "a.before.json"]
    assert orders_of(timeline.read_all(names)) == {0: [*range(1, 7)], 1: [*range(4, 7)]}


def test_what_is_left_of_a_larger_job_is_left_out(folder, capsys):
    for rank, name in enumerate(["a.json", "a.rank-1.json", "a.rank-2.json"]):
        write(folder / name, rank, size=3)
    for rank, name in enumerate(["a.json", "a.rank-1.json"]):
        write(folder / name, rank)
    assert list(orders_of(timeline.read_all(["a.json"]))) == [0, 1]
    assert "left out: a.rank-2.json is of another job than a.json" in capsys.readouterr().err


def test_what_is_left_of_an_earlier_job_is_left_out(folder, capsys):
    """As where only rank 0 was traced the second time."""
    for rank, name in enumerate(["a.json", "a.rank-1.json"]):
        write(folder / name, rank)
    write(folder / "a.json", 0, start=60_000_000)
    assert list(orders_of(timeline.read_all(["a.json"]))) == [0]
    assert "left out: a.rank-1.json" in capsys.readouterr().err


def test_files_of_two_jobs_are_refused(folder):
    write(folder / "a.json", 0)
    write(folder / "b.json", 1, start=60_000_000)
    with pytest.raises(UsageError, match=r"a\.json and b\.json are not of the same job"):
        timeline.read_all(["a.json", "b.json"])


def test_two_files_of_a_rank_are_refused(folder):
    write(folder / "a.json", 0)
    write(folder / "b.json", 0)
    with pytest.raises(UsageError, match=r"a\.json and b\.json are both of rank 0"):
        timeline.read_all(["a.json", "b.json"])


def test_one_file_of_two_starts_is_refused(folder):
    write(folder / "a.json", 0)
    first = (folder / "a.json").read_text()
    write(folder / "a.json", 0, start=60_000_000, process=200)
    (folder / "all.json").write_text(first + (folder / "a.json").read_text())
    with pytest.raises(UsageError, match=r"all\.json has several timelines of rank 0"):
        timeline.read_all(["all.json"])


@pytest.fixture
def says(capsys):
    """Runs `tf_hvd timeline` in this process: its exit code, and what it printed."""

    def run(*words):
        capsys.readouterr()
        try:
            code = main.main(["timeline", *words])
        except SystemExit as error:
            code = error.code
        return code, *capsys.readouterr()

    return run


def refusal(says, *words):
    """The one line that a refusal ends with."""
    code, output, errors = says(*words)
    assert (code, output) == (2, "")
    return errors.splitlines()[-1]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (os.mkfifo, "a.rank-1.json is a pipe, not a file"),
        (os.mkdir, "a.rank-1.json is a folder, not a file"),
        (lambda path: os.symlink("/dev/zero", path), "a.rank-1.json is a device, not a file"),
        (lambda path: sparse(path, 30 << 30), "a.rank-1.json is 32.2 GB; at most 4 GB are read"),
        (lambda path: sparse(path, 3 << 30), "a.rank-1.json is not a timeline that tf_hvd has"),
        (lambda path: path.write_text(""), "a.rank-1.json is empty"),
        (lambda path: path.write_text("no\n" * 20_000), "a.rank-1.json is not a timeline"),
        (lambda path: path.write_text("[" * 60_000), "a.rank-1.json is not a timeline"),
    ],
)
def test_timeline_files(folder, says, make, text):
    """A pipe hung the command, and a device or a hole took all memory."""
    write(folder / "a.json", 0)
    make(folder / "a.rank-1.json")
    assert text in refusal(says, "a.json")


def sparse(path, size):
    path.touch()
    os.truncate(path, size)


def test_what_memory_does_not_hold_is_refused(folder, says, monkeypatch):
    def report(traces):
        raise MemoryError

    write(folder / "a.json", 0)
    monkeypatch.setattr(step_report, "report", report)
    assert "there is not enough memory for the timelines" in refusal(says, "a.json")


def test_what_is_whole_of_a_file_counts(folder, says):
    """Deep JSON, a line cut in two, numbers that are none; then a hole, which is not read."""
    for rank, name in enumerate(["a.json", "a.rank-1.json"]):
        write(folder / name, rank)
    head, *calls = (folder / "a.json").read_text().splitlines(keepends=True)
    wrong = [
        "[" * 60_000 + "\n",
        calls[3][:40] + "\n",
        calls[3].replace('"order": ', '"order": 9e'),
        calls[3].replace('"dur": ', '"dur": -'),
        calls[3].replace('"pid": 0', '"pid": [0]'),
    ]
    (folder / "a.json").write_text("".join([head, *calls[:4], *wrong, *calls[4:]]))
    os.truncate(folder / "a.json", 3 << 30)
    code, output, _ = says("a.json")
    assert code == 0
    assert output.startswith("5 steps of 2 ranks")
    assert "a.json has 5 lines that cannot be read." in output
    assert "a.json ends in the middle of a line" in output


def test_a_file_that_was_cut_says_so(folder, says):
    """It said that rank 0 took no part."""
    for rank, name in enumerate(["a.json", "a.rank-1.json"]):
        write(folder / name, rank)
    lines = (folder / "a.json").read_text().splitlines(keepends=True)
    (folder / "a.json").write_text("".join(lines[:3]) + lines[3][:30])
    _, output, _ = says("a.json")
    assert output.startswith("5 steps of 2 ranks")
    assert "No calls of these steps in the timelines of rank 0: they were cut" in output
    assert "a.json ends in the middle of a line" in output
    assert "took no part" not in output
    (folder / "a.json").write_text("".join(lines[3:]))
    assert "a.json is not a timeline that tf_hvd has written, or was cut at its beginning" in (
        refusal(says, "a.json")
    )


def test_a_timeline_without_steps_says_why(folder, says):
    write(folder / "a.json", 0, size=1, calls=())
    assert "The timelines have no collective calls, and so no steps" in says("a.json")[1]
    write(folder / "a.json", 0, size=1, calls=[1])
    assert "No call comes twice: there are no steps to look at." in says("a.json")[1]


@pytest.mark.parametrize(
    ("kept", "calls", "start"),
    [
        (4, range(1, 7), 5000),  # calls with the same number
        (4, range(90, 99), -3_000_000),  # calls that come before those before them
    ],
)
def test_two_jobs_with_one_file_are_refused(folder, says, kept, calls, start):
    """Each writes over what the other has written. Of such a file computing took less than 0 s."""
    write(folder / "a.json", 0, size=1, start=60_000_000)
    lines = (folder / "a.json").read_text().splitlines(keepends=True)
    write(folder / "a.json", 0, size=1, calls=calls, start=start + 60_000_000)
    others = (folder / "a.json").read_text().splitlines(keepends=True)[3:]
    (folder / "a.json").write_text("".join(lines[: 3 + kept] + others))
    assert "a.json has calls that are not of one job" in refusal(says, "a.json")


def test_a_file_before_of_another_job_is_left_out(folder, says):
    write(folder / "a.before.json", 0, size=1, calls=range(1, 4), process=7)
    write(folder / "a.json", 0, size=1, calls=range(4, 7))
    code, output, errors = says("a.json")
    assert code == 0
    assert output.startswith("2 steps of 1 rank")
    assert "left out: a.before.json is of another job than a.json" in errors


def test_a_page_is_written_and_named(folder, says):
    write(folder / "a.json", 0, size=1)
    (folder / "a.html").symlink_to("elsewhere")
    assert "a.html is a symbolic link, not a file" in refusal(says, "a.json", "--html", "a.html")
    code, _, errors = says("a.json", "--html", "b.html")
    assert (code, errors) == (0, "wrote b.html\n")
    assert (folder / "b.html").read_text().startswith("<!doctype html>")


def test_a_page_does_not_replace_a_timeline(folder, call, environ):
    write(folder / "a.json", 0)
    before = (folder / "a.json").read_bytes()
    code, _, errors = call("timeline", "a.json", "--html", "./a.json", environ=environ)
    assert code == 2
    assert "--html a.json would replace one of the timelines" in errors
    assert (folder / "a.json").read_bytes() == before


def test_a_relative_name_is_meant_from_where_the_job_is_started(folder, call, environ):
    program = "import os; os.chdir('/'); import tf_hvd as hvd; hvd.init(); hvd.barrier()"
    files = ["--timeline", "a.json", "--metrics", "a.prom"]
    command = ["run", "-np", "1", *files, sys.executable, "-c", program]
    code, _, errors = call(*command, environ=environ)
    assert code == 0, errors
    assert {"a.json", "a.prom"} <= {each.name for each in folder.iterdir()}


def test_a_folder_is_no_name_of_a_file(folder, call, environ):
    code, _, errors = call("run", "-np", "1", "--timeline", ".", "true", environ=environ)
    assert code == 2
    assert "--timeline . is a folder, not a file; name another" in errors


@pytest.mark.parametrize("option", ["--timeline", "--metrics"])
def test_timeline_fifo(folder, capsys, option):
    os.mkfifo("pipe.json")
    os.symlink("elsewhere/a.json", "link.json")
    for name, kind in (("pipe.json", "pipe"), ("link.json", "symbolic link")):
        with pytest.raises(SystemExit):
            main.main(["run", "-np", "1", option, name, "true"])
        errors = capsys.readouterr().err
        assert f"{option} {name} is a {kind}, not a file; name another" in errors


def test_a_reader_may_have_seen_enough(folder, start, environ):
    write(folder / "a.json", 0, calls=range(1, 2000))
    process = start("timeline", "--json", "a.json", environ=environ)
    process.stdout.close()
    assert process.wait(timeout=300) == 128 + signal.SIGPIPE
    assert process.stderr.read() == ""


def test_times_before_the_clock_began(folder):
    """Of a rank whose machine runs longer than rank 0's; the file was not JSON there."""
    write(folder / "a.json", 0, size=1, start=-100_000)
    (trace,) = timeline.read_all(["a.json"])
    assert next(span.begin for span in trace.spans["agreement"]) == -89_999_500
