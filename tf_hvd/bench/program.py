"""What a rank of `tf_hvd bench` does."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping

from tf_hvd.bench import plot, report, training, workloads
from tf_hvd.bench.job import RunningJob
from tf_hvd.bench.measure import Plan, measure, usable
from tf_hvd.bench.peers.base import Peer, Surroundings
from tf_hvd.bench.peers.machine import Copy, Sketch
from tf_hvd.bench.peers.mpi import Mpi
from tf_hvd.bench.peers.ours import Identity, Ours
from tf_hvd.bench.peers.outside import Distribute, Gloo, Horovod

PEERS = (
    "tf_hvd",
    "tf.identity",
    "mpi",
    "mpi in place",
    "sketch",
    "copy",
    "tf.distribute",
    "gloo",
    "horovod",
)


@dataclasses.dataclass(frozen=True)
class Settings:
    """What the user asked for."""

    sizes: tuple[str, ...] = ()
    operations: tuple[str, ...] = ("allreduce",)
    dtypes: tuple[str, ...] = ("float32",)
    gradients: tuple[str, ...] = ()
    mode: str = ""
    """Empty: eager for sizes, a tf.function for gradients."""
    peers: tuple[str, ...] = PEERS
    plan: Plan = dataclasses.field(default_factory=Plan)
    training: str = ""
    json: bool = False
    plot: str = ""
    horovod: str = ""
    command: str = ""
    """What to repeat."""


def chosen(settings: Settings, ranks: int) -> list[workloads.Workload]:
    """The workloads, in the order of the user's words.

    Raises:
      ValueError: there is no such size, operation, type, mode or set.
    """
    found = []
    for operation, dtype in itertools.product(settings.operations, settings.dtypes):
        for size in settings.sizes:
            mode = settings.mode or "eager"
            found.append(workloads.of_size(size, operation, dtype, mode, ranks))
        for name in settings.gradients:
            mode = settings.mode or "function"
            found.append(workloads.of_gradients(name, operation, dtype, mode, ranks))
    return found


def peers_of(names: tuple[str, ...], job: RunningJob, around: Surroundings) -> list[Peer]:
    """The peers of these names, in their order."""
    makers: dict[str, Callable[[], Peer]] = {
        "tf_hvd": Ours,
        "tf.identity": Identity,
        "mpi": lambda: Mpi(job.mpi),
        "mpi in place": lambda: Mpi(job.mpi, in_place=True),
        "sketch": lambda: Sketch(job.shared),
        "copy": Copy,
        "tf.distribute": lambda: Distribute(around),
        "gloo": lambda: Gloo(around),
        "horovod": lambda: Horovod(around),
    }
    return [makers[name]() for name in names]


def run(settings: Settings, environ: Mapping[str, str]) -> None:
    """Measures, and reports on rank 0.

    Args:
      settings: the same on all ranks.
      environ: of the processes that peers start.

    Raises:
      BenchError: a result is wrong, a peer failed, or a report cannot be written.
      ValueError: `settings` name what there is not.
    """
    if settings.plot:
        plot.check(settings.plot)
    _check(settings)
    job = RunningJob()
    work = chosen(settings, job.size)
    around = Surroundings(job, environ, settings.horovod)
    peers, missing = usable(peers_of(settings.peers, job, around), job)
    about = job.about()
    shown = report.Report()
    if job.rank == 0:
        shown = report.AsJson() if settings.json else report.Shown()
    results = []
    try:
        with shown:
            shown.begin(about, missing)
            for each in work:
                found = measure(peers, each, settings.plan, job)
                results += found
                shown.add(found)
            if settings.training:
                times = training.measure_steps(settings.training, settings.plan, job)
                shown.add_training(times)
            shown.end(settings.command)
    finally:
        for peer in peers:
            peer.close()
    if settings.plot and job.rank == 0:
        plot.write(settings.plot, results)


def _check(settings: Settings) -> None:
    """Says before the job is joined what would fail in it."""
    for kind, names, known in (
        ("operation", settings.operations, workloads.OPERATIONS),
        ("dtype", settings.dtypes, tuple(workloads.ITEM_BYTES)),
        ("peer", settings.peers, PEERS),
        ("training", (settings.training,) * bool(settings.training), training.KINDS),
    ):
        for name in names:
            if name not in known:
                raise ValueError(f"there is no {kind} {name!r}: {', '.join(known)}")
    chosen(settings, 1)
