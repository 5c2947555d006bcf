"""Which hosts an elastic job may have: those that are there, less those that failed. Pure."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.job.hosts import Host, parse_entry

STRIKES = 3
"""How often ranks of a host may fail with no commit in between, until it is left out."""


# In seconds: when a host that could not be reached is tried again, without a cooldown of the
# user's; and one that cannot have ranks, which takes a restart each time.
_AGAIN, _UNFIT = (30.0, 600.0), 600.0


def delay(cooldown: tuple[float, float], failures: int, chance: float) -> float:
    """Seconds that a host is left out, after so many failures before this one; Horovod's.

    Args:
        cooldown: the least and the most seconds.
        failures: each doubles them.
        chance: from 0 to 1.
    """
    low, high = cooldown
    return min(low * 2.0 ** min(failures, 60) + chance * low, high)


class Hosts:
    """The hosts of one job. One thread at a time.

    Args:
        cooldown: see `delay`; None: a host is left out for good, but only after `STRIKES` failures
            in a row.
    """

    def __init__(self, cooldown: tuple[float, float] | None) -> None:
        self._cooldown = cooldown
        self._there: tuple[Host, ...] = ()
        self._failures: dict[str, int] = {}
        self._lost: dict[str, int] = {}  # how often, since it was reached
        self._until: dict[str, float] = {}

    def found(self, hosts: Sequence[Host]) -> None:
        """These are there now. Those that were keep their order, so that low ranks stay.

        One that comes is another machine for all we know: what there was of its name is forgotten.
        """
        slots = {host.name: host for host in hosts}
        kept = [slots.pop(host.name) for host in self._there if host.name in slots]
        for name in slots:
            for known in (self._failures, self._lost, self._until):
                known.pop(name, None)
        self._there = (*kept, *slots.values())

    def names(self) -> list[str]:
        """Those that are there, whether they may be used or not."""
        return [host.name for host in self._there]

    def failed(self, name: str, now: float) -> bool:
        """Ranks of a host have failed; whether it is left out now."""
        before = self._failures.get(name, 0)
        self._failures[name] = before + 1
        if self._cooldown:
            self._until[name] = now + delay(self._cooldown, before, random.random())
        elif before + 1 >= STRIKES:
            self._until[name] = float("inf")
        return self._until.get(name, 0.0) > now

    def lost(self, name: str, now: float) -> float:
        """A host cannot be reached; returns for how many seconds it is left out."""
        before = self._lost.get(name, 0)
        self._lost[name] = before + 1
        seconds = delay(self._cooldown or _AGAIN, before, random.random())
        self._until[name] = now + seconds
        return seconds

    def reached(self, names: Iterable[str]) -> None:
        for name in names:
            self._lost.pop(name, None)

    def unfit(self, name: str, now: float) -> float:
        """The same where ranks cannot run on a host."""
        self._until[name] = now + _UNFIT
        return _UNFIT

    def went_on(self) -> None:
        """The job has made a commit: without a cooldown, failures before it do not count."""
        if not self._cooldown:
            self._failures.clear()

    def usable(self, now: float) -> tuple[Host, ...]:
        return tuple(host for host in self._there if self._until.get(host.name, 0.0) <= now)


def slots_of(hosts: Sequence[Host]) -> int:
    return sum(host.slots for host in hosts)


def parse_discovered(text: str, slots: int | None) -> tuple[Host, ...]:
    """Reads what a discovery script has printed: a line for each host, `name` or `name:slots`.

    Args:
        text: what it printed; a line that is there twice counts once.
        slots: of a host without a number of its own.

    Raises:
        UsageError: a line is neither, or has no number where there is none for all.
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
