"""Reads flight recorders' files: the last calls of each rank (runtime/events/recording.h).

Needs no TensorFlow, and starts nothing: a file may be of a job that runs, that was
killed, or be half a file.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tf_hvd.core import contract, files, kinds, messages
from tf_hvd.core.printable import printable

_MAGIC = b"tfhvdrec"
_VERSION = 1
_FORMAT = struct.Struct("<8sI")  # magic, version
# bytes of header and slot, capacity, calls, rank, size, process, state, launched, part, times,
# host, job, reason, ended, told, and of failed calls as in `Recording`
_HEAD = struct.Struct("<3IQ3iI2i3q64s128s512s1024sqQQ1024s")
# number, 4 times, bytes, part, step, order, operation, set, tensors, awaited, dimensions, then
# kind, dtype, reduce_op, device, caller, code, then the shape, and what moves it
_SLOT = struct.Struct("<Q5qd2qQ4i6B2x4q8s104s72s")

KINDS = tuple(kind.name for kind in kinds.KINDS)
DTYPES = (
    *("uint8", "int8", "uint16", "int16", "int32", "int64", "float16", "float32", "float64"),
    *("bool", "bfloat16", "uint32", "uint64", "complex64", "complex128"),
)
DEVICES = ("CPU", "GPU")
# How a call ended (base/status.h).
CODES = ("ok", "invalid", "disagreement", "aborted", "bug")
WAITING, AGREED, MOVING, ENDED = "waiting", "agreed", "moving", "ended"
UNUSED, JOINED, THROUGH, FAILED = "unused", "joined", "through", "failed"
_STATES = (UNUSED, JOINED, THROUGH, FAILED)
_COMPILED = 1
# A file in a folder of recordings, whose number is the launcher's of the rank.
_NAME = re.compile(r"rank\.\d+")
ENDS = "ends.json"
"""A file in it, in which the launcher notes how the ranks ended."""
LARGEST = 64 * 10**6
"""Bytes of a recording, or of `ENDS`."""
_RANKS = 1 << 20


class RecordingError(ValueError):
    """It is no recorder's file, or not a whole one."""


@dataclass(frozen=True, slots=True)
class Call:
    """One collective that a rank called. Times are nanoseconds since the epoch; 0: not yet."""

    number: int
    """Of the rank's calls, from 1."""
    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    """Of the first tensor; -1 is a dimension that may differ between ranks."""
    tensors: int
    bytes: int
    reduce_op: str
    """Empty for what reduces nothing."""
    device: str
    compiled: bool
    backend: str
    """How its data moves; empty: it moves none, or has not begun."""
    set: int
    step: int
    """The optimizer's; -1: none."""
    order: int
    """Its place in the agreed order of its process set, from 1, equal on all ranks; 0: none."""
    operation: int
    """What was fused has the same; 0: it has not begun."""
    part: float
    """Of the operation, that was done on this rank: 0 to 1."""
    awaited: int | None
    """The rank whose data was waited for."""
    submitted: int
    agreed: int
    started: int
    ended: int
    code: str
    """How it ended, of `CODES`."""
    source: str
    """The line of the program, as "train.py:88"; empty if it is not known."""

    @property
    def state(self) -> str:
        """How far it is."""
        if self.ended:
            return ENDED
        if self.started:
            return MOVING
        return AGREED if self.agreed else WAITING

    @property
    def key(self) -> tuple[int, str]:
        """By which ranks match their calls."""
        return self.set, self.name

    @property
    def title(self) -> str:
        """As "allreduce 'x' (train.py:88)"."""
        name = "" if self.kind in ("join", "barrier") else f" '{self.name}'"
        where = f" ({self.source})" if self.source else ""
        return f"{self.kind}{name}{where}"


@dataclass(frozen=True)
class Recording:
    """What one rank's recorder holds."""

    rank: int
    size: int
    host: str
    process: int
    launched: int
    """The launcher's number of the rank, which is another one under `init(comm=...)`."""
    part: int
    """Of several jobs of some ranks each, the first by the launcher's count; -1: it has all."""
    job: str
    began: int
    """When it joined the job, as the times of calls."""
    state: str
    left: int
    """When it left the job, as the times of calls; 0: it has not."""
    reason: str
    """Why it left; an exception's type and text, or what it called."""
    told: int
    """When it was told that no more calls can be made, as at any end; 0: it was not."""
    ended: str
    """Why they cannot; it names the rank that died, left or stalled."""
    lost_call: int
    """The number of the first call that failed because of that; 0: none did."""
    failed_call: int
    """The number of the last call that failed for another reason; 0: none did."""
    failed: str
    """With what."""
    made: int
    """How many calls the rank has made, of which the last are here."""
    calls: tuple[Call, ...]
    """By number."""

    @property
    def last(self) -> Call | None:
        return self.calls[-1] if self.calls else None

    def call(self, number: int) -> Call | None:
        """The call of that number; None if it has been overwritten."""
        return next((each for each in self.calls if each.number == number), None)


