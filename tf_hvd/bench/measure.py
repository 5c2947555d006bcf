"""Interleaved timing of the peers, so that disturbances on the machine affect all of them."""

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
    """Seconds per call on the slowest rank, one value per repetition."""
    missing: str | None = None
    core_latencies: tuple[float, float] | None = None
    """The latency between the ranks' cores in microseconds, before and after all peers are timed.

    None if unknown. The two latencies differ if a virtual machine moves its cores.
    """

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def spread(self) -> tuple[float, float]:
        """The 10th and the 90th percentiles of the repetitions' times, in seconds."""
        low, high = np.percentile(self.seconds, (10, 90))
        return float(low), float(high)

    @property
    def algorithm_bandwidth(self) -> float:
        """The size of the workload divided by the median time, in bytes per second."""
        return self.workload.size_bytes / self.median

    @property
    def bus_bandwidth(self) -> float | None:
        """The bandwidth used on a link, in bytes per second; None if the peer uses no link."""
        if not self.is_collective or self.workload.ranks == 1:
            return None
        return self.algorithm_bandwidth * self.workload.bus_factor


def usable(peers: Sequence[Peer], job: RunningJob) -> tuple[list[Peer], dict[str, str]]:
    """Return the peers available on every rank, and the reason why each other peer is missing."""
    reasons = {peer.name: _first(job, peer.missing()) for peer in peers}
    missing = {name: reason for name, reason in reasons.items() if reason}
    return [peer for peer in peers if peer.name not in missing], missing


def measure(
    peers: Sequence[Peer], workload: Workload, plan: Plan, job: RunningJob
) -> list[Measurement]:
    """Check each peer's result, then time all peers interleaved.

    Args:
      peers: the peers to measure.
      workload: the operation and its tensors.
      plan: the numbers of repetitions and calls.
      job: the running job.

    Returns:
      One measurement per peer, in the order of `peers`, the same on all ranks.

    Raises:
      BenchError: a result is wrong or a peer failed on any rank.
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
        seconds = interleaved(timed, plan.warmup + plan.repetitions, job)
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


def interleaved(
    timed: Mapping[str, Callable[[], float]], repetitions: int, job: RunningJob
) -> dict[str, list[float]]:
    """Return the slowest rank's time for each repetition in seconds, by name of the timed call."""
    mine: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(repetitions):
        for name, seconds in timed.items():
            mine[name].append(seconds())
    ranks = job.gather(mine)
    return {name: slowest([rank[name] for rank in ranks]) for name in mine}


def slowest(ranks: Sequence[Sequence[float]]) -> list[float]:
    return [max(each) for each in zip(*ranks, strict=True)]


def _first(job: RunningJob, reason: str | None) -> str | None:
    """Return the reason from the first rank that has one; all ranks get the same result."""
    return next((each for each in job.gather(reason) if each), None)


def _check(peer: Peer, workload: Workload, wrong: int | None, job: RunningJob) -> None:
    fault = None
    if wrong is not None:
        fault = f"{peer.name}: wrong result of {workload}, tensor {wrong}, on rank {job.rank}"
    fault = _first(job, fault)
    if fault:
        raise BenchError(fault)
