"""horovod.runner.common.util.hosts: the assignment of ranks to hosts."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from tf_hvd.launch.job import hosts as ours

__all__ = ["HostInfo", "SlotInfo", "get_host_assignments", "parse_hosts"]


@dataclass(eq=False)
class HostInfo:
    """A host and its number of slots for ranks."""

    hostname: str
    slots: int

    @staticmethod
    def from_string(host_string: str) -> "HostInfo":
        """Parse `name:slots`; raise ValueError for any other text."""
        host = ours.parse_entry(host_string.strip(), "HostInfo")
        return HostInfo(host.name, host.slots)


@dataclass
class SlotInfo:
    """The host of one rank, and the rank's numbers, such as the value of `rank()`."""

    hostname: str
    rank: int
    local_rank: int
    cross_rank: int
    size: int
    local_size: int
    cross_size: int

    def to_response_string(self) -> str:
        """Return six comma-separated numbers: rank, size, local rank/size, cross rank/size."""
        numbers = (self.rank, self.size, self.local_rank, self.local_size)
        return ",".join(map(str, (*numbers, self.cross_rank, self.cross_size)))


def parse_hosts(hosts_string: str) -> list[HostInfo]:
    """Parse a list of hosts such as `node1:4,node2:4`; raise ValueError for any other text."""
    return [HostInfo.from_string(each) for each in hosts_string.split(",")]


def get_host_assignments(
    hosts: Sequence[HostInfo], min_num_proc: int, max_num_proc: int | None = None
) -> list[SlotInfo]:
    """Assign ranks to hosts, filling one host after another.

    Args:
      hosts: the available hosts.
      min_num_proc: int, the minimum number of ranks.
      max_num_proc: int, the maximum number of ranks (default: the number of slots).

    Returns:
      A list with the `SlotInfo` of each rank, in rank order. For example, the last element of
      `get_host_assignments(parse_hosts("a:2,b:1"), 3)` describes rank 2 on host b, with local
      rank 0, cross rank 1 and cross size 2.

    Raises:
      ValueError: the hosts have fewer slots than `min_num_proc`.
    """
    slots = sum(host.slots for host in hosts)
    size = slots if max_num_proc is None else min(slots, max_num_proc)
    if size < min_num_proc:
        raise ValueError(
            f"{min_num_proc} processes were requested, but there are only {size} slots. Request "
            "fewer, or give the hosts more slots."
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
