"""The files that `tf_hvd timeline` reads, and files that it refuses to combine."""

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
    """Writes a rank's timeline with calls every 10 ms, at about the same time on all ranks."""
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
    """The order of calls, by rank."""
    return {
        trace.rank: [span.values["order"] for span in trace.spans["agreement"]] for trace in traces
    }


@pytest.mark.parametrize("named", ["a.json", "a.rank-1.json"])
def test_any_ranks_file_selects_all(folder, named):
    for rank, name in enumerate(["a.json", "a.rank-1.json"]):
        write(folder / name, rank)
    write(folder / "a.restart-1.json", 0, start=10_000_000)
    write(folder / "a.rank-1.copy.json", 1)
    write(folder / "b.json", 0)
    assert list(orders_of(timeline.read_all([named]))) == [0, 1]


@pytest.mark.parametrize("named", ["a.json", "a.rank-1.before.json"])
def test_file_continues_its_full_predecessor(folder, named):
    for rank, name in enumerate(["a", "a.rank-1"]):
        write(folder / f"{name}.before.json", rank, calls=range(1, 4))
        write(folder / f"{name}.json", rank, calls=range(4, 7))
    assert orders_of(timeline.read_all([named])) == {rank: [*range(1, 7)] for rank in (0, 1)}
    names = ["a.json", "a.rank-1.json", "a.before.json"]
    assert orders_of(timeline.read_all(names)) == {0: [*range(1, 7)], 1: [*range(4, 7)]}


def test_files_of_a_larger_old_job_are_skipped(folder, capsys):
    for rank, name in enumerate(["a.json", "a.rank-1.json", "a.rank-2.json"]):
        write(folder / name, rank, size=3)
    for rank, name in enumerate(["a.json", "a.rank-1.json"]):
        write(folder / name, rank)
    assert list(orders_of(timeline.read_all(["a.json"]))) == [0, 1]
    assert "skipped a.rank-2.json: it and a.json are from different jobs" in capsys.readouterr().err


def test_files_of_an_earlier_job_are_skipped(folder, capsys):
    """For example if only rank 0 was traced the second time."""
    for rank, name in enumerate(["a.json", "a.rank-1.json"]):
        write(folder / name, rank)
    write(folder / "a.json", 0, start=60_000_000)
    assert list(orders_of(timeline.read_all(["a.json"]))) == [0]
    assert "skipped a.rank-1.json" in capsys.readouterr().err


def test_files_of_two_jobs_are_refused(folder):
    write(folder / "a.json", 0)
    write(folder / "b.json", 1, start=60_000_000)
    with pytest.raises(UsageError, match=r"a\.json and b\.json are not from the same job"):
        timeline.read_all(["a.json", "b.json"])


def test_two_files_of_a_rank_are_refused(folder):
    write(folder / "a.json", 0)
    write(folder / "b.json", 0)
    with pytest.raises(UsageError, match=r"a\.json and b\.json are both from rank 0"):
        timeline.read_all(["a.json", "b.json"])


def test_one_file_of_two_starts_is_refused(folder):
    write(folder / "a.json", 0)
    first = (folder / "a.json").read_text()
    write(folder / "a.json", 0, start=60_000_000, process=200)
    (folder / "all.json").write_text(first + (folder / "a.json").read_text())
    with pytest.raises(UsageError, match=r"all\.json contains several timelines for rank 0"):
        timeline.read_all(["all.json"])


@pytest.fixture
def says(capsys):
    """Runs `tf_hvd timeline` in this process; returns its exit code and output."""

    def run(*words):
        capsys.readouterr()
        try:
            code = main.main(["timeline", *words])
        except SystemExit as error:
            code = error.code
        return code, *capsys.readouterr()

    return run


def refusal(says, *words):
    """The error line of a refused command."""
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
        (lambda path: sparse(path, 3 << 30), "a.rank-1.json is not a timeline that tf_hvd wrote"),
        (lambda path: path.write_text(""), "a.rank-1.json is empty"),
        (lambda path: path.write_text("no\n" * 20_000), "a.rank-1.json is not a timeline"),
        (lambda path: path.write_text("[" * 60_000), "a.rank-1.json is not a timeline"),
    ],
)
def test_timeline_files(folder, says, make, text):
    """The command hung at a pipe, and a device or a sparse file took all memory."""
    write(folder / "a.json", 0)
    make(folder / "a.rank-1.json")
    assert text in refusal(says, "a.json")


def sparse(path, size):
    path.touch()
    os.truncate(path, size)


def test_out_of_memory_is_an_error(folder, says, monkeypatch):
    def report(traces):
        raise MemoryError

    write(folder / "a.json", 0)
    monkeypatch.setattr(step_report, "report", report)
    assert "not enough memory for the timelines" in refusal(says, "a.json")


def test_valid_lines_of_a_damaged_file_count(folder, says):
    """Deep JSON, a split line, invalid numbers; then a hole, which is not read."""
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
    assert "a.json has 5 damaged lines, which were skipped." in output
    assert "a.json ends in the middle of a line" in output


