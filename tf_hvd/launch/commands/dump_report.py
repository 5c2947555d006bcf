"""`tf_hvd doctor DUMP`: explain why a job failed, as text or JSON."""

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
    """Print a report on a folder of recordings and return the exit code.

    Raises:
        UsageError: the folder has no readable recordings.
    """
    dump, recordings, found = reading("the recordings", lambda: _explained(folder))
    if as_json:
        ranks = [dataclasses.asdict(one) for one in recordings]
        print(json.dumps({**dataclasses.asdict(found), "recordings": ranks}, indent=2))
    else:
        print("\n".join([*page(recordings, found, dump.running), *dump.faults]))
    if dump.others and not as_json:
        more = ", ".join(each.name for each in dump.others[:_OTHERS])
        more += ", ..." if len(dump.others) > _OTHERS else ""
        jobs = f"{len(dump.others)} other job" + "s" * (len(dump.others) > 1)
        print(
            f"\nthis report is about {dump.folder}, the newest job; the folder has {jobs} ({more})"
        )
    return 0


def _explained(folder: Path) -> tuple[Dump, Sequence[Recording], failure.Failure]:
    try:
        dump = read(folder)
    except RecordingError as error:
        raise UsageError(str(error)) from error
    recordings = failure.of_one_job(dump.recordings, dump.first)
    return (
        dump,
        recordings,
        failure.explain(recordings, dump.first, dump.codes, running=dump.running),
    )


def page(
    recordings: Sequence[Recording], found: failure.Failure, running: bool = False
) -> list[str]:
    lines = [found.sentence, ""]
    width = max((len(row.title) for row in found.rows), default=0)
    for row in found.rows:
        # Drop the word "ranks".
        states = [f"{each}: {named(row.ranks[each]).partition(' ')[2]}" for each in row.ranks]
        lines.append(f"{row.order or '-':>8}  {row.title:{width}}  {'; '.join(states)}")
    if found.rows:
        lines.append("")
    lines += [_about(one, running) for one in recordings]
    size = max(one.size for one in recordings)
    missing = set(range(size)) - {one.rank for one in recordings}
    if missing:
        lines.append(f"no recording of {named(missing)}")
    return lines


def _about(one: Recording, running: bool) -> str:
    text = f"rank {one.rank} ({one.host}, process {one.process}): {one.made} calls; "
    stays = "still running" if running else "never left"
    text += {THROUGH: "left", FAILED: "failed"}.get(one.state, stays)
    if one.left:
        text += f" at {datetime.fromtimestamp(one.left / 1e9):%H:%M:%S.%f}"[:-3]
    kind, _, why = one.reason.partition(": ")
    if one.lost_call and _is_shortened(why, one.ended):
        return f"{text}: {kind}: {one.ended}"
    if one.reason:
        text += f": {one.reason}"
    if one.lost_call and one.ended not in one.reason:
        text += f"; the job had ended: {one.ended}"
    return text


def _is_shortened(text: str, whole: str) -> bool:
    """Return whether `text` is `whole` shortened by a recording, with " ..." for missing parts."""
    first, *more = (part.strip() for part in text.split(" ..."))
    return bool(first and more) and whole.startswith(first) and all(one in whole for one in more)
