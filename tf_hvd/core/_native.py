"""Loads the native library: once for TensorFlow (its ops) and once for ctypes (the C API).

Everything that can be wrong between the package and the TensorFlow it finds is
found here, at import, and said with what to do about it.
"""

import ctypes
import importlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.core import kinds, wheels
from tf_hvd.core.exceptions import HorovodVersionMismatchError

DIRECTORY = pathlib.Path(__file__).resolve().parents[1]

# Collectives of which each call runs in a tf.function, whether or not its result is
# used, and side by side with the others. What is called for its effect alone
# (barrier, join, broadcast_) is not among them: it runs in any case, and must keep its
# place among assignments and other effects.
_COLLECTIVES = frozenset(
    op_type for kind in kinds.OF_TENSORS.values() for op_type in kind.functions
)

_ERROR_BYTES = 8192
_SET_END = -1


def _build_info() -> Any:
    try:
        return importlib.import_module("tf_hvd._build_info")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{DIRECTORY} is tf_hvd's source tree, without its native library. Run './dev build' "
            "and install the wheel that it makes, and do not put the source tree on sys.path."
        ) from error


def _choose_minor(minors: Sequence[str], version: str, found: str) -> str:
    """The minor version of the installed TensorFlow, if there is a library for it."""
    if wheels.minor(found) in minors:
        return wheels.minor(found)
    raise HorovodVersionMismatchError(
        f"tf_hvd {version} was built for TensorFlow {wheels.named(minors)} but TensorFlow "
        f"{found} is installed; the two do not work together, because TensorFlow's C++ interface "
        f"changes with each minor version. {wheels.cure(minors, found)}."
    )


def _load_ops() -> Any:
    if zipped := wheels.zipped_text(str(DIRECTORY)):
        raise ImportError(zipped)
    try:
        return tf.load_op_library(str(_library))
    except (tf.errors.NotFoundError, OSError) as error:
        raise ImportError(
            f"TensorFlow {tf.__version__} could not load {_library}: {error}. An undefined symbol "
            f"means that this TensorFlow is another build than PyPI's {minor}, such as a nightly "
            f"or a vendor's: {wheels.making()} makes a wheel for it."
        ) from error


class _InitOptions(ctypes.Structure):
    """tf_hvd_init_options of runtime/api/c_api.h."""

    _fields_ = (
        ("library_dir", ctypes.c_char_p),
        ("mpi_candidates", ctypes.c_char_p),
        ("nccl_candidates", ctypes.c_char_p),
        ("ranks", ctypes.POINTER(ctypes.c_int)),
        ("rank_count", ctypes.c_int),
        ("communicator", ctypes.POINTER(ctypes.c_int)),
        ("sets", ctypes.POINTER(ctypes.c_int)),
        ("set_length", ctypes.c_int),
        ("settings", ctypes.c_char_p),
    )


