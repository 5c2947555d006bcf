"""Reads flight recorders' files: the last calls of each rank (runtime/events/recording.h).

Needs no TensorFlow, and starts nothing: a file may be of a job that runs, that was
killed, or be half a file.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tf_hvd.core import contract, files, kinds, messages
from tf_hvd.core.printable import printable

_MAGIC = b"tfhvdrec"
_VERSION = 1
_VERSIONED = 12
"""Bytes of every version's beginning: magic and version."""
_HEADER_BYTES = 4096


class _Header(ctypes.LittleEndianStructure):
    """RecordingHeader in runtime/events/recording.h, member for member."""

    _fields_ = (
        ("magic", ctypes.c_uint64),
        ("version", ctypes.c_uint32),
        ("header_bytes", ctypes.c_uint32),
        ("slot_bytes", ctypes.c_uint32),
        ("capacity", ctypes.c_uint32),
        ("calls", ctypes.c_uint64),
        ("rank", ctypes.c_int32),
        ("size", ctypes.c_int32),
        ("process", ctypes.c_int32),
        ("state", ctypes.c_uint32),
        ("launched", ctypes.c_int32),
        ("part", ctypes.c_int32),
        ("realtime_ns", ctypes.c_int64),
        ("steady_ns", ctypes.c_int64),
        ("left_ns", ctypes.c_int64),
        ("host", ctypes.c_char * 64),
        ("job", ctypes.c_char * 128),
        ("reason", ctypes.c_char * 512),
        ("ended", ctypes.c_char * 1024),
        ("ended_told_ns", ctypes.c_int64),
        ("lost_call", ctypes.c_uint64),
        ("failed_call", ctypes.c_uint64),
        ("failed", ctypes.c_char * 1024),
    )