def test_truncated_file_is_reported(folder, says):
    """The report claimed that rank 0 took no part."""
    for rank, name in enumerate(["a.json", "a.rank-1.json"]):
        write(folder / name, rank)
    lines = (folder / "a.json").read_text().splitlines(keepends=True)
    (folder / "a.json").write_text("".join(lines[:3]) + lines[3][:30])
    _, output, _ = says("a.json")
    assert output.startswith("5 steps of 2 ranks")
    assert "The timelines of rank 0 have no calls of these steps: they were truncated" in output
    assert "a.json ends in the middle of a line" in output
    assert "took no part" not in output
    (folder / "a.json").write_text("".join(lines[3:]))
    assert "a.json is not a timeline that tf_hvd wrote, or its beginning is missing" in (
        refusal(says, "a.json")
    )


def test_timeline_without_steps_is_explained(folder, says):
    write(folder / "a.json", 0, size=1, calls=())
    assert "The timelines contain no collectives, and therefore no steps" in says("a.json")[1]
    write(folder / "a.json", 0, size=1, calls=[1])
    assert "No collective is called twice, so there are no steps to analyze." in says("a.json")[1]


@pytest.mark.parametrize(
    ("kept", "calls", "start"),
    [
        (4, range(1, 7), 5000),  # calls with the same number
        (4, range(90, 99), -3_000_000),  # calls with earlier times than their predecessors
    ],
)
def test_two_jobs_with_one_file_are_refused(folder, says, kept, calls, start):
    """The jobs overwrite each other's events. The report had negative computation times."""
    write(folder / "a.json", 0, size=1, start=60_000_000)
    lines = (folder / "a.json").read_text().splitlines(keepends=True)
    write(folder / "a.json", 0, size=1, calls=calls, start=start + 60_000_000)
    others = (folder / "a.json").read_text().splitlines(keepends=True)[3:]
    (folder / "a.json").write_text("".join(lines[: 3 + kept] + others))
    assert "a.json has calls of more than one job" in refusal(says, "a.json")


def test_predecessor_of_another_job_is_skipped(folder, says):
    write(folder / "a.before.json", 0, size=1, calls=range(1, 4), process=7)
    write(folder / "a.json", 0, size=1, calls=range(4, 7))
    code, output, errors = says("a.json")
    assert code == 0
    assert output.startswith("2 steps of 1 rank")
    assert "skipped a.before.json: it and a.json are from different jobs" in errors


def test_html_page_is_written(folder, says):
    write(folder / "a.json", 0, size=1)
    (folder / "a.html").symlink_to("elsewhere")
    assert "a.html is a symbolic link, not a file" in refusal(says, "a.json", "--html", "a.html")
    code, _, errors = says("a.json", "--html", "b.html")
    assert (code, errors) == (0, "wrote b.html\n")
    assert (folder / "b.html").read_text().startswith("<!doctype html>")


def test_html_page_does_not_replace_a_timeline(folder, call, environ):
    write(folder / "a.json", 0)
    before = (folder / "a.json").read_bytes()
    code, _, errors = call("timeline", "a.json", "--html", "./a.json", environ=environ)
    assert code == 2
    assert "--html a.json would replace a timeline; pass another path" in errors
    assert (folder / "a.json").read_bytes() == before


def test_relative_paths_start_at_the_jobs_folder(folder, call, environ):
    program = "import os; os.chdir('/'); import tf_hvd as hvd; hvd.init(); hvd.barrier()"
    files = ["--timeline", "a.json", "--metrics", "a.prom"]
    command = ["run", "-np", "1", *files, sys.executable, "-c", program]
    code, _, errors = call(*command, environ=environ)
    assert code == 0, errors
    assert {"a.json", "a.prom"} <= {each.name for each in folder.iterdir()}


def test_folder_is_refused_as_a_file(folder, call, environ):
    code, _, errors = call("run", "-np", "1", "--timeline", ".", "true", environ=environ)
    assert code == 2
    assert "--timeline . is a folder, not a file; give another path" in errors


@pytest.mark.parametrize("option", ["--timeline", "--metrics"])
def test_timeline_fifo(folder, capsys, option):
    os.mkfifo("pipe.json")
    os.symlink("elsewhere/a.json", "link.json")
    for name, kind in (("pipe.json", "pipe"), ("link.json", "symbolic link")):
        with pytest.raises(SystemExit):
            main.main(["run", "-np", "1", option, name, "true"])
        errors = capsys.readouterr().err
        assert f"{option} {name} is a {kind}, not a file; give another path" in errors


def test_closed_output_of_timeline(folder, start, environ):
    write(folder / "a.json", 0, calls=range(1, 2000))
    process = start("timeline", "--json", "a.json", environ=environ)
    process.stdout.close()
    assert process.wait(timeout=300) == 128 + signal.SIGPIPE
    assert process.stderr.read() == ""


def test_negative_times(folder):
    """For a rank on a machine with a longer uptime than rank 0's, the file was not JSON."""
    write(folder / "a.json", 0, size=1, start=-100_000)
    (trace,) = timeline.read_all(["a.json"])
    assert next(span.begin for span in trace.spans["agreement"]) == -89_999_500
