"""The program that each rank of `tf_hvd bench` runs."""

from collections.abc import Callable, Sequence

from tf_hvd.bench import plot, report, training
from tf_hvd.bench.job import RunningJob
from tf_hvd.bench.measure import Measurement, measure, usable
from tf_hvd.bench.peers.base import Peer
from tf_hvd.bench.peers.machine import Copy, Sketch
from tf_hvd.bench.peers.mpi import Mpi
from tf_hvd.bench.peers.ours import Identity, Ours
from tf_hvd.bench.settings import Settings


def peers_of(names: Sequence[str], job: RunningJob) -> list[Peer]:
    makers: dict[str, Callable[[], Peer]] = {
        "tf_hvd": Ours,
        "tf.identity": Identity,
        "mpi": lambda: Mpi(job.mpi),
        "mpi in place": lambda: Mpi(job.mpi, in_place=True),
        "sketch": lambda: Sketch(job.shared),
        "copy": Copy,
    }
    return [makers[name]() for name in names]


def run(settings: Settings, job: RunningJob, others: Sequence[Peer] = ()) -> None:
    """Measure `others` and the peers named in `settings`; report the results on rank 0.

    Raises:
      BenchError: a result is wrong, a peer failed, or a report cannot be written.
    """
    peers, missing = usable([*peers_of(settings.peers, job), *others], job)
    shown = report.Report()
    if job.rank == 0:
        shown = report.AsJson() if settings.json else report.Shown()
    results: list[Measurement] = []
    with shown:
        shown.begin(job.about(), missing)
        for each in settings.workloads(job.size):
            found = measure(peers, each, settings.plan, job)
            results += found
            shown.add(found)
        if settings.training:
            times = training.measure_steps(settings.training, settings.plan, job)
            shown.add_training(times)
        shown.end(settings.command)
    if settings.plot and job.rank == 0:
        plot.write(settings.plot, results)