def parse(data: bytes) -> Recording:
    """Reads a recorder's memory.

    Raises:
        RecordingError: it is none, or of another version.
    """
    try:
        magic, version = _FORMAT.unpack_from(data)
        if magic != _MAGIC:
            raise RecordingError("this is no flight recorder's file")
        if version != _VERSION:
            raise RecordingError(f"version {version} of the format; this tf_hvd reads {_VERSION}")
        header, slot, capacity, made, *facts = _HEAD.unpack_from(data, _FORMAT.size)
        rank, size, process, state, launched, part, realtime, steady, left, *facts = facts
        host, job, reason, ended, told, lost_call, failed_call, failed = facts
        if not 0 <= rank < size <= _RANKS:
            raise RecordingError(f"it is damaged: it says that it is of rank {rank} of {size}")
        if slot != _SLOT.size or len(data) < header + capacity * slot:
            raise RecordingError(f"the file is not whole: it has {len(data)} bytes")
        slots = range(header, header + min(capacity, made) * slot, slot)
        ahead = realtime - steady
        calls = [_call(_SLOT.unpack_from(data, place), ahead) for place in slots]
    except struct.error as error:
        raise RecordingError(f"the file is not whole: it has {len(data)} bytes") from error
    return Recording(
        rank=rank,
        size=size,
        host=_text(host),
        process=process,
        launched=launched,
        part=part,
        job=_text(job),
        began=realtime,
        state=_named(_STATES, state),
        left=_moment(left, ahead),
        reason=_text(reason),
        told=_moment(told, ahead),
        ended=_text(ended),
        lost_call=lost_call,
        failed_call=failed_call,
        failed=_text(failed),
        made=made,
        # One that is being filled has no number yet.
        calls=tuple(sorted((each for each in calls if each.number), key=lambda each: each.number)),
    )


def _moment(steady: int, ahead: int) -> int:
    """A time of the recorder's clock, which is so far behind, as one since the epoch."""
    return steady + ahead if steady else 0


def _call(values: tuple[Any, ...], ahead: int) -> Call:
    number, *times, size, part, step, order, operation = values[:10]
    submitted, agreed, started, ended = (_moment(each, ahead) for each in times)
    in_set, tensors, awaited, dimensions, kind, dtype, reduce_op, device = values[10:18]
    caller, code, *shape = values[18:24]
    backend, name, source = map(_text, values[24:])
    reduces = kind < len(kinds.KINDS) and kinds.KINDS[kind].reduces
    return Call(
        number=number,
        name=name,
        kind=_named(KINDS, kind),
        dtype=_named(DTYPES, dtype) if tensors else "",
        shape=tuple(shape[: max(dimensions, 0)]),
        tensors=tensors,
        bytes=size,
        reduce_op=_named(kinds.REDUCE_OPS, reduce_op) if reduces else "",
        device=_named(DEVICES, device),
        compiled=caller == _COMPILED,
        backend=backend,
        set=in_set,
        step=step,
        order=order,
        operation=operation,
        part=part if 0 <= part <= 1 else 0.0,
        awaited=awaited - 1 if awaited else None,
        submitted=submitted,
        agreed=agreed,
        started=started,
        ended=ended,
        code=_named(CODES, code),
        source=source,
    )


def _text(data: bytes) -> str:
    text = data.partition(b"\0")[0].decode(errors="replace")
    return printable(text.replace("\n", " "))


def _named(names: Sequence[str], number: int) -> str:
    return names[number] if number < len(names) else f"number {number}"


@dataclass(frozen=True)
class Dump:
    """The recordings of one job in a folder."""

    folder: Path
    recordings: list[Recording]
    """By the launcher's numbers."""
    faults: list[str]
    """What lies there and cannot be read, and why."""
    others: list[Path]
    """Folders with recordings of other jobs there, the one that began last first."""
    first: int | None
    """The rank that was the first to end badly, by the launcher's number; None: not known."""
    codes: dict[int, int]
    """The exit code, or minus the signal, of ranks that ended badly, as far as it is known."""


def read(folder: Path) -> Dump:
    """Reads the recordings in a folder, or in a folder of it that has some.

    Of several jobs in it those of the one that began last.

    Args:
        folder: or one of its recordings.

    Raises:
        RecordingError: there is none that can be read.
        OSError: the folder cannot be read.
    """
    found: dict[Path, list[Recording]] = {}
    faults = []
    if _NAME.fullmatch(folder.name) and folder.is_file():
        folder = folder.parent
    for path in sorted([*folder.glob("rank.*"), *folder.glob("*/rank.*")]):
        # The output of rank N may be in a folder of that name.
        if _NAME.fullmatch(path.name) and not path.is_dir():
            try:
                one = parse(files.read(path, LARGEST))
            except RecordingError as error:
                faults.append(f"{path}: {error}")
                continue
            except OSError as error:
                faults.append(files.reason(error))
                continue
            found.setdefault(path.parent, []).append(one)
    if not found:
        raise RecordingError(
            faults[0] if faults else f"{folder}: no recording here: no file rank.N"
        )
    newest, *others = sorted(
        found, key=lambda where: max(one.began for one in found[where]), reverse=True
    )
    recordings = sorted(found[newest], key=lambda one: one.launched)
    return Dump(newest, recordings, faults, others, *_ends(newest))


def _ends(folder: Path) -> tuple[int | None, dict[int, int]]:
    try:
        noted = json.loads(files.read(folder / ENDS, LARGEST))
        codes = {int(number): int(code) for number, code in noted["codes"].items()}
        return None if noted["first"] is None else int(noted["first"]), codes
    except (OSError, *messages.DAMAGE, AttributeError):
        return None, {}


def running() -> Iterator[tuple[int, Path]]:
    """What may be recorders' memory of this user's processes on this machine: process and file.

    The file is a name of the memory, as long as the process lives.
    """
    for process in os.listdir("/proc"):
        if not process.isdigit():
            continue
        with contextlib.suppress(OSError):  # another user's, or it has just ended
            for file in Path("/proc", process, "fd").iterdir():
                with contextlib.suppress(OSError):
                    name = os.readlink(file)
                    if contract.RECORDER in name or _NAME.fullmatch(os.path.basename(name)):
                        yield int(process), file
