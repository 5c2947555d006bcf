"""The hosts that an elastic job may use: the available hosts without the excluded ones. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.job.hosts import Host, parse_entry

STRIKES = 3
"""The number of rank failures on a host, without a commit in between, before it is excluded."""


# In seconds: the default cooldown of an unreachable host, and how long a host that cannot run ranks
# is excluded. The latter is long because retrying such a host needs a restart.
_AGAIN, _UNFIT = (30.0, 600.0), 600.0


def delay(cooldown: tuple[float, float], failures: int, chance: float) -> float:
    """Return how long to exclude a host, in seconds, according to Horovod's formula.

    Args:
        cooldown: minimum and maximum in seconds.
        failures: number of earlier failures; each one doubles the time.
        chance: a random number from 0 to 1.
    """
    low, high = cooldown
    return min(low * 2.0 ** min(failures, 60) + chance * low, high)


class Hosts:
    """The available and the excluded hosts of one job. Not thread-safe.

    Args:
        cooldown: see `delay`; None to exclude a host for good after `STRIKES` failures in a row.
    """

    def __init__(self, cooldown: tuple[float, float] | None) -> None:
        self._cooldown = cooldown
        self._there: tuple[Host, ...] = ()
        self._failures: dict[str, int] = {}
        self._lost: dict[str, int] = {}  # number of failed connections since the last success
        self._until: dict[str, float] = {}

    def found(self, hosts: Sequence[Host]) -> None:
        """Set the available hosts. Known hosts keep their order, so that their ranks stay the same.

        A host that returns to the list may be a different machine, so its old records are deleted.
        """
        slots = {host.name: host for host in hosts}
        kept = [slots.pop(host.name) for host in self._there if host.name in slots]
        for name in slots:
            for known in (self._failures, self._lost, self._until):
                known.pop(name, None)
        self._there = (*kept, *slots.values())

    def names(self) -> list[str]:
        """Return the names of the available hosts, including excluded ones."""
        return [host.name for host in self._there]

    def failed(self, name: str, now: float) -> bool:
        """Record a failure of a rank on a host and return whether the host is now excluded."""
        before = self._failures.get(name, 0)
        self._failures[name] = before + 1
        if self._cooldown:
            self._until[name] = now + delay(self._cooldown, before, random.random())
        elif before + 1 >= STRIKES:
            self._until[name] = float("inf")
        return self._until.get(name, 0.0) > now

    def lost(self, name: str, now: float) -> float:
        """Record that a host cannot be reached and return how long it is excluded, in seconds."""
        before = self._lost.get(name, 0)
        self._lost[name] = before + 1
        seconds = delay(self._cooldown or _AGAIN, before, random.random())
        self._until[name] = now + seconds
        return seconds

    def reached(self, names: Iterable[str]) -> None:
        for name in names:
            self._lost.pop(name, None)

    def unfit(self, name: str, now: float) -> float:
        """Record that a host cannot run ranks and return how long it is excluded, in seconds."""
        self._until[name] = now + _UNFIT
        return _UNFIT

    def commit_made(self) -> None:
        """Record that the job has made a commit. Without a cooldown, this resets the failures."""
        if not self._cooldown:
            self._failures.clear()

    def usable(self, now: float) -> tuple[Host, ...]:
        return tuple(host for host in self._there if self._until.get(host.name, 0.0) <= now)


def slots_of(hosts: Sequence[Host]) -> int:
    return sum(host.slots for host in hosts)


def parse_discovered(text: str, slots: int | None) -> tuple[Host, ...]:
    """Parse the output of a discovery script: a line `name` or `name:slots` for each host.

    Args:
        text: the output; repeated lines count once.
        slots: slots of a host without a number; None if each line must have a number.

    Raises:
        UsageError: a line has a different form or lacks a required number.
    """
    found: dict[str, Host] = {}
    for line in text.splitlines():
        entry = line.strip()
        if not entry:
            continue
        if ":" not in entry:
            if slots is None:
                raise UsageError(
                    f"--host-discovery-script: {entry!r} has no slots; print {entry}:1, or give "
                    "--slots-per-host"
                )
            entry = f"{entry}:{slots}"
        host = parse_entry(entry, "--host-discovery-script")
        found[host.name] = host
    return tuple(found.values())
