"""Parsers for host lists: `-H name:slots,...` and host files. Pure functions without I/O."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tf_hvd.launch.errors import UsageError

FEWER_RANKS = "ask for fewer ranks or give hosts more slots"
"""The fix if `-H` or a host file has too few slots."""

_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1"})


@dataclass(frozen=True)
class Host:
    name: str
    slots: int

    def __str__(self) -> str:
        return f"{self.name}:{self.slots}"


def parse_hosts(text: str) -> tuple[Host, ...]:
    """Parse the `-H` argument, such as `node1:4,node2:4`. Ranks fill the hosts in this order."""
    return _distinct([parse_entry(entry.strip(), "-H") for entry in text.split(",")])


def parse_hostfile(text: str, path: str) -> tuple[Host, ...]:
    """Parse a host file in the format of Open MPI (`name slots=4`) or MPICH (`name:4`).

    Blank lines and comments (`#`) are skipped.

    Args:
        text: the contents of the file.
        path: the path of the file, for error messages.

    Raises:
        UsageError: a line cannot be parsed, or the file contains no hosts.
    """
    hosts = []
    for number, line in enumerate(text.splitlines(), start=1):
        entry = line.partition("#")[0].strip()
        if entry:
            entry = re.sub(r"\s+slots\s*=\s*", ":", entry)
            hosts.append(parse_entry(entry, f"{path}, line {number}"))
    if not hosts:
        raise UsageError(f"{path} contains no hosts; write one `name slots=N` per line")
    return _distinct(hosts)


def check_slots(hosts: Sequence[Host], ranks: int, cure: str) -> None:
    """Raise a UsageError with the fix `cure` if the hosts have fewer slots than `ranks`."""
    slots = sum(host.slots for host in hosts)
    if ranks > slots:
        listed = ",".join(map(str, hosts))
        them = f"{slots} slot{'s' if slots != 1 else ''} of {listed}"
        raise UsageError(f"-np {ranks} is more than the {them}; {cure}")


def placed(hosts: Sequence[Host], ranks: int) -> tuple[Host, ...]:
    """Fill the hosts in order; return those that get ranks, with rank counts as slots."""
    found = []
    for host in hosts:
        taken = min(host.slots, ranks)
        if taken == 0:
            break
        found.append(Host(host.name, taken))
        ranks -= taken
    return tuple(found)


def all_local(hosts: Sequence[Host], this_host: str) -> bool:
    """Return whether every host in the list is the machine named `this_host`."""
    short = this_host.partition(".")[0]
    names = {*_LOCAL_NAMES, this_host, short}
    for host in hosts:
        # A scheduler may know the domain of this machine even if the machine does not.
        bare = host.name.partition(".")[0] if short == this_host else host.name
        if host.name not in names and bare != short:
            return False
    return True


def is_same(name: str, other: str) -> bool:
    """Return whether two names may refer to the same machine; either may lack the domain."""
    name, other = name.lower(), other.lower()
    if name == other or is_address(name) or is_address(other):
        return name == other
    (short, _, domain), (other_short, _, other_domain) = name.partition("."), other.partition(".")
    return short == other_short and not (domain and other_domain)


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def parse_entry(entry: str, where: str) -> Host:
    """Parse one host, `name:slots`; error messages name its source, `where`."""
    if entry.count(":") > 1 or entry.startswith("["):
        raise UsageError(
            f"{where}: {entry!r} is not name:slots; for an IPv6 address write a host name instead"
        )
    name, colon, slots = entry.partition(":")
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{where}: {entry!r} is not name:slots; a host list looks like node1:4,node2:4"
        )
    if not colon:
        raise UsageError(
            f"{where}: {entry!r} has no slots; write {entry}:1 for one rank on that host"
        )
    if not (slots.isascii() and slots.isdigit() and int(slots) > 0):
        raise UsageError(
            f"{where}: the number of slots in {entry!r} must be a positive integer, "
            f"for example {name}:1"
        )
    return Host(name, int(slots))


def _distinct(hosts: Sequence[Host]) -> tuple[Host, ...]:
    seen: dict[str, int] = {}
    for host in hosts:
        if host.name in seen:
            total = seen[host.name] + host.slots
            raise UsageError(
                f"host {host.name} is listed twice; write it once, as {host.name}:{total}"
            )
        seen[host.name] = host.slots
    return tuple(hosts)
