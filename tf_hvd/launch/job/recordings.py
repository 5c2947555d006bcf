"""What the flight recorders of a job tell at its bad end: saved, and said in a sentence."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tf_hvd.core import contract
from tf_hvd.launch.job.job_state import JobState
from tf_hvd.launch.machine import rank
from tf_hvd.observe import failure, recording

ENDS = "ends.json"
"""The file in which the launcher notes how the ranks ended."""


@dataclass(frozen=True)
class Evidence:
    """What is known of the ranks' last calls."""

    sentence: str = ""
    """What went wrong among them; empty if that cannot be told."""
    folder: str = ""
    """Where the recordings lie; empty if nowhere."""
    error: str = ""
    """Why they do not lie there."""


NO_EVIDENCE = Evidence()


def read(state: JobState) -> list[recording.Recording]:
    """The recordings of this machine's ranks."""
    found = []
    for file in list(state.recordings.values()):
        with contextlib.suppress(recording.RecordingError, OSError):
            found.append(recording.parse(os.pread(file, os.fstat(file).st_size, 0)))
    return found


def take(
    state: JobState,
    first: int | None,
    environ: Mapping[str, str],
    recorded: Sequence[recording.Recording],
) -> Evidence:
    """Saves the recordings of a job that has ended badly, and says what they tell.

    Of ranks on other machines those that were saved in the same folder: by their keepers, or by
    themselves where no keeper is.

    Args:
        state: has those of this machine's ranks.
        first: the rank of this machine that was the first to end badly.
        environ: names the folder, `TF_HVD_DUMP_DIR`.
        recorded: what `read` has given.
    """
    ends = failure.Ends(first, state.codes())
    folder, error = _save(state, ends, environ.get(contract.DUMP_FOLDER, ""))
    found = {one.launched: one for one in recorded}
    if folder:
        with contextlib.suppress(recording.RecordingError, OSError):
            there = recording.read(Path(folder)).recordings
            found = {one.launched: one for one in there} | found
    if not found:
        return Evidence("", folder, error)
    told = failure.explain(failure.of_one_job(list(found.values()), first), ends)
    return Evidence(told.sentence if told.ranks else "", folder, error)


def _save(state: JobState, ends: failure.Ends, wanted: str) -> tuple[str, str]:
    """Where they lie, and what went wrong; both may be empty."""
    folder = ""
    try:
        for number, file in list(state.recordings.items()):
            if wanted:
                folder = rank.save_recording(file, wanted, state.job, number) or folder
        if folder:
            rank.write_own(folder, ENDS, json.dumps(dataclasses.asdict(ends)).encode())
    except OSError as error:
        return folder, f"{error.filename or wanted}: {error.strerror}"
    return folder, ""


def read_ends(folder: Path) -> failure.Ends:
    """What the launcher has noted beside the recordings; nothing if it has not."""
    try:
        noted = json.loads((folder / ENDS).read_text())
        codes = {int(number): int(code) for number, code in noted["codes"].items()}
        first = None if noted["first"] is None else int(noted["first"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return failure.Ends()
    return failure.Ends(first, codes)
