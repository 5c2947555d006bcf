"""Check before a job starts that other hosts can be reached and meet the job's needs.

MPI's launchers report an unreachable host with a page of text about daemons and firewalls. They do
not notice if a host has a different version of TensorFlow.
"""

from __future__ import annotations

import ipaddress
import json
import os
import shlex
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tf_hvd.launch.errors import HostsError
from tf_hvd.launch.job.hosts import Host, all_local
from tf_hvd.launch.job.launchers import FAMILY_NAMES, Launcher, user_home, version_in

_ANSWER_SECONDS = 60
_AT_ONCE = 32
_MARK = "tf_hvd found "
_LACKS = "no {} there; all hosts need it at the same path"
_DAMAGED = "the installation of {} there is damaged (no version); reinstall it"

_CURES = {
    "resolve hostname": "check the name in -H or the host file",
    "Host key verification": "log in once manually, ssh {host}, to accept its key",
    "Permission denied": "set up a login without a password: ssh-copy-id {host}, or -i FILE",
    "refused": "check that an SSH server runs there, at this port (-p PORT)",
    "timed out": "check that it is switched on and can be reached from here",
    "No route": "check that it is switched on and can be reached from here",
}

# For /bin/sh: runs the check with the program's Python or, if that is missing, with another Python.
# A machine without Python reports nothing; it can still run programs that need no Python.
_SCRIPT = """\
cd {folder} 2>/dev/null
PATH={path}; export PATH
for python in {pythons}; do
  command -v "$python" >/dev/null && exec "$python" -I -c {facts} {needs}
done
printf '%s\\n' {otherwise}
"""

# Does not import tf_hvd, which would load TensorFlow for seconds. RECORD has the hashes of the
# wheel's files, which distinguish builds of the same version. Entries that the installer added
# are skipped.
_FACTS = f"""
import hashlib, importlib.metadata, json, os, re, shutil, subprocess, sys

needs = json.loads(sys.argv[1])

def printed(*command):
    try:
        return subprocess.run(
            command, env={{**os.environ, **needs["settings"]}}, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, universal_newlines=True,
        ).stdout
    except OSError:
        return ""

def version(*packages):
    for package in packages:
        try:
            found = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        try:
            number = found.version
        except Exception:
            number = None
        if not number:
            raise LookupError(package)
        if package != "tf_hvd":
            return number
        lines = (found.read_text("RECORD") or "").splitlines()
        ours = sorted(x for x in lines if x.startswith("tf_hvd/") and ".pyc," not in x)
        build = hashlib.sha256(chr(10).join(ours).encode()).hexdigest()[:8]
        return number + ", build " + build
    return "none"

if not os.path.isdir(needs["folder"]):
    found = {{"wrong": {_LACKS!r}.format("folder " + needs["folder"])}}
elif not os.access(needs["launcher"], os.X_OK):
    found = {{"wrong": {_LACKS!r}.format(needs["mpi"] + " at " + needs["launcher"])}}
elif not shutil.which(needs["program"]):
    found = {{"wrong": {_LACKS!r}.format("program " + needs["program"])}}
else:
    addresses = printed("ip", "-o", "-4", "addr", "show", "up")
    found = {{"addresses": re.findall(" inet ([0-9./]*)", addresses)}}
    if needs["python"]:
        try:
            found["tf_hvd"] = version("tf_hvd")
            found["TensorFlow"] = version("tensorflow", "tensorflow-cpu", "tf-nightly")
        except LookupError as error:
            found = {{"wrong": {_DAMAGED!r}.format(*error.args)}}
    found["MPI"] = printed(needs["launcher"], "--version")
print({_MARK!r} + json.dumps(found))
"""


@dataclass(frozen=True)
class Needs:
    launcher: Launcher
    program: str
    """The program, as given on the command line."""
    python: str
    """The program's Python interpreter; empty if the program has none or it is unknown."""
    environ: Mapping[str, str]
    """The ranks' environment."""
    ssh: Sequence[str]
    """The words of the ssh command, without the host's name."""