class _Slot(ctypes.LittleEndianStructure):
    """CallLayout there, member for member."""

    _fields_ = (
        ("number", ctypes.c_uint64),
        ("submitted_ns", ctypes.c_int64),
        ("agreed_ns", ctypes.c_int64),
        ("started_ns", ctypes.c_int64),
        ("ended_ns", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("part", ctypes.c_double),
        ("step", ctypes.c_int64),
        ("order", ctypes.c_int64),
        ("operation", ctypes.c_uint64),
        ("set", ctypes.c_int32),
        ("tensors", ctypes.c_int32),
        ("awaited", ctypes.c_int32),
        ("dimensions", ctypes.c_int32),
        ("kind", ctypes.c_uint8),
        ("dtype", ctypes.c_uint8),
        ("reduce_op", ctypes.c_uint8),
        ("device", ctypes.c_uint8),
        ("caller", ctypes.c_uint8),
        ("code", ctypes.c_uint8),
        ("last", ctypes.c_uint16),
        ("shape", ctypes.c_int64 * 4),
        ("backend", ctypes.c_char * 8),
        ("name", ctypes.c_char * 104),
        ("source", ctypes.c_char * 72),
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective that a rank called: what a recording or a timeline says of it.

    Times are nanoseconds, in a recording since the epoch, in a timeline of rank 0's clock; 0: not
    yet. A timeline lacks what has a default.
    """

    number: int = 0
    """Of the rank's calls, from 1."""
    name: str
    kind: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    """Of the first tensor; -1 is a dimension that may differ between ranks."""
    tensors: int
    bytes: int
    reduce_op: str = ""
    """Empty for what reduces nothing."""
    device: str = ""
    compiled: bool = False
    backend: str = ""
    """How its data moves; empty: it moves none, or has not begun."""
    set: int
    step: int = -1
    """The optimizer's; -1: none."""
    order: int
    """Its place in the agreed order of its process set, from 1, equal on all ranks; 0: none."""
    operation: int = 0
    """What was fused has the same; 0: it has not begun."""
    part: float = 0.0
    """Of the operation, that was done on this rank: 0 to 1."""
    awaited: int | None = None
    """The rank whose data was waited for."""
    last: int
    """The rank that made it last; -1: not known."""
    submitted: int
    agreed: int
    started: int = 0
    ended: int
    code: str = "ok"
    """How it ended, of `CODES`."""
    source: str = ""
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
        """By which ranks match their calls, before these are in order."""
        return self.set, self.name

    @property
    def place(self) -> tuple[int, int]:
        """By which ranks match calls that are in order."""
        return self.set, self.order

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
    head = _header(data)
    if not 0 <= head.rank < head.size <= _RANKS:
        raise RecordingError(
            f"it is damaged: it says that it is of rank {head.rank} of {head.size}"
        )
    size = ctypes.sizeof(_Slot)
    if len(data) < _HEADER_BYTES + head.capacity * size:
        raise RecordingError(f"the file is not whole: it has {len(data)} bytes")
    ahead = head.realtime_ns - head.steady_ns
    places = range(_HEADER_BYTES, _HEADER_BYTES + min(head.capacity, head.calls) * size, size)
    calls = [_call(_Slot.from_buffer_copy(data, place), ahead) for place in places]
    return Recording(
        rank=head.rank,
        size=head.size,
        host=_text(head.host),
        process=head.process,
        launched=head.launched,
        part=head.part,
        job=_text(head.job),
        began=head.realtime_ns,
        state=_named(_STATES, head.state),
        left=_moment(head.left_ns, ahead),
        reason=_text(head.reason),
        told=_moment(head.ended_told_ns, ahead),
        ended=_text(head.ended),
        lost_call=head.lost_call,
        failed_call=head.failed_call,
        failed=_text(head.failed),
        made=head.calls,
        # One that is being filled has no number yet.
        calls=tuple(sorted((each for each in calls if each.number), key=lambda each: each.number)),
    )


def _header(data: bytes) -> _Header:
    """Of a file that this build's layout fits."""
    if len(data) >= _VERSIONED:
        if not data.startswith(_MAGIC):
            raise RecordingError("this is no flight recorder's file")
        version = int.from_bytes(data[len(_MAGIC) : _VERSIONED], "little")
        if version != _VERSION:
            raise RecordingError(f"version {version} of the format; this tf_hvd reads {_VERSION}")
    if len(data) < ctypes.sizeof(_Header):
        raise RecordingError(f"the file is not whole: it has {len(data)} bytes")
    head = _Header.from_buffer_copy(data)
    sizes, own = (head.header_bytes, head.slot_bytes), (_HEADER_BYTES, ctypes.sizeof(_Slot))
    if sizes != own:
        raise RecordingError(f"its header and calls have {sizes} bytes; this tf_hvd reads {own}")
    return head


def _moment(steady: int, ahead: int) -> int:
    """A time of the recorder's clock, which is so far behind, as one since the epoch."""
    return steady + ahead if steady else 0


def _call(slot: _Slot, ahead: int) -> Call:
    reduces = slot.kind < len(kinds.KINDS) and kinds.KINDS[slot.kind].reduces
    return Call(
        number=slot.number,
        name=_text(slot.name),
        kind=_named(KINDS, slot.kind),
        dtype=_named(DTYPES, slot.dtype) if slot.tensors else "",
        shape=tuple(slot.shape[: max(slot.dimensions, 0)]),
        tensors=slot.tensors,
        bytes=slot.bytes,
        reduce_op=_named(kinds.REDUCE_OPS, slot.reduce_op) if reduces else "",
        device=_named(DEVICES, slot.device),
        compiled=slot.caller == _COMPILED,
        backend=_text(slot.backend),
        set=slot.set,
        step=slot.step,
        order=slot.order,
        operation=slot.operation,
        part=slot.part if 0 <= slot.part <= 1 else 0.0,
        awaited=slot.awaited - 1 if slot.awaited else None,
        last=slot.last - 1,
        submitted=_moment(slot.submitted_ns, ahead),
        agreed=_moment(slot.agreed_ns, ahead),
        started=_moment(slot.started_ns, ahead),
        ended=_moment(slot.ended_ns, ahead),
        code=_named(CODES, slot.code),
        source=_text(slot.source),
    )


def _text(data: bytes) -> str:
    return printable(data.decode(errors="replace").replace("\n", " "))


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
