"""`tf_hvd doctor DUMP`: what went wrong in a job, as a page and as JSON."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from tf_hvd.core.ranks_text import named
from tf_hvd.launch.errors import UsageError, reading
from tf_hvd.observe import failure
from tf_hvd.observe.recording import FAILED, THROUGH, Dump, Recording, RecordingError, read

_OTHERS = 5


def show(folder: Path, as_json: bool) -> int:
    """Prints it; returns the exit code.

    Raises:
        UsageError: there are no recordings that can be read.
    """
    dump, recordings, found = reading("the recordings", lambda: _explained(folder))
    if as_json:
        ranks = [dataclasses.asdict(one) for one in recordings]
        print(json.dumps({**dataclasses.asdict(found), "recordings": ranks}, indent=2))
    else:
        print("\n".join([*page(recordings, found), *dump.faults]))
    if dump.others and not as_json:
        more = ", ".join(each.name for each in dump.others[:_OTHERS])
        more += ", ..." if len(dump.others) > _OTHERS else ""
        jobs = f"{len(dump.others)} other job" + "s" * (len(dump.others) > 1)
        print(f"\nthis is {dump.folder}, which began last; beside it: {jobs} ({more})")
    return 0


def _explained(folder: Path) -> tuple[Dump, Sequence[Recording], failure.Failure]:
    try:
        dump = read(folder)
    except RecordingError as error:
        raise UsageError(str(error)) from error
    recordings = failure.of_one_job(dump.recordings, dump.first)
    return dump, recordings, failure.explain(recordings, dump.first, dump.codes)


def page(recordings: Sequence[Recording], found: failure.Failure) -> list[str]:
    lines = [found.sentence, ""]
    width = max((len(row.title) for row in found.rows), default=0)
    for row in found.rows:
        # Without the word "ranks".
        states = [f"{each}: {named(row.ranks[each]).partition(' ')[2]}" for each in row.ranks]
        lines.append(f"{row.order or '-':>8}  {row.title:{width}}  {'; '.join(states)}")
    if found.rows:
        lines.append("")
    lines += map(_about, recordings)
    size = max(one.size for one in recordings)
    missing = set(range(size)) - {one.rank for one in recordings}
    if missing:
        lines.append(f"no recording of {named(missing)}")
    return lines


def _about(one: Recording) -> str:
    text = f"rank {one.rank} ({one.host}, process {one.process}): {one.made} calls; "
    text += {THROUGH: "left", FAILED: "failed"}.get(one.state, "never left")
    if one.left:
        text += f" at {datetime.fromtimestamp(one.left / 1e9):%H:%M:%S.%f}"[:-3]
    if one.reason:
        text += f": {one.reason}"
    if one.lost_call and one.ended not in one.reason:
        text += f"; was told: {one.ended}"
    return text
