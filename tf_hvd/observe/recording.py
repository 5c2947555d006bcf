"""Reading of flight recordings, with each rank's last calls (runtime/events/recording.h).

This module does not need TensorFlow and starts no process. A file may come from a running or a
killed job, and may be truncated.
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
from typing import Any

from tf_hvd.core import contract, files, kinds, messages
from tf_hvd.core.printable import printable

_MAGIC = b"tfhvdrec"
_VERSION = 1
_VERSIONED = 12
"""Size in bytes of the part that is the same in all versions: magic number and version."""
_HEADER_BYTES = 4096


class _Header(ctypes.LittleEndianStructure):
    """The members of RecordingHeader in runtime/events/recording.h."""

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
    """The members of CallLayout in runtime/events/recording.h."""

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
# The names of the status codes of ended calls (base/status.h).
CODES = ("ok", "invalid", "disagreement", "aborted", "bug")
WAITING, AGREED, MOVING, ENDED = "waiting", "agreed", "moving", "ended"
UNUSED, JOINED, THROUGH, FAILED = "unused", "joined", "through", "failed"
_STATES = (UNUSED, JOINED, THROUGH, FAILED)
_COMPILED = 1
# Matches the names of calls that tf_hvd makes itself, for its checks and callbacks.
_OWN = re.compile(
    r"(BackupAndRestore|BroadcastGlobalVariablesCallback|elastic|fit|on_preemption): "
    r"|(shard|shard_files): |(fit|hvd\.evaluate|hvd\.predict) on all ranks"
    r"|(results|sums) of metrics |comparison of weights"
    r"|(adapted_layers|broadcast_variables/kinds|comparison_of_initial_weights|metric_average"
    r"|order_of_variables)(\.|$)"
)
# Matches the name of a recording. The name contains the launcher's number for the rank.
_NAME = re.compile(r"rank\.\d+")
ENDS = "ends.json"
"""Name of the file, next to the recordings, in which the launcher records how ranks ended."""
STILL_RUNS: dict[str, Any] = {"first": None, "codes": {}, "running": True}
"""The contents that `tf_hvd dump` writes to `ENDS`."""
LARGEST = 64 * 10**6
"""Maximum size of a recording or of `ENDS`, in bytes."""
_RANKS = 1 << 20


class RecordingError(ValueError):
    """The file is not a flight recording, or is incomplete."""


def is_own(name: str) -> bool:
    """Return whether tf_hvd itself makes calls with this name, for its checks and callbacks."""
    return bool(_OWN.match(name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One collective call by a rank, read from a recording or a timeline.

    Times are in nanoseconds: since the epoch in a recording, on rank 0's clock in a timeline. A
    time of 0 means that the event has not happened yet. Members that have a default are not in
    timelines.
    """

    number: int = 0
    """The call's number among the rank's calls, from 1."""
    name: str
    kind: str = ""
    dtype: str = ""
    shape: tuple[int, ...] = ()
    """Shape of the first tensor; -1 for a dimension that may differ between ranks."""
    tensors: int
    bytes: int
    reduce_op: str = ""
    """The reduce op; empty if the collective does not reduce."""
    device: str = ""
    compiled: bool = False
    backend: str = ""
    """How the call's data moves; empty if the call has no data or has not started."""
    set: int
    step: int = -1
    """The optimizer's step; -1 if none."""
    order: int
    """Position in the process set's order, from 1, the same on all ranks; 0 if not ordered."""
    operation: int = 0
    """Number of the operation, the same for fused calls; 0 if not started."""
    part: float = 0.0
    """Completed fraction of the operation on this rank, from 0 to 1."""
    awaited: int | None = None
    """The rank that this rank awaited data from; None if it did not await data."""
    last: int
    """The last rank to make this call; -1 if unknown."""
    submitted: int
    agreed: int
    started: int = 0
    ended: int
    code: str = "ok"
    """How the call ended: one of `CODES`."""
    source: str = ""
    """The program's line, such as "train.py:88"; empty if unknown."""

    @property
    def state(self) -> str:
        """The phase that the call has reached."""
        if self.ended:
            return ENDED
        if self.started:
            return MOVING
        return AGREED if self.agreed else WAITING

    @property
    def key(self) -> tuple[int, str]:
        """The key that ranks use to match calls that are not ordered yet."""
        return self.set, self.name

    @property
    def place(self) -> tuple[int, int]:
        """The key that ranks use to match ordered calls."""
        return self.set, self.order

    @property
    def own(self) -> bool:
        """Whether tf_hvd made the call for itself, rather than for the program."""
        return is_own(self.name)

    @property
    def title(self) -> str:
        """The call's name for users, such as "allreduce 'x' (train.py:88)"."""
        own = "tf_hvd's own " if self.own else ""
        name = "" if self.kind in ("join", "barrier") else f" '{self.name}'"
        where = f" ({self.source})" if self.source else ""
        return f"{own}{self.kind}{name}{where}"