def check_hosts(hosts: Sequence[Host], needs: Needs) -> tuple[list[str], list[str]]:
    """Check all hosts in parallel, including this machine if it is listed.

    Args:
        hosts: the hosts of the job.
        needs: the programs and versions that each host needs.

    Returns:
        Two lists of networks, such as `172.17.0.0/16`. The hosts cannot reach each other through
        the networks in the first list. Each host has its own address in every network in the
        second list.

    Raises:
        HostsError: hosts cannot be reached, lack something, or have different versions. The
            versions must match this machine's or, if it is not listed, the first host's.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = dict(zip(hosts, pool.map(lambda host: _ask(host, needs), hosts), strict=True))
    wrong = [(host.name, found["wrong"]) for host, found in answers.items() if "wrong" in found]
    addresses = [frozenset(found.pop("addresses", ())) for found in answers.values()]
    right = [host for host, found in answers.items() if "wrong" not in found]
    right.sort(key=lambda host: not all_local([host], socket.gethostname()))
    wrong += _differences({host.name: answers[host] for host in right})
    if wrong:
        raise HostsError(wrong)
    return _networks(addresses)


def _script(needs: Needs) -> str:
    folder, launcher = os.getcwd(), needs.launcher
    told = {
        "folder": folder,
        "mpi": FAMILY_NAMES[launcher.family],
        "launcher": launcher.program,
        "settings": dict(launcher.environment),
        "program": needs.program,
        "python": needs.python,
    }
    otherwise = {"wrong": _LACKS.format(f"program {needs.python}")} if needs.python else {}
    return _SCRIPT.format(
        folder=shlex.quote(folder),
        path=shlex.quote(needs.environ.get("PATH", os.defpath)),
        pythons=shlex.join(filter(None, (needs.python, sys.executable, "python3"))),
        facts=shlex.quote(_FACTS),
        needs=shlex.quote(json.dumps(told)),
        otherwise=shlex.quote(_MARK + json.dumps(otherwise)),
    )


def _ask(host: Host, needs: Needs) -> dict[str, Any]:
    """Return a host's facts, with keys from `_FACTS`, or its fault under the key "wrong"."""
    here = all_local([host], socket.gethostname())
    try:
        ended = subprocess.run(
            ["/bin/sh"] if here else [*needs.ssh, host.name, "/bin/sh"],
            input=_script(needs), capture_output=True, text=True, errors="replace",
            timeout=_ANSWER_SECONDS, env={"HOME": user_home(), **needs.environ}, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return {"wrong": f"host {host.name}: ssh is not installed on this machine"}
    except subprocess.TimeoutExpired:
        return {"wrong": f"host {host.name}: no answer over ssh within {_ANSWER_SECONDS} s"}
    last = next((one for one in reversed(ended.stderr.splitlines()) if one.strip()), "").strip()
    last = last or f"exit code {ended.returncode}"
    if ended.returncode == 255:  # ssh's own
        cures = (cure for part, cure in _CURES.items() if part in last)
        cure = next(cures, "check that `ssh {host} true` works").format(host=host.name)
        return {"wrong": f"host {host.name}: {last.rstrip('.')}; {cure}"}
    # A login may print any text before the answer.
    said = [line for line in ended.stdout.splitlines() if line.startswith(_MARK)]
    try:
        found: dict[str, Any] = json.loads(said[-1][len(_MARK) :])
    except (IndexError, ValueError):  # the answer is missing or incomplete
        return {"wrong": f"host {host.name}: the check there failed: {last}"}
    if "wrong" in found:
        found["wrong"] = f"host {host.name}: {found['wrong']}"
    if "MPI" in found:
        found["MPI"] = version_in(found["MPI"])
    return found


def _networks(of_hosts: Sequence[frozenset[str]]) -> tuple[list[str], list[str]]:
    """Return the hosts' private networks and the networks that all hosts share.

    A network in which hosts have the same address is private to each host, like Docker's bridge.
    If another host has a unique address in the network, the network may be common after all.
    """
    times = Counter(ipaddress.ip_interface(one) for addresses in of_hosts for one in addresses)
    own = Counter(one.network for one, number in times.items() if number == 1)
    same = {one.network for one, number in times.items() if number > 1}
    common = {network for network, number in own.items() if number >= len(of_hosts)}
    private = [str(one) for one in same - own.keys() if not one.is_loopback]
    return sorted(private), sorted(str(one) for one in common - same if not one.is_loopback)


def _differences(facts: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    first = next((name for name, found in facts.items() if found), "")
    for name, found in facts.items():
        for what, text in found.items():
            if text != facts[first][what]:
                there = f"no {what}" if text == "none" else f"{what} {text}"
                why = f"host {name}: it has {there}, but {first} has {facts[first][what]}; "
                yield name, why + "all hosts need the same version"
