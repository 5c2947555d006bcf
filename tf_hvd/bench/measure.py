"""Times the peers in turns: what disturbs the machine meanwhile disturbs them all."""

import dataclasses
import functools
import statistics
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tf_hvd.bench import values
from tf_hvd.bench.errors import BenchError
from tf_hvd.bench.job import RunningJob
from tf_hvd.bench.peers.base import Peer
from tf_hvd.bench.settings import Plan
from tf_hvd.bench.workloads import Workload


@dataclasses.dataclass(frozen=True)
class Measurement:
    workload: Workload
    peer: str
    is_collective: bool
    seconds: tuple[float, ...] = ()
    """Of a call, for each repetition: the slowest rank's."""
    missing: str | None = None
    core_latencies: tuple[float, float] | None = None
    """The latency in microseconds between the ranks' cores, before and after all peers' turns;
    None if it is not known. Virtual machines move their cores."""

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """The 10th and the 90th percentile of the repetitions, in seconds."""
        low, high = np.percentile(self.seconds, (10, 90))
        return float(low), float(high)

    @property
    def algorithm_bandwidth(self) -> float:
        """The workload's bytes per second."""
        return self.workload.size_bytes / self.median

    @property
    def bus_bandwidth(self) -> float | None:
        """Bytes per second of a link; None if none is used."""
        if not self.is_collective or self.workload.ranks == 1:
            return None
        return self.algorithm_bandwidth * self.workload.bus_factor


def usable(peers: Sequence[Peer], job: RunningJob) -> tuple[list[Peer], dict[str, str]]:
    """The peers that every rank has, and why the others are not among them."""
    reasons = {peer.name: _first(job, peer.missing()) for peer in peers}
    missing = {name: reason for name, reason in reasons.items() if reason}
    return [peer for peer in peers if peer.name not in missing], missing


def measure(
    peers: Sequence[Peer], workload: Workload, plan: Plan, job: RunningJob
) -> list[Measurement]:
    """Checks each peer's result, then times all in turns.

    Returns:
      A measurement of each peer, in their order, the same on all ranks.

    Raises:
      BenchError: a result is wrong, or a peer failed, on some rank.
    """
    inputs = values.inputs(workload, job.rank)
    reasons = {peer.name: _first(job, peer.prepare(workload, inputs)) for peer in peers}
    ready = [peer for peer in peers if not reasons[peer.name]]
    try:
        outputs = values.outputs(workload, job.rank)
        for peer in ready:
            _check(peer, workload, peer.check(inputs, outputs), job)
        del outputs
        before = job.core_latency()
        calls = plan.calls_of(workload)
        timed = {peer.name: functools.partial(peer.seconds, calls, job.barrier) for peer in ready}
        seconds = turns(timed, plan.warmup + plan.repetitions, job)
        after = job.core_latency()
    finally:
        for peer in peers:
            peer.release()
    return [
        Measurement(
            workload,
            peer.name,
            peer.is_collective,
            tuple(seconds.get(peer.name, ())[plan.warmup :]),
            reasons[peer.name],
            None if before is None or after is None else (before, after),
        )
        for peer in peers
    ]


def turns(
    timed: Mapping[str, Callable[[], float]], repetitions: int, job: RunningJob
) -> dict[str, list[float]]:
    """The slowest rank's time of each repetition, by the name of what it times."""
    mine: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(repetitions):
        for name, seconds in timed.items():
            mine[name].append(seconds())
    ranks = job.gather(mine)
    return {name: slowest([rank[name] for rank in ranks]) for name in mine}


def slowest(ranks: Sequence[Sequence[float]]) -> list[float]:
    return [max(each) for each in zip(*ranks, strict=True)]


def _first(job: RunningJob, reason: str | None) -> str | None:
    """The reason of the first rank that has one; the same on all ranks."""
    return next((each for each in job.gather(reason) if each), None)


def _check(peer: Peer, workload: Workload, wrong: int | None, job: RunningJob) -> None:
    fault = None
    if wrong is not None:
        fault = f"{peer.name}: wrong result of {workload}, tensor {wrong}, on rank {job.rank}"
    fault = _first(job, fault)
    if fault:
        raise BenchError(fault)