def _declare(library: ctypes.CDLL) -> None:
    text, number = ctypes.c_char_p, ctypes.c_int
    numbers, longs = ctypes.POINTER(number), ctypes.POINTER(ctypes.c_int64)
    size = ctypes.c_size_t
    error = [text, size]
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "init": (number, [ctypes.POINTER(_InitOptions), *error]),
        "shutdown": (None, [text, number]),
        "forked_text": (text, []),
        "process_mark": (text, []),
        "not_initialized_text": (text, []),
        "is_initialized": (number, []),
        "rank": (number, []),
        "size": (number, []),
        "local_rank": (number, []),
        "local_size": (number, []),
        "cross_rank": (number, []),
        "cross_size": (number, []),
        "is_homogeneous": (number, []),
        "add_process_set": (number, [numbers, number, numbers, *error]),
        "remove_process_set": (number, [number, *error]),
        "gather_ranks": (number, [numbers, number, numbers, number, numbers, *error]),
        "process_set_ranks": (number, [number, numbers, number]),
        "mpi_version": (text, []),
        "nccl_version": (number, [text]),
        "gpus_on_all_ranks": (number, []),
        "cuda_built": (number, []),
        "gpu_report": (text, [text]),
        "find_mpi": (number, [ctypes.POINTER(_InitOptions), text, size, text, size, *error]),
        "check_settings": (number, error),
        "shared_bytes": (ctypes.c_int64, [number]),
        "mpi_threads_supported": (number, []),
        "end_text": (text, []),
        "submitted_count": (ctypes.c_int64, []),
        "counters": (number, [longs, number]),
        "note_sources": (None, [ctypes.c_int64, longs, longs, text, number]),
        "forget_sources": (None, [ctypes.c_int64]),
        "forget_variable": (None, [ctypes.c_int64]),
        "start_timeline": (number, [text, number, *error]),
        "stop_timeline": (None, []),
        "metrics": (number, [longs, number, *error]),
        "set_eager_name": (None, [text]),
        "eager_source": (ctypes.c_void_p, []),
        "config_markdown": (text, []),
        "dtype_name": (text, [number]),
        "reduce_op_name": (text, [number]),
        "is_reducible": (number, [number, number]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(library, f"tf_hvd_{name}")
        function.restype = result
        function.argtypes = arguments


build_info = _build_info()
minor = _choose_minor(list(build_info.BUILDS), build_info.VERSION, tf.__version__)
"""That of TensorFlow, such as "2.21"."""
build: Mapping[str, Any] = build_info.BUILDS[minor]
"""What the library for it was built with."""
_library = DIRECTORY / build["library"]
ops = _load_ops()
# Only now: a TensorFlow that this wheel is not for is refused first, and may lack a part of it.
from tf_hvd.core.tensorflow_hooks import run_always_and_side_by_side  # noqa: E402

run_always_and_side_by_side(_COLLECTIVES)
# The same file again: the loader hands out the copy that TensorFlow opened.
library = ctypes.CDLL(str(_library))
_declare(library)
# It returns at once, and so keeps the interpreter's lock.
_set_eager_name = ctypes.PyDLL(str(_library)).tf_hvd_set_eager_name
_set_eager_name.restype = library.tf_hvd_set_eager_name.restype
_set_eager_name.argtypes = library.tf_hvd_set_eager_name.argtypes


def _numbers(values: Sequence[int]) -> Any:
    return (ctypes.c_int * len(values))(*values)


def _called(function: Any, *arguments: Any) -> tuple[int, str]:
    """Calls what reports by a status code (0: well) and a text."""
    error = ctypes.create_string_buffer(_ERROR_BYTES)
    code = int(function(*arguments, error, _ERROR_BYTES))
    return code, error.value.decode(errors="replace")


def _lines(texts: Sequence[str]) -> bytes:
    return "\n".join(texts).encode()


def init(
    mpi_candidates: Sequence[str],
    nccl_candidates: Sequence[str],
    ranks: Sequence[int] | None,
    communicator: int | None,
    sets: Sequence[Sequence[int]],
    settings: Mapping[str, str],
) -> tuple[int, str]:
    """Starts the runtime. Returns the native status code (0: well) and the error's text.

    Args:
      mpi_candidates: paths of libmpi to try.
      nccl_candidates: paths of libnccl to try.
      ranks: those of MPI_COMM_WORLD that form the job; None for all.
      communicator: Fortran handle of the communicator that forms it, of which `ranks` are
        then the ranks; None for none.
      sets: what all ranks must give alike: ranks of process sets.
      settings: values that must be equal on all ranks, by the name that an error tells.
    """
    options = _InitOptions(
        library_dir=str(DIRECTORY).encode(),
        mpi_candidates=_lines(mpi_candidates),
        nccl_candidates=_lines(nccl_candidates),
    )
    if ranks is not None:
        options.ranks, options.rank_count = _numbers(ranks), len(ranks)
    if communicator is not None:
        options.communicator = _numbers([communicator])
    flat = [number for one in sets for number in (*one, _SET_END)]
    options.sets, options.set_length = _numbers(flat), len(flat)
    lines = [f"{name}={value}".replace("\n", " ") for name, value in settings.items()]
    options.settings = _lines(lines)
    return _called(library.tf_hvd_init, ctypes.byref(options))


def add_process_set(ranks: Sequence[int]) -> tuple[int, int, str]:
    """Status code, the new set's number and the error's text."""
    number = ctypes.c_int(_SET_END)
    code, text = _called(
        library.tf_hvd_add_process_set, _numbers(ranks), len(ranks), ctypes.byref(number)
    )
    return code, number.value, text


def remove_process_set(number: int) -> tuple[int, str]:
    """Status code and the error's text."""
    return _called(library.tf_hvd_remove_process_set, number)


def start_timeline(path: str, mark_cycles: bool) -> tuple[int, str]:
    """Status code and the error's text."""
    return _called(library.tf_hvd_start_timeline, path.encode(), mark_cycles)


def metrics(count: int) -> tuple[int, list[int], str]:
    """Status code, so many numbers as tf_hvd_metrics has, and the error's text."""
    values = (ctypes.c_int64 * count)()
    code, text = _called(library.tf_hvd_metrics, values, count)
    return code, list(values), text


def gather_ranks(mine: Sequence[int]) -> tuple[int, list[list[int]], str]:
    """Status code, what each rank has given, in the order of ranks, and the error's text."""
    job = int(library.tf_hvd_size())
    room = _numbers([0] * (job * (job + 1)))  # each rank's part names all ranks at most
    length = ctypes.c_int()
    code, text = _called(
        library.tf_hvd_gather_ranks, _numbers(mine), len(mine), room, len(room), length
    )
    lists: list[list[int]] = [[]]
    for number in room[: length.value]:
        if number == _SET_END:
            lists.append([])
        else:
            lists[-1].append(number)
    return code, lists[:-1], text


def process_set_ranks(number: int) -> list[int] | None:
    """The members of a set, ascending; None if there is no such set."""
    count = int(library.tf_hvd_process_set_ranks(number, None, 0))
    if count < 0:
        return None
    room = _numbers([0] * count)
    library.tf_hvd_process_set_ranks(number, room, count)
    return list(room)


def shutdown(reason: str, through: bool) -> None:
    """Ends the runtime; `through`: this rank has made all its calls, rather than failed."""
    library.tf_hvd_shutdown(reason.encode(), through)


def forked_text() -> str:
    """Why this process, forked from a rank, is not in the job; empty in all others."""
    return str(library.tf_hvd_forked_text().decode(errors="replace"))


def end_text() -> str:
    """Why no more calls can be made in this process' job; empty while they can."""
    return str(library.tf_hvd_end_text().decode(errors="replace"))


def process_mark() -> str:
    """What stands for this process in the environment of those that it starts."""
    return str(library.tf_hvd_process_mark().decode())


def note_sources(
    number: int, variables: Sequence[int], places: Sequence[int], names: Sequence[str]
) -> None:
    """Notes a list of sources of gradients under a number, for ranks to compare.

    Args:
      number: the list's.
      variables: each source's number in this process, 0 for one that is no variable.
      places: each source's place in the whole list, of which this may be a part.
      names: what errors call them.
    """
    longs = ctypes.c_int64 * len(variables)
    text = "".join(name.replace("\n", " ") + "\n" for name in names)
    library.tf_hvd_note_sources(
        number, longs(*variables), longs(*places), text.encode(), len(variables)
    )


def set_eager_name(name: str | None) -> None:
    """Names the next eager collective of this thread on the wire; None takes it back."""
    _set_eager_name(None if name is None else name.encode())


def address_of(text: bytes) -> int:
    """Where a text lies, for the native side, as long as somebody holds it; it ends with a zero."""
    return ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value or 0


def eager_source() -> Any:
    """Where the native side looks for the line of this thread's next eager call.

    Its `value` is the address of a text, or None.
    """
    return ctypes.c_void_p.from_address(library.tf_hvd_eager_source())


def nccl_version(candidates: Sequence[str]) -> int:
    """22105 for 2.21.5; 0 if this process has no NCCL, or no CUDA driver."""
    return int(library.tf_hvd_nccl_version(_lines(candidates)))


def gpus_on_all_ranks() -> bool:
    """Whether every rank has a CUDA driver; False before init."""
    return bool(library.tf_hvd_gpus_on_all_ranks())


def gpu_report(nccl_candidates: Sequence[str]) -> list[list[str]]:
    """The lines of runtime/transport/gpu/report.h, each as its fields."""
    text = library.tf_hvd_gpu_report(_lines(nccl_candidates)).decode(errors="replace")
    return [line.split("\t") for line in text.splitlines()]


def find_mpi(mpi_candidates: list[str]) -> tuple[int, str, str, str]:
    """Status code, path and version line of the MPI that `init` would use; the error's text.

    It is opened, and not initialised.
    """
    options = _InitOptions(
        library_dir=str(DIRECTORY).encode(), mpi_candidates=_lines(mpi_candidates)
    )
    path, version = (ctypes.create_string_buffer(_ERROR_BYTES) for _ in range(2))
    code, text = _called(
        library.tf_hvd_find_mpi,
        *(ctypes.byref(options), path, len(path), version, len(version)),
    )
    found = [buffer.value.decode(errors="replace") for buffer in (path, version)]
    return code, found[0], found[1], text


def counters() -> tuple[int, ...]:
    """What this process has counted until now; base/counters.h has their order."""
    count = library.tf_hvd_counters(None, 0)
    values = (ctypes.c_int64 * count)()
    library.tf_hvd_counters(values, count)
    return tuple(values)


def settings_error() -> str:
    """What `init` would say of a setting in the environment that is none; empty if all are."""
    return _called(library.tf_hvd_check_settings)[1]


def mpi_version() -> str:
    """Version line of the MPI that serves this process; empty if none does."""
    text = library.tf_hvd_mpi_version()
    return text.decode(errors="replace") if text else ""


def config_markdown() -> str:
    return str(library.tf_hvd_config_markdown().decode())
