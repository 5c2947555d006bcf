"""The native library, loaded for its TensorFlow ops and, through ctypes, for its C API.

At import, this module detects all mismatches between the package and the installed TensorFlow,
and raises an error that says how to fix them.
"""

import ctypes
import importlib
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.core import error_text, kinds, main_thread, wheels
from tf_hvd.core.exceptions import HorovodVersionMismatchError

DIRECTORY = pathlib.Path(__file__).resolve().parents[1]

# Collectives that run at every call to a tf.function, whether or not their results are
# used, and in any order. Ops called only for their effect (barrier, join, broadcast_) are
# not included. They always run, and must keep their order among assignments and other
# effects.
_COLLECTIVES = frozenset(
    op_type for kind in kinds.OF_TENSORS.values() for op_type in kind.functions
)

_ERROR_BYTES = 8192
_SET_END = -1

hurry = 1
"""For tests: a factor that divides the time limits of all waits, except those in `init`."""


def _build_info() -> Any:
    try:
        return importlib.import_module("tf_hvd._build_info")
    except ModuleNotFoundError as error:
        raise ImportError(
            f"tf_hvd has no native library in {DIRECTORY}, which is its source tree. Run "
            "'./dev build', install the wheel that it builds, and keep the source tree off "
            "sys.path."
        ) from error


def _choose_minor(minors: Sequence[str], version: str, found: str) -> str:
    """Return the installed TensorFlow's minor version if the wheel has a library for it.

    Raises:
      HorovodVersionMismatchError: the wheel has no such library.
    """
    if wheels.minor(found) in minors:
        return wheels.minor(found)
    raise HorovodVersionMismatchError(
        f"tf_hvd {version} was built for TensorFlow {wheels.named(minors)} but TensorFlow "
        f"{found} is installed. These versions are incompatible, because TensorFlow's C++ "
        f"interface changes with each minor version. {wheels.cure(minors, found)}."
    )


def _load_ops() -> Any:
    if zipped := wheels.zipped_text(str(DIRECTORY)):
        raise ImportError(zipped)
    try:
        return tf.load_op_library(str(_library))
    except (tf.errors.NotFoundError, OSError) as error:
        raise ImportError(
            f"TensorFlow {tf.__version__} could not load {_library}: {error}. An undefined symbol "
            f"means that this TensorFlow is not PyPI's {minor}, but for example a nightly or a "
            f"vendor's build. Build a wheel for it with {wheels.build_hint()}."
        ) from error


class _InitOptions(ctypes.Structure):
    """The C struct tf_hvd_init_options of runtime/api/c_api.h."""

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
        ("frames_signal", ctypes.c_int),
        ("frames_file", ctypes.c_int),
        ("others_files", ctypes.c_char_p),
        ("hurry", ctypes.c_int),
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
"""The minor version of TensorFlow, such as "2.21"."""
build: Mapping[str, Any] = build_info.BUILDS[minor]
"""Information on how the library for this TensorFlow was built."""
_library = DIRECTORY / build["library"]
ops = _load_ops()
# Only now: an unsupported TensorFlow is refused above, and may lack some of what this imports.
from tf_hvd.core.tensorflow_hooks import run_always_and_side_by_side  # noqa: E402

run_always_and_side_by_side(_COLLECTIVES)
# The same file: the loader returns the copy that TensorFlow has loaded.
library = ctypes.CDLL(str(_library))
_declare(library)
# Returns immediately, so it need not release the interpreter's lock.
_set_eager_name = ctypes.PyDLL(str(_library)).tf_hvd_set_eager_name
_set_eager_name.restype = library.tf_hvd_set_eager_name.restype
_set_eager_name.argtypes = library.tf_hvd_set_eager_name.argtypes


def _numbers(values: Sequence[int]) -> Any:
    return (ctypes.c_int * len(values))(*values)


def _called(function: Any, *arguments: Any) -> tuple[int, str]:
    """Call a C function; return its status code (0: success) and its error text."""
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
    """Start the runtime.

    Args:
      mpi_candidates: paths of libmpi to try, in this order.
      nccl_candidates: paths of libnccl to try, in this order.
      ranks: the ranks of MPI_COMM_WORLD that form the job; None for all ranks.
      communicator: Fortran handle of the communicator that forms the job; None if no
        communicator was given. With a communicator, `ranks` lists its ranks.
      sets: the ranks of each process set; they must be the same on all ranks.
      settings: values that must be the same on all ranks, by their names in errors.

    Returns:
      The native status code (0: success) and the error text.
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
    options.frames_signal, options.frames_file = main_thread.watched()
    options.others_files = _lines(error_text.OTHERS_PARTS)
    options.hurry = hurry
    return _called(library.tf_hvd_init, ctypes.byref(options))


def add_process_set(ranks: Sequence[int]) -> tuple[int, int, str]:
    """Add a process set; return the status code, the set's number and the error text."""
    number = ctypes.c_int(_SET_END)
    code, text = _called(
        library.tf_hvd_add_process_set, _numbers(ranks), len(ranks), ctypes.byref(number)
    )
    return code, number.value, text


