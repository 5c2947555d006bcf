"""What a rank of `tf_hvd bench` does."""

from collections.abc import Callable, Mapping

from tf_hvd.bench import page, plot, report, training
from tf_hvd.bench.job import RunningJob
from tf_hvd.bench.measure import Measurement, measure, usable
from tf_hvd.bench.peers.base import MpiCommand, Peer, Surroundings
from tf_hvd.bench.peers.horovod import Horovod
from tf_hvd.bench.peers.machine import Copy, Sketch
from tf_hvd.bench.peers.mpi import Mpi
from tf_hvd.bench.peers.ours import Identity, Ours
from tf_hvd.bench.peers.outside import Distribute, Gloo
from tf_hvd.bench.settings import Settings


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


def run(settings: Settings, environ: Mapping[str, str], mpi_command: MpiCommand) -> None:
    """Measures, and reports on rank 0.

    Args:
      settings: the same on all ranks.
      environ: of the processes that peers start.
      mpi_command: see `Surroundings`.

    Raises:
      BenchError: a result is wrong, a peer failed, or a report cannot be written.
      ValueError: `settings` name what there is not.
    """
    settings.check()
    job = RunningJob()
    around = Surroundings(job, environ, mpi_command, settings.horovod)
    peers, missing = usable(peers_of(settings.peers, job, around), job)
    about = job.about()
    shown = report.Report()
    if job.rank == 0:
        shown = report.AsJson() if settings.json else report.Shown()
    results: list[list[Measurement]] = []
    times = None
    try:
        with shown:
            shown.begin(about, missing)
            for each in settings.workloads(job.size):
                found = measure(peers, each, settings.plan, job)
                results.append(found)
                shown.add(found)
            if settings.training:
                times = training.measure_steps(settings.training, settings.plan, job)
                shown.add_training(times)
            shown.end(settings.command)
    finally:
        for peer in peers:
            peer.close()
    if settings.plot and job.rank == 0:
        plot.write(settings.plot, [each for found in results for each in found])
    if settings.html and job.rank == 0:
        page.write(settings.html, about, results, times, settings.command)
