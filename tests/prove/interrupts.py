"""Ctrl-C in a job: what its ranks save, how it ends and how soon, and what is left of it."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jobs
import psutil
from prove import Table

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "nodes"))
import cluster

GRACE = 6
PROGRAM = """
hangs = os.environ["PROVE_HANGS"] == "1" and rank == 1
signal.signal(signal.SIGTERM, signal.SIG_IGN if hangs else signal.SIG_DFL)
try:
    here()
    time.sleep(300)
except KeyboardInterrupt:
    while hangs:
        with __import__("contextlib").suppress(KeyboardInterrupt):
            time.sleep(300)
    # Longer than launchers leave the ranks of a job that they end, and longer than the other rank.
    time.sleep(1 + rank)
    name = os.path.join(os.environ["TF_HVD_PROVE"], f"saved.{rank}")
    open(name, "w").close()
    raise
"""
LEFT_BY_MPI = ("sm_segment.", "mpich_shm_", "tf_hvd_")


@contextlib.contextmanager
def started(
    family: str, terminal: str, nodes: Mapping[str, Any], hangs: bool
) -> Iterator[tuple[jobs.Job, int]]:
    """A job that runs, and the end of its terminal that sends a Ctrl-C; -1 without one."""
    ours, theirs = pty.openpty() if terminal == "pty" else (-1, subprocess.DEVNULL)

    def within(command: list[str]) -> list[str]:
        first = ["setsid", "--ctty", "--wait"] if terminal == "pty" else []
        return nodes["alpha"].command([*first, *command]) if nodes else [*first, *command]

    options = ["--grace", str(GRACE), *(["-H", "alpha:1,beta:1"] if nodes else [])]
    settings = {"PROVE_HANGS": str(int(hangs))}
    program = jobs.PREAMBLE + PROGRAM
    try:
        with jobs.Job(family, 2, program, settings, options, within, theirs) as job:
            job.processes()
            yield job, ours
    finally:
        for end in (ours, theirs):
            if end >= 0:
                os.close(end)


def launcher_of(job: jobs.Job) -> psutil.Process:
    """The process of `tf_hvd run` itself."""
    top = psutil.Process(job.process.pid)
    return next(
        each
        for each in [top, *top.children(recursive=True)]
        if each.cmdline()[:1] == [sys.executable] and "tf_hvd_command" in each.cmdline()
    )


def interrupt(family: str, terminal: str, nodes: Mapping[str, Any], hangs: bool) -> list[object]:
    """Interrupts one job; what was saved, its exit code, and the seconds until it had ended."""
    with started(family, terminal, nodes, hangs) as (job, ours):
        if terminal == "pty":
            os.write(ours, b"\x03")
        else:
            launcher_of(job).send_signal(signal.SIGINT)
        began = time.monotonic()
        code = job.wait()
        seconds = time.monotonic() - began
        saved = sorted(file.suffix[1:] for file in job.folder.glob("saved.*"))
        output, left = job.output(), job.left()
        for node in nodes.values():
            listed = subprocess.check_output(node.command(["ls", "/dev/shm"]), text=True)
            left += [name for name in listed.split() if name.startswith(LEFT_BY_MPI)]
    assert code == 128 + signal.SIGINT, output
    assert saved == (["0"] if hangs else ["0", "1"]), output
    # A rank that has saved leaves the job, and waits a while for one that does not.
    killed = r"(rank 1|ranks 0, 1) had not ended yet and had to be killed"
    assert re.search(killed if hangs else "all ranks ended by themselves", output), output
    assert not left, f"left behind: {left}\n{output}"
    return [", ".join(saved), code, f"{seconds:.1f}"]


def prove(short: bool) -> Table:
    table = Table(
        "Ctrl-C in a job of 2 ranks, of which rank 0 takes 1 s to save what it has and rank 1 2 s, "
        f"or never ends (`--grace {GRACE}`). Each time `tf_hvd run` said which, and no process, "
        "shared memory or file was left.",
        ["MPI", "by", "hosts", "rank 1", "ranks that saved", "exit code", "s until the end"],
    )
    reason = cluster.why_not()
    assert short or not reason, f"no second host on this machine: {reason}"
    with contextlib.ExitStack() as ends:
        two = {} if reason else ends.enter_context(cluster.cluster(["alpha", "beta"]))
        cases = itertools.product(("openmpi", "mpich"), ("pipe", "pty"), (1, 2), (False, True))
        for family, terminal, hosts, hangs in itertools.islice(cases, 2 if short else None):
            if hosts == 2 and not two:
                continue
            found = interrupt(family, terminal, two if hosts == 2 else {}, hangs)
            table.add(family, terminal, hosts, "never ends" if hangs else "saves", *found)
    return table
