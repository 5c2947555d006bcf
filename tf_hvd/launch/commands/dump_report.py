"""`tf_hvd doctor DUMP`: what went wrong in a job, as a page and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from tf_hvd.core.ranks_text import named
from tf_hvd.launch.errors import UsageError
from tf_hvd.observe import failure
from tf_hvd.observe.recording import FAILED, THROUGH, Dump, Recording, RecordingError, read

_OTHERS = 5


def show(folder: Path, as_json: bool) -> int:
    """Prints it; returns the exit code.

    Raises:
        UsageError: there are no recordings that can be read.
    """
    try:
        dump = read(folder)
    except OSError as error:
        raise UsageError(f"{error.filename}: {error.strerror}") from error
    except RecordingError as error:
        raise UsageError(str(error)) from error
    recordings = failure.of_one_job(dump.recordings, dump.first)
    found = failure.explain(recordings, dump.first, dump.codes)
    if as_json:
        print(json.dumps(_report(recordings, found), indent=2))
    else:
        print("\n".join([*_page(recordings, found), *dump.faults, *_about_others(dump)]))
    return 0


def _about_others(dump: Dump) -> list[str]:
    """Which of several jobs it is."""
    if not dump.others:
        return []
    more = ", ".join(each.name for each in dump.others[:_OTHERS])
    more += ", ..." if len(dump.others) > _OTHERS else ""
    jobs = f"{len(dump.others)} other job" + "s" * (len(dump.others) > 1)
    return ["", f"this is {dump.folder}, which began last; beside it: {jobs} ({more})"]


def _report(recordings: Sequence[Recording], found: failure.Failure) -> dict[str, object]:
    ranks = [dataclasses.asdict(one) for one in recordings]
    return {**dataclasses.asdict(found), "recordings": ranks}


def _page(recordings: Sequence[Recording], found: failure.Failure) -> list[str]:
    lines = [found.sentence, ""]
    width = max((len(row.title) for row in found.rows), default=0)
    for row in found.rows:
        place = f"{row.order or '-':>8}"
        states = "; ".join(f"{state}: {_ranks(row.ranks[state])}" for state in row.ranks)
        lines.append(f"{place}  {row.title:{width}}  {states}")
    if found.rows:
        lines.append("")
    lines += [_about(one) for one in recordings]
    size = max(one.size for one in recordings)
    missing = sorted(set(range(size)) - {one.rank for one in recordings})
    if missing:
        lines.append(f"no recording of {named(missing)}")
    return lines


def _ranks(ranks: Sequence[int]) -> str:
    return named(ranks).partition(" ")[2]


def _about(one: Recording) -> str:
    """A rank in a line."""
    how = {THROUGH: "left", FAILED: "failed"}.get(one.state, "never left")
    when = f" at {_time(one.left)}" if one.left else ""
    why = f": {one.reason}" if one.reason else ""
    text = (
        f"rank {one.rank} ({one.host}, process {one.process}): {one.made} calls; {how}{when}{why}"
    )
    told = one.lost_call and one.ended not in one.reason
    return text + (f"; was told: {one.ended}" if told else "")


def _time(moment: int) -> str:
    return datetime.fromtimestamp(moment / 1e9).strftime("%H:%M:%S.%f")[:-3]
