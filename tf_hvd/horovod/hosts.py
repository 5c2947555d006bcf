"""horovod.runner.common.util.hosts: which rank goes to which host."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tf_hvd.launch.job import hosts as ours

__all__ = ["HostInfo", "SlotInfo", "get_host_assignments", "parse_hosts"]


@dataclass(eq=False)
class HostInfo:
    """A host, and how many ranks it may hold."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> "HostInfo":
        """The host of `name:slots`; ValueError for other texts."""
        host = ours.parse_entry(host_string.strip(), "HostInfo")
        return HostInfo(host.name, host.slots)


@dataclass
class SlotInfo:
    """The place of one rank: its host, and its numbers as `rank()` and its like give them."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int

    def to_response_string(self) -> str:
        """Six numbers and commas: rank, size, local rank, local size, cross rank, cross size."""
        numbers = (self.rank, self.size, self.local_rank, self.local_size)
        return ",".join(map(str, (*numbers, self.cross_rank, self.cross_size)))


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """The hosts of a list such as `node1:4,node2:4`; ValueError for other texts."""
    return [HostInfo.from_string(each) for each in hosts_string.split(",")]


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Fills hosts with ranks, one host after the other.

    Args:
      hosts: where ranks may go.
      min_num_proc: the fewest ranks.
      max_num_proc: the most; by default as many as there are slots.

    Returns:
      The place of each rank, in the order of ranks. For example, of
      `get_host_assignments(parse_hosts("a:2,b:1"), 3)` the last is rank 2 on host b, with local
      rank 0, cross rank 1 and cross size 2.

    Raises:
      ValueError: there are fewer slots than `min_num_proc`.
    """
    slots = sum(host.slots for host in hosts)
    size = slots if max_num_proc is None else min(slots, max_num_proc)
    if size < min_num_proc:
        raise ValueError(
            f"{min_num_proc} processes were requested, but there are slots for {size} only. Ask "
            "for fewer, or give the hosts more slots."
        )
    starts = itertools.accumulate((host.slots for host in hosts), initial=0)
    counts = [
        max(0, min(host.slots, size - start)) for host, start in zip(hosts, starts, strict=False)
    ]
    ranks = itertools.count()
    return [
        SlotInfo(
            hostname=host.hostname,
            rank=next(ranks),
            local_rank=local_rank,
            cross_rank=sum(other > local_rank for other in counts[:place]),
            size=size,
            local_size=local_size,
            cross_size=sum(other > local_rank for other in counts),
        )
        for place, (host, local_size) in enumerate(zip(hosts, counts, strict=True))
        for local_rank in range(local_size)
    ]
