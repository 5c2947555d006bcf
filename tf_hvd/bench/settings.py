"""The options for `tf_hvd bench`.

This module imports no large modules, because the launcher imports it to check the options before it
starts a job.
"""

import dataclasses
import importlib.util
import itertools
import pathlib

from tf_hvd.bench import workloads
from tf_hvd.bench.workloads import Workload
from tf_hvd.core import files

PEERS = ("tf_hvd", "tf.identity", "mpi", "mpi in place", "sketch", "copy")
TRAININGS = ("keras", "tape")
PLOTS = (".png", ".svg")

_SMALL_BYTES = 1 << 16
_SMALL_CALLS = 20


@dataclasses.dataclass(frozen=True)
class Plan:
    repetitions: int = 30
    warmup: int = 3
    """Number of repetitions before the timed repetitions."""
    calls: int = 0
    """Number of calls per repetition, after one barrier; 0 to derive it from the size."""

    def calls_of(self, workload: Workload) -> int:
        small = workload.size_bytes <= _SMALL_BYTES
        return self.calls or (_SMALL_CALLS if small else 1)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The options for `tf_hvd bench`. They are the same on all ranks."""

    sizes: tuple[str, ...] = ()
    operations: tuple[str, ...] = ("allreduce",)
    dtypes: tuple[str, ...] = ("float32",)
    gradients: tuple[str, ...] = ()
    mode: str = ""
    """One of MODES; empty for `eager` with sizes and `function` with gradients."""
    peers: tuple[str, ...] = PEERS
    plan: Plan = dataclasses.field(default_factory=Plan)
    training: str = ""
    """One of TRAININGS; empty to time no training step."""
    json: bool = False
    plot: str = ""
    """The path of the plot; empty for no plot."""
    command: str = ""
    """The command line that repeats the benchmark; printed in the report."""

    def workloads(self, ranks: int) -> list[Workload]:
        """Return the workloads to measure, in the order of the values in the user's options.

        Raises:
          ValueError: a size, operation, type, mode or model does not exist.
        """
        found = []
        for operation, dtype in itertools.product(self.operations, self.dtypes):
            for size in self.sizes:
                mode = self.mode or "eager"
                found.append(workloads.of_size(size, operation, dtype, mode, ranks))
            for name in self.gradients:
                mode = self.mode or "function"
                found.append(workloads.of_gradients(name, operation, dtype, mode, ranks))
        return found

    def check(self) -> None:
        """Check the options before a job starts.

        Raises:
          ValueError: an option is invalid; the text lists the valid values.
        """
        for kind, names, known in (
            ("operation", self.operations, workloads.OPERATIONS),
            ("dtype", self.dtypes, tuple(workloads.ITEM_BYTES)),
            ("peer", self.peers, PEERS),
        ):
            for name in names:
                if name not in known:
                    raise ValueError(f"unknown {kind} {name!r}; choose from {', '.join(known)}")
        if not self.workloads(1) and (self.plot or not self.training):
            raise ValueError("nothing to measure or plot: pass --sizes or --gradients")
        if self.plot:
            _check_plot(pathlib.Path(self.plot))


def _check_plot(file: pathlib.Path) -> None:
    if file.suffix.lower() not in PLOTS:
        raise ValueError(f"--plot {file}: the file name must end in {' or '.join(PLOTS)}")
    if not file.resolve().parent.is_dir():
        raise ValueError(f"--plot {file}: folder {file.resolve().parent} does not exist")
    try:
        files.check_target(file)
    except OSError as error:
        raise ValueError(f"--plot {files.reason(error)}") from error
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib; run: pip install 'tf_hvd[bench]'")
