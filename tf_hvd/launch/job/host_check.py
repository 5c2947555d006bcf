"""Whether the other hosts can be reached, and have what this job needs, before any of it starts.

MPI's launchers tell of a host that cannot be reached on a page about daemons and firewalls, and of
one that has another TensorFlow not at all.
"""

from __future__ import annotations

import ipaddress
import os
import shlex
import socket
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from tf_hvd.launch.errors import HostsError
from tf_hvd.launch.job.hosts import Host, all_local
from tf_hvd.launch.job.launchers import FAMILY_NAMES, Launcher, version_in

_CONNECT_SECONDS, _ANSWER_SECONDS = 10, 60
_AT_ONCE = 32
_MARK = "tf_hvd found "

# With these a launcher does not go by ssh, or by a command that is not ours to guess.
_OTHER_WAYS = (
    *("PRTE_MCA_plm", "PRTE_MCA_plm_ssh_agent", "OMPI_MCA_plm", "OMPI_MCA_plm_rsh_agent"),
    *("HYDRA_LAUNCHER", "HYDRA_LAUNCHER_EXEC", "HYDRA_BOOTSTRAP", "HYDRA_BOOTSTRAP_EXEC"),
    *("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "PE_HOSTFILE"),
)
_OTHER_WAY_WORDS = ("plm", "launcher", "bootstrap")
_SSH_ARGUMENTS = {"openmpi": "PRTE_MCA_plm_ssh_args", "mpich": "HYDRA_LAUNCHER_EXTRA_ARGS"}
_CURES = {
    "resolve hostname": "check the name in -H or the host file",
    "Host key verification": "log in once by hand, ssh {host}, to accept its key",
    "Permission denied": "ssh must not ask for a password: ssh-copy-id {host}, or -i FILE",
    "refused": "is an ssh server running there, and at this port (-p PORT)?",
    "timed out": "is it switched on, and can it be reached from here?",
    "No route": "is it switched on, and can it be reached from here?",
}

# For /bin/sh. What is missing ends it; what is there are facts, `name=value`, one on a line.
_SCRIPT = """\
say() {{ echo "{mark}$*"; }}
cd {folder} 2>/dev/null || {{ say missing={missing_folder}; exit 0; }}
[ -x {launcher} ] || {{ say missing={missing_launcher}; exit 0; }}
env {settings} {launcher} --version 2>/dev/null | sed 's/^/{mark}launcher=/'
PATH={path}; export PATH
command -v {program} >/dev/null || {{ say missing={missing_program}; exit 0; }}
[ -z {python} ] || {python} -I -c {facts}
ip -o -4 addr show up 2>/dev/null | sed -n 's/^.* inet \\([0-9./]*\\) .*/{mark}addresses=\\1/p'
say end
"""

# Not by `import tf_hvd`, which takes TensorFlow's seconds. RECORD has the hashes of what the wheel
# brought, which tell wheels of one version apart, and what the installer added, which does not.
_FACTS = f"""
import hashlib, importlib.metadata

def tell(name, *packages):
    for package in packages:
        try:
            found = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            continue
        text = found.version
        if name == "tf_hvd":
            lines = (found.read_text("RECORD") or "").splitlines()
            ours = sorted(x for x in lines if x.startswith("tf_hvd/") and ".pyc," not in x)
            text += ", build " + hashlib.sha256(chr(10).join(ours).encode()).hexdigest()[:8]
        print({_MARK!r} + name + "=" + text)
        return
    print({_MARK!r} + name + "=none")

tell("tf_hvd", "tf_hvd")
tell("TensorFlow", "tensorflow", "tensorflow-cpu", "tf-nightly")
"""


@dataclass(frozen=True)
class Needs:
    """What a host must have."""

    launcher: Launcher
    program: str
    """As on the command line."""
    python: str
    """The interpreter that the program is for; empty if it is not for Python, or not known."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """The ranks'."""


def goes_by_ssh(launcher: Launcher, words: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether a launcher reaches other hosts by ssh, with arguments that we know.

    Args:
        launcher: whose family counts.
        words: the user's arguments for it.
        environ: its environment.
    """
    if launcher.family not in _SSH_ARGUMENTS or any(name in environ for name in _OTHER_WAYS):
        return False
    return not any(part in word for word in words for part in _OTHER_WAY_WORDS)


def ssh_command(family: str, environ: Mapping[str, str]) -> list[str]:
    """The command that reaches a host as that launcher does, but for the host's name."""
    options = ["-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_SECONDS}"]
    return ["ssh", "-x", *options, *environ.get(_SSH_ARGUMENTS[family], "").split()]


@dataclass(frozen=True)
class Networks:
    """Networks that hosts have addresses in, as `172.17.0.0/16`."""

    private: tuple[str, ...] = ()
    """Those by which they do not reach each other."""
    common: tuple[str, ...] = ()
    """Those in which each has an address of its own."""


def check_hosts(hosts: Sequence[Host], needs: Needs) -> Networks:
    """Asks all hosts at once, this machine too if it is one of them.

    Returns:
        The networks that they are in.

    Raises:
        HostsError: some cannot be reached, lack something, or have another version of something
            than this machine, or than the first where this one is not among them.
    """
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        answers = dict(zip(hosts, pool.map(lambda host: _ask(host, needs), hosts), strict=True))
    wrong = [(host.name, answer.wrong) for host, answer in answers.items() if answer.wrong]
    right = [host for host, answer in answers.items() if not answer.wrong]
    right.sort(key=lambda host: not all_local([host], socket.gethostname()))
    wrong += _differences({host.name: answers[host].facts for host in right})
    if wrong:
        raise HostsError(wrong)
    return _networks([answer.addresses for answer in answers.values()])


@dataclass(frozen=True)
class _Answer:
    facts: Mapping[str, str] = field(default_factory=dict)
    wrong: str = ""
    addresses: frozenset[str] = frozenset()
    """Its own, with their networks' lengths: `10.0.0.1/24`."""


def _ask(host: Host, needs: Needs) -> _Answer:
    line = ["/bin/sh"]
    if not all_local([host], socket.gethostname()):
        line = [*ssh_command(needs.launcher.family, needs.environ), host.name, "/bin/sh"]
    try:
        ended = subprocess.run(
            line, input=_script(needs), capture_output=True, text=True, errors="replace",
            timeout=_ANSWER_SECONDS, env=dict(needs.environ), check=False,
        )  # fmt: skip
    except FileNotFoundError:
        return _Answer(wrong=f"host {host.name}: this machine has no ssh to reach it with")
    except subprocess.TimeoutExpired:
        text = f"host {host.name}: no answer by ssh within {_ANSWER_SECONDS} s"
        return _Answer(wrong=text)
    return _read(host.name, ended)


def _script(needs: Needs) -> str:
    launcher, folder, quote = needs.launcher.program, os.getcwd(), shlex.quote
    mpi = FAMILY_NAMES[needs.launcher.family]
    same = "all hosts need it at the same place"
    missing = {
        "missing_folder": f"no folder {folder} there; {same}",
        "missing_launcher": f"no {mpi} at {launcher} there; {same}",
        "missing_program": f"no program {needs.program} there; {same}",
    }
    words = {
        "folder": folder,
        "launcher": launcher,
        "path": needs.environ.get("PATH", os.defpath),
        "program": needs.program,
        "python": needs.python,
        "facts": _FACTS,
        **missing,
    }
    settings = [f"{name}={text}" for name, text in needs.launcher.environment.items()]
    return _SCRIPT.format(
        mark=_MARK, settings=shlex.join(settings), **{name: quote(w) for name, w in words.items()}
    )


def _read(name: str, ended: subprocess.CompletedProcess[str]) -> _Answer:
    said = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    last = said[-1] if said else f"exit code {ended.returncode}"
    if ended.returncode == 255:  # ssh's own
        cures = (cure for part, cure in _CURES.items() if part in last)
        cure = next(cures, "does `ssh {host} true` work?")
        return _Answer(wrong=f"host {name}: {last.rstrip('.')}; {cure.format(host=name)}")
    # A login may print whatever it likes before it.
    found = [line[len(_MARK) :] for line in ended.stdout.splitlines() if line.startswith(_MARK)]
    facts: dict[str, str] = {}
    for key, _, text in (line.partition("=") for line in found):
        facts[key] = f"{facts[key]}\n{text}" if key in facts else text
    if "missing" in facts:
        return _Answer(wrong=f"host {name}: {facts['missing']}")
    if "end" not in facts:
        return _Answer(wrong=f"host {name}: the check there failed: {last}")
    del facts["end"]
    facts["MPI"] = version_in(facts.pop("launcher", ""))
    addresses = frozenset(facts.pop("addresses", "").split())
    return _Answer(facts, addresses=addresses)


def _networks(of_hosts: Sequence[frozenset[str]]) -> Networks:
    """A network in which hosts have the same address is private: so all have Docker's bridge.

    Unless another host has an address of its own there: then they may be one network, after all.
    """
    times = Counter(ipaddress.ip_interface(one) for addresses in of_hosts for one in addresses)
    own = Counter(one.network for one, number in times.items() if number == 1)
    same = {one.network for one, number in times.items() if number > 1}
    common = {network for network, number in own.items() if number >= len(of_hosts)}
    return Networks(
        *(
            tuple(sorted(str(network) for network in found if not network.is_loopback))
            for found in (same - own.keys(), common - same)
        )
    )


def _differences(facts: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    first = next(iter(facts), "")
    for name, found in facts.items():
        for what, text in facts[first].items():
            there = found.get(what, "none")
            if there != text:
                there = f"no {what}" if there == "none" else f"{what} {there}"
                why = f"host {name}: it has {there}, but {first} has {text}; "
                yield name, why + "all hosts need the same version"