@dataclass(frozen=True)
class Recording:
    """The contents of one rank's recording."""

    rank: int
    size: int
    host: str
    process: int
    launched: int
    """The launcher's number for the rank. It differs from `rank` after `init(comm=...)`."""
    part: int
    """The job's lowest launcher number if the launcher's ranks form several jobs; else -1."""
    job: str
    began: int
    """The time at which the rank joined the job, on the same clock as calls."""
    state: str
    left: int
    """The time at which the rank left the job, on the same clock as calls; 0 if it has not left."""
    reason: str
    """Why the rank left: an exception's type and text, or the function that the rank called."""
    told: int
    """The time when this rank learned that no more calls are possible; 0 if it never learned."""
    ended: str
    """Why no more calls are possible; the text names the rank that died, left or stalled."""
    lost_call: int
    """Number of the first call that failed for the reason in `ended`; 0 if no call did."""
    failed_call: int
    """Number of the last call that failed for another reason; 0 if no call did."""
    failed: str
    made: int
    """Total number of calls made by the rank; `calls` holds only the last ones."""
    calls: tuple[Call, ...]
    """The calls, sorted by number."""

    @property
    def last(self) -> Call | None:
        return self.calls[-1] if self.calls else None

    def call(self, number: int) -> Call | None:
        """Return the call with this number, or None if it has been overwritten."""
        return next((each for each in self.calls if each.number == number), None)


def parse(data: bytes) -> Recording:
    """Parse the contents of a flight recording.

    Raises:
        RecordingError: `data` is not a flight recording, or has a different version.
    """
    head = _header(data)
    if not 0 <= head.rank < head.size <= _RANKS:
        raise RecordingError(f"the file is damaged: it names rank {head.rank} of {head.size}")
    size = ctypes.sizeof(_Slot)
    if len(data) < _HEADER_BYTES + head.capacity * size:
        raise RecordingError(f"the file is truncated: it has only {len(data)} bytes")
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
        # A slot that is still being filled has no number.
        calls=tuple(sorted((each for each in calls if each.number), key=lambda each: each.number)),
    )


def _header(data: bytes) -> _Header:
    """Return the file's header, after checking that this build can read the file."""
    if len(data) >= _VERSIONED:
        if not data.startswith(_MAGIC):
            raise RecordingError("the file is not a flight recording")
        version = int.from_bytes(data[len(_MAGIC) : _VERSIONED], "little")
        if version != _VERSION:
            raise RecordingError(
                f"the file has format version {version}; this tf_hvd reads version {_VERSION}"
            )
    if len(data) < ctypes.sizeof(_Header):
        raise RecordingError(f"the file is truncated: it has only {len(data)} bytes")
    head = _Header.from_buffer_copy(data)
    sizes, own = (head.header_bytes, head.slot_bytes), (_HEADER_BYTES, ctypes.sizeof(_Slot))
    if sizes != own:
        raise RecordingError(
            f"the file's header and calls have {sizes} bytes; this tf_hvd reads {own}"
        )
    return head


def _moment(steady: int, ahead: int) -> int:
    """Convert a time on the recorder's clock to time since the epoch by adding `ahead`; keep 0."""
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
    """The recordings from one job in a folder."""

    folder: Path
    recordings: list[Recording]
    """The recordings, sorted by the launcher's rank numbers."""
    faults: list[str]
    """One sentence for each file that cannot be read."""
    others: list[Path]
    """Folders with recordings of other jobs, newest job first."""
    first: int | None
    """The launcher's number for the rank that failed first; None if unknown."""
    codes: dict[int, int]
    """Each failed rank's exit code, or minus its signal, if known."""
    running: bool
    """Whether the job was running when `tf_hvd dump` saved the recordings."""


def read(folder: Path) -> Dump:
    """Read the recordings from the newest job in a folder or its subfolders.

    Args:
        folder: path of the folder, or of a recording in the folder.

    Raises:
        RecordingError: the folder has no readable recording.
        OSError: the folder cannot be read.
    """
    found: dict[Path, list[Recording]] = {}
    faults = []
    if _NAME.fullmatch(folder.name) and folder.is_file():
        folder = folder.parent
    for path in sorted([*folder.glob("rank.*"), *folder.glob("*/rank.*")]):
        # `--output-filename` writes rank N's output into a folder named rank.N.
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
            faults[0] if faults else f"{folder} has no recordings (no files named rank.N)"
        )
    newest, *others = sorted(
        found, key=lambda where: max(one.began for one in found[where]), reverse=True
    )
    recordings = sorted(found[newest], key=lambda one: one.launched)
    return Dump(newest, recordings, faults, others, *_ends(newest))


def _ends(folder: Path) -> tuple[int | None, dict[int, int], bool]:
    try:
        noted = json.loads(files.read(folder / ENDS, LARGEST))
        codes = {int(number): int(code) for number, code in noted["codes"].items()}
        first = None if noted["first"] is None else int(noted["first"])
        return first, codes, noted.get("running") is True
    except (OSError, *messages.DAMAGE, AttributeError):
        return None, {}, False


def running() -> Iterator[tuple[int, Path]]:
    """Yield a process id and a file for each possible recording in this user's processes.

    The file refers to the recording in memory and is valid as long as the process lives.
    """
    for process in os.listdir("/proc"):
        if not process.isdigit():
            continue
        with contextlib.suppress(OSError):  # another user's process, or one that has just ended
            for file in Path("/proc", process, "fd").iterdir():
                with contextlib.suppress(OSError):
                    name = os.readlink(file)
                    if contract.RECORDER in name or _NAME.fullmatch(os.path.basename(name)):
                        yield int(process), file