def remove_process_set(number: int) -> tuple[int, str]:
    """Remove a process set; return the status code and the error text."""
    return _called(library.tf_hvd_remove_process_set, number)


def start_timeline(path: str, mark_cycles: bool) -> tuple[int, str]:
    """Start this rank's timeline; return the status code and the error text."""
    return _called(library.tf_hvd_start_timeline, path.encode(), mark_cycles)


def metrics(count: int) -> tuple[int, list[int], str]:
    """Return the status code, the first `count` numbers of tf_hvd_metrics, and the error text."""
    values = (ctypes.c_int64 * count)()
    code, text = _called(library.tf_hvd_metrics, values, count)
    return code, list(values), text


def gather_ranks(mine: Sequence[int]) -> tuple[int, list[list[int]], str]:
    """Return the status code, each rank's list in rank order, and the error text."""
    job = int(library.tf_hvd_size())
    room = _numbers([0] * (job * (job + 1)))  # each rank names at most all ranks
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
    """Return the members of a set in ascending order; None if the set does not exist."""
    count = int(library.tf_hvd_process_set_ranks(number, None, 0))
    if count < 0:
        return None
    room = _numbers([0] * count)
    library.tf_hvd_process_set_ranks(number, room, count)
    return list(room)


def shutdown(reason: str, through: bool) -> None:
    """End the runtime; `through` is True if this rank made all its calls, False if it failed."""
    library.tf_hvd_shutdown(reason.encode(), through)


def forked_text() -> str:
    """Return why this process, a fork of a rank, is not in the job; "" in other processes."""
    return str(library.tf_hvd_forked_text().decode(errors="replace"))


def end_text() -> str:
    """Return why the job of this process accepts no more calls; "" while it accepts calls."""
    return str(library.tf_hvd_end_text().decode(errors="replace"))


def process_mark() -> str:
    """Return the text that marks this process in the environment of its child processes."""
    return str(library.tf_hvd_process_mark().decode())


def note_sources(
    number: int, variables: Sequence[int], places: Sequence[int], names: Sequence[str]
) -> None:
    """Register a list of gradient sources under a number, so that ranks can compare the list.

    Args:
      number: int, the number of the list.
      variables: each source's number in this process; 0 for a source that is not a variable.
      places: each source's index in the whole list. These sources may be only a part of it.
      names: the sources' names, for errors.
    """
    longs = ctypes.c_int64 * len(variables)
    text = "".join(name.replace("\n", " ") + "\n" for name in names)
    library.tf_hvd_note_sources(
        number, longs(*variables), longs(*places), text.encode(), len(variables)
    )


def set_eager_name(name: str | None) -> None:
    """Set the name of this thread's next eager collective; None removes the name."""
    _set_eager_name(None if name is None else name.encode())


def address_of(text: bytes) -> int:
    """Return the address of a zero-terminated text for the native library.

    The address is valid while the caller keeps the text.
    """
    return ctypes.cast(ctypes.c_char_p(text), ctypes.c_void_p).value or 0


def eager_source() -> Any:
    """Return where the native library reads the program line of this thread's next eager call.

    Set its `value` to the address of a text, or to None.
    """
    return ctypes.c_void_p.from_address(library.tf_hvd_eager_source())


def nccl_version(candidates: Sequence[str]) -> int:
    """Return NCCL's version as an int (22105 for 2.21.5); 0 without NCCL or a CUDA driver."""
    return int(library.tf_hvd_nccl_version(_lines(candidates)))


def gpus_on_all_ranks() -> bool:
    """Return whether every rank has a CUDA driver; False before `init`."""
    return bool(library.tf_hvd_gpus_on_all_ranks())


def gpu_report(nccl_candidates: Sequence[str]) -> list[list[str]]:
    """Return the lines of the GPU report (runtime/transport/gpu/report.h), split into fields."""
    text = library.tf_hvd_gpu_report(_lines(nccl_candidates)).decode(errors="replace")
    return [line.split("\t") for line in text.splitlines()]


def find_mpi(mpi_candidates: list[str]) -> tuple[int, str, str, str]:
    """Find the MPI that `init` would use, and load it without initialising it.

    Returns:
      The status code, MPI's path and version line, and the error text.
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
    """Return the current values of the process's counters, in the order of base/counters.h."""
    count = library.tf_hvd_counters(None, 0)
    values = (ctypes.c_int64 * count)()
    library.tf_hvd_counters(values, count)
    return tuple(values)


def settings_error() -> str:
    """Return the error that `init` would raise for an invalid setting; "" if all are valid."""
    return _called(library.tf_hvd_check_settings)[1]


def mpi_version() -> str:
    """Return the version line of the MPI that this process uses; "" if it uses none."""
    text = library.tf_hvd_mpi_version()
    return text.decode(errors="replace") if text else ""


def config_markdown() -> str:
    return str(library.tf_hvd_config_markdown().decode())
