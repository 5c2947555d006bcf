"""On which interfaces a job listens: on one machine on none but loopback.

MPI opens ways to other machines whether or not there are any, and its launchers listen on every
interface. A job that stays on one machine opens none of these ways (environment.py), and its
launcher is given a library (listen.cc) that makes it listen on loopback. On several machines Open
MPI keeps to the network that they have in common, if that is one.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

from tf_hvd.core import contract
from tf_hvd.launch.errors import UsageError

_LIBRARY = Path(__file__).resolve().parents[2] / contract.PRELOADED
# Arguments of the launchers that name machines, or who does; and those that say where to listen.
PLACES = (
    *("H", "host", "hosts", "hostfile", "machinefile", "f", "add-host", "add-hostfile"),
    *("dvm", "dvm-uri", "launcher", "rmk"),
)
LISTENING = ("iface", "localhost")


def names(words: Sequence[str], options: Sequence[str]) -> bool:
    """Whether the user's arguments for the launcher have one of these options."""
    return any(w.startswith("-") and w.lstrip("-").partition("=")[0] in options for w in words)


def loopback(family: str) -> str:
    """The name of the loopback interface; empty if none is up, which MPICH does without.

    Raises:
        UsageError: Open MPI's launcher and ranks would not reach each other, and wait.
    """
    states = psutil.net_if_stats()
    down = [name for name, state in states.items() if not state.isup]
    for name, addresses in psutil.net_if_addrs().items():
        # An alias is in this list only.
        if name not in down and any(each.address == "127.0.0.1" for each in addresses):
            return name
    if family == "openmpi" and "lo" in down:
        raise UsageError(
            "the loopback interface of this machine is down, and Open MPI needs it; bring it up: "
            "ip link set lo up"
        )
    return ""


def jobs_network(common: Sequence[str]) -> str:
    """That of the networks which all machines share that is the only one of this machine's too.

    As `10.0.0.0/24`; empty if there are several, or none.
    """
    own = {
        str(ipaddress.IPv4Interface(f"{each.address}/{each.netmask}").network)
        for addresses in psutil.net_if_addrs().values()
        for each in addresses
        if each.family == socket.AF_INET and each.netmask
    }
    networks = own.intersection(common)
    return networks.pop() if len(networks) == 1 else ""


def listening_on_loopback(folder: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What makes a launcher listen on loopback alone, besides its environment.

    The session's folder gets a link to the library, if that cannot be preloaded where it is.
    """
    library = _LIBRARY
    if re.search("[ :]", str(library)):  # these stand between the names in LD_PRELOAD
        library = folder / _LIBRARY.name
        library.symlink_to(_LIBRARY)
    preloaded = environ.get("LD_PRELOAD", "")
    return {"LD_PRELOAD": f"{library}:{preloaded}" if preloaded else str(library)}
