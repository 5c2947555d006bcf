"""Which files `tf_hvd timeline` reads, and which it does not take together."""

import json
import signal
import sys

import pytest

from tf_hvd.launch.commands import timeline
from tf_hvd.launch.errors import UsageError


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
    assert "--timeline . is a folder: name a file in it" in errors


def test_a_reader_may_have_seen_enough(folder, start, environ):
    write(folder / "a.json", 0, calls=range(1, 2000))
    process = start("timeline", "--json", "a.json", environ=environ)
    process.stdout.close()
    assert process.wait(timeout=300) == 128 + signal.SIGPIPE
    assert process.stderr.read() == ""
