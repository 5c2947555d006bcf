"""What the user asked `tf_hvd bench` for. Imports nothing large: the launcher checks it first."""

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
    """Repetitions before those that count."""
    calls: int = 0
    """Calls in a repetition, which follow on one barrier; 0: more than one for a small workload."""

    def calls_of(self, workload: Workload) -> int:
        small = workload.size_bytes <= _SMALL_BYTES
        return self.calls or (_SMALL_CALLS if small else 1)


@dataclasses.dataclass(frozen=True)
class Settings:
    """The same on all ranks."""

    sizes: tuple[str, ...] = ()
    operations: tuple[str, ...] = ("allreduce",)
    dtypes: tuple[str, ...] = ("float32",)
    gradients: tuple[str, ...] = ()
    mode: str = ""
    """Empty: eager for sizes, a tf.function for gradients."""
    peers: tuple[str, ...] = PEERS
    plan: Plan = dataclasses.field(default_factory=Plan)
    training: str = ""
    """One of TRAININGS, or empty."""
    json: bool = False
    plot: str = ""
    """The file to draw to, or empty."""
    command: str = ""
    """What the report says to repeat."""

    def workloads(self, ranks: int) -> list[Workload]:
        """What to measure, in the order of the user's words.

        Raises:
          ValueError: there is no such size, operation, type, mode or model.
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
        """Says what cannot be done, before a job is started for it.

        Raises:
          ValueError: there is no such thing; the text lists those that there are.
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
            raise ValueError("nothing to measure, or to plot: give --sizes or --gradients")
        if self.plot:
            _check_plot(pathlib.Path(self.plot))


def _check_plot(file: pathlib.Path) -> None:
    if file.suffix.lower() not in PLOTS:
        raise ValueError(f"--plot {file}: the name must end in {' or '.join(PLOTS)}")
    if not file.resolve().parent.is_dir():
        raise ValueError(f"--plot {file}: there is no folder {file.resolve().parent}")
    try:
        files.check_target(file)
    except OSError as error:
        raise ValueError(f"--plot {files.reason(error)}") from error
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install 'tf_hvd[bench]'")
