"""kill -9 of each kind of process of a job in each phase: what ends, and what continues."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import jobs
import psutil
from prove import Table

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "nodes"))
import cluster

# Each of two ranks reports its phase by a file, and stays there until the kill. During the start,
# and during a restart, rank 0 then waits in init() for rank 1.
PROGRAM = """
import atexit, os, time
folder, plan = os.environ["TF_HVD_PROVE"], os.environ["PLAN"].split()
rank, start = int(os.environ["TF_HVD_LAUNCHED_RANK"]), os.environ.get("TF_HVD_ELASTIC_START", "0")

def phase():
    # The phase of the next kill; the folder has a file for each phase with a completed kill.
    return next((each for each in plan if not os.path.exists(f"{folder}/killed.{each}")), "")

def is_at(name):
    with open(f"{folder}/new.{rank}", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{folder}/new.{rank}", f"{folder}/{name}.{rank}")

def wait(name):
    if name == phase():
        is_at(name)
        while name == phase() and (rank == 1 or name == "end"):
            time.sleep(0.01)

atexit.register(wait, "end")  # runs after the handler that leaves the job
import numpy as np
import tensorflow as tf
import tf_hvd as hvd
wait("restart" if start != "0" else "start")
hvd.init()
values = tf.Variable(tf.zeros([4_000_000]))
state = hvd.elastic.TensorFlowState([values], step=0)
steps = os.open(f"{folder}/steps", os.O_CREAT | os.O_WRONLY | os.O_APPEND)

def note(what):
    if rank == 0:
        os.write(steps, f"{what} {state.step} {time.time()}\\n".encode())

@hvd.elastic.run
def train(state):
    assert np.all(values.numpy() == state.step), "the commit is torn"
    note("from")
    places = ["start", "training", "restart", "commit", "end", ""]
    made = dict.fromkeys(places, 0)
    while True:
        # All ranks must commit and end at the same steps.
        place = int(hvd.allreduce(float(places.index(phase())), op=hvd.Min, name="phase"))
        if places[place] in ("end", ""):
            return
        values.assign_add(hvd.allreduce(tf.ones_like(values), name="ones"))
        state.step += 1
        note("step")
        commits = places[place] == "commit"  # 16 MB each, back to back: one is always in progress
        if commits or state.step % 5 == 0:
            state.commit()
        made[places[place]] += 1
        if made[places[place]] == 12:
            is_at("commit" if commits else "training")
        time.sleep(0 if commits else 0.01)

train(state)
"""
PHASES = ("start", "training", "restart", "commit", "end")
HOSTS = "alpha:1,beta:1"
ENDS = 30  # maximum seconds until nothing is left
AGAIN = "tf_hvd run: restarting with"
WHAT = re.compile(r"^  what:  (.*(?:\n {9}.*)*)", re.MULTILINE)
# Files that MPI leaves behind on several machines (launcher.md). They come from Open MPI's killed
# daemon, and from MPICH, which kills remote ranks, and ranks in init(), together with their
# keepers.
OF_MPI = re.compile(r"/(prted|ompi\.beta)\.\d+$|(alpha|beta):/dev/shm/mpich_shm_")
# Further leftovers to look for on another machine, and processes there that are not the job's.
MARKS = ("tf_hvd", "ompi.", "sm_segment.", "mpich_shm_")
OF_NODES = ("node.sh", "sleep", "sshd", "sshd-session", "sshd-auth")
Nodes = Mapping[str, cluster.Node]


class Kind(NamedTuple):
    """A kind of process, and the effect of its end on a job."""

    find: Callable[[jobs.Job, Nodes], int]
    """Finds the process of a job, given the job's machines."""
    why: str
    """The reason for the effect."""
    ends: Mapping[str, tuple[int, str, str]] = {}
    """By MPI, "" for both: a plain job's exit code, the process that the closing paragraph names,
    and the pattern of its text. Empty: the job continues. Otherwise an elastic job restarts."""
    elsewhere: bool = False
    """Whether it runs on a different machine from `tf_hvd run`."""


def one(processes: Iterable[psutil.Process]) -> int:
    (found,) = (process.pid for process in processes)
    return found


def launcher_of(job: jobs.Job) -> psutil.Process:
    """The process of `tf_hvd run` itself."""
    top = psutil.Process(job.process.pid)
    return next(
        each
        for each in [top, *top.children(recursive=True)]
        if each.cmdline()[:1] == [sys.executable] and "tf_hvd_command" in each.cmdline()
    )


def of_job(job: jobs.Job, *names: str) -> list[psutil.Process]:
    """All processes of a job, or those with these names, except daemons and agents elsewhere."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):  # the process has ended
            ours = process.environ().get("TF_HVD_PROVE") == str(job.folder)
            if ours and (not names or process.name() in names):
                found.append(process)
    return found


def on_beta(nodes: Nodes, *names: str) -> list[psutil.Process]:
    found = psutil.Process(nodes["beta"].init).children(recursive=True)
    return [process for process in found if not names or process.name() in names]


def keeper_on_beta(nodes: Nodes) -> psutil.Process:
    return psutil.Process(one(on_beta(nodes, "tf_hvd_run_rank")))


def rank_1(job: jobs.Job) -> psutil.Process:
    """Rank 1's program, where it reported last."""
    files = job.folder.glob("[a-z]*.1")
    return psutil.Process(int(max(files, key=lambda file: file.stat().st_mtime_ns).read_text()))


def watcher(job: jobs.Job, nodes: Nodes) -> int:
    """The watcher: it is forked, and has no parent in the job."""
    parent = launcher_of(job)
    same = (each for each in of_job(job) if each.cmdline() == parent.cmdline())
    return one(each for each in same if each != parent)


def agent(job: jobs.Job, nodes: Nodes) -> int:
    return one(each for each in on_beta(nodes) if "agent.py" in "".join(each.cmdline()[-3:-2]))


RUN, WATCHER, AGENT = "`tf_hvd run`", "its watcher", "the agent on another machine"
KILLED = 128 + signal.SIGKILL
RANK_1 = r"rank 1 was the first to end with an error \(signal 9, Killed\)$"
LAUNCHER = "the MPI launcher was ended by signal 9, Killed, and its ranks with it$"
KINDS = {
    RUN: Kind(
        lambda job, nodes: launcher_of(job).pid,
        "keepers and the watcher end all other processes (launcher.md), and no report is possible; "
        "the same command continues from the commits on disk (elastic.md)",
        {"": (-signal.SIGKILL, "no process", "")},
    ),
    WATCHER: Kind(watcher, "it only acts when `tf_hvd run` ends"),
    AGENT: Kind(agent, "`tf_hvd run` starts another one (ADR 27)", elsewhere=True),
    "MPI's launcher": Kind(
        lambda job, nodes: one(of_job(job, "prterun", "mpiexec.hydra")),
        "the report names it (launcher.md), and keepers end the ranks",
        {"": (KILLED, "the launcher", LAUNCHER)},
    ),
    "MPI's daemon on another machine": Kind(
        lambda job, nodes: keeper_on_beta(nodes).ppid(),
        "MPI's launcher ends because it lost that machine (launcher.md); MPICH's does not report "
        "this",
        {
            "openmpi": (1, "the loss of a machine", ".*Open MPI does this when it loses another"),
            # Or the keeper there has asked its rank to end, and both have made a last commit.
            "mpich": (255, "no process", r"rank 0 was process \d+$|received a termination signal"),
        },
        elsewhere=True,
    ),
    "a rank's keeper": Kind(
        lambda job, nodes: rank_1(job).ppid(),
        "the program ends with it, and MPI's launcher treats it as the rank (launcher.md)",
        {"": (KILLED, "rank 1", RANK_1)},
    ),
    "a rank's program": Kind(
        lambda job, nodes: rank_1(job).pid,
        "the rank has ended (launcher.md)",
        {"": (KILLED, "rank 1", RANK_1)},
    ),
}


def records(job: jobs.Job, what: str) -> list[tuple[int, float]]:
    """The steps that rank 0 has made, or from which it continued, with their times."""
    file = job.folder / "steps"
    lines = re.findall(rf"{what} (\d+) (\S+)\n", file.read_text() if file.exists() else "")
    return [(int(step), float(when)) for step, when in lines]


def wait_for(job: jobs.Job, done: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + jobs.STARTS
    while not done():
        assert job.process.poll() is None, f"the job ended before {what}:\n{job.output()}"
        assert time.monotonic() < deadline, f"no {what}:\n{job.output()}"
        time.sleep(0.02)


def disturb(job: jobs.Job, name: str, phase: str, nodes: Nodes) -> float:
    """Kills one process of a job when the job reaches a phase; returns the time of the kill."""

    def come_to(place: str) -> None:
        wait_for(job, lambda: len([*job.folder.glob(f"{place}.[01]")]) == 2, place)

    kind, restarts = KINDS[name], job.output().count(AGAIN)
    if phase == "restart" and (name == RUN or not kind.ends):  # no other kill causes a restart
        come_to("training")
        first = keeper_on_beta(nodes).children() if nodes else [rank_1(job)]
        os.kill(one(first), signal.SIGKILL)
    come_to(phase)
    time.sleep(0.3)  # until rank 0 is in init(), or steps are made
    victim, killed = kind.find(job, nodes), time.time()
    os.kill(victim, signal.SIGKILL)
    if kind.ends and name != RUN and "--min-np" in job.options:
        wait_for(job, lambda: job.output().count(AGAIN) > restarts, "restart")
    elif name == AGENT:
        wait_for(job, lambda: is_other(job, nodes, victim), "other agent")
    if not kind.ends or "--min-np" in job.options:
        (job.folder / f"killed.{phase}").touch()
    return killed


def is_other(job: jobs.Job, nodes: Nodes, old: int) -> bool:
    with contextlib.suppress(ValueError, psutil.Error):  # the new process does not exist yet
        return agent(job, nodes) != old
    return False


def leaves_nothing(job: jobs.Job, nodes: Nodes) -> None:
    """Checks that nothing is left on any machine after the time limit."""
    found = job.left(ENDS)
    for name, node in nodes.items():
        for folder in ("/dev/shm", "/run/sshd"):
            for each in pathlib.Path(f"/proc/{node.init}/root{folder}").iterdir():
                if each.name.startswith(MARKS):
                    found.append(f"{name}:{folder}/{each.name}")
                    each.unlink(missing_ok=True)  # so that the next job's leftovers are separate
    found += [each.name() for each in on_beta(nodes)] if nodes else []
    found = [each for each in found if each not in OF_NODES and not OF_MPI.search(each)]
    assert not found, f"left behind: {found}:\n{job.output()}"


def run(
    family: str, name: str, elastic: bool, plan: Sequence[str], nodes: Nodes, disk: str
) -> list[tuple[int, int, str]]:
    """Lets a job reach some phases, and kills a process in each of them.

    Returns:
        One tuple for each kill: the step from which training continued, the number of steps made
        before, and the exit code with the seconds. After a kill of `tf_hvd run`, the first is the
        step at which the job began.
    """
    named = outcome(family, name)[2]
    options = ["--min-np", "2"] * elastic + ["-H", HOSTS] * bool(nodes)
    within = nodes["alpha"].command if nodes else list
    settings = {"PLAN": " ".join(plan), "TF_HVD_COMMIT_DIR": disk, "TF_HVD_COMMIT_DIR_EVERY": "2"}
    with jobs.Job(family, 2, PROGRAM, settings, options, within) as job:
        kills = [disturb(job, name, phase, nodes) for phase in plan]
        code, seconds = job.wait(jobs.STARTS), time.time() - kills[-1]
        leaves_nothing(job, nodes)
        gone = time.time() - kills[-1]
        output, froms, steps = job.output(), records(job, "from"), records(job, "step")
    where = f"{family}, {name}, {plan}:\n{output}"
    judge(outcome(family, name), elastic, plan, code, output)
    found = []
    for phase, killed in zip(plan, kills, strict=True):
        made = max((step for step, _ in steps), default=0)
        text = f"{code}, {seconds:.1f} s" if named else f"{gone:.1f} s" if code else "continues"
        begun, when = froms[0] if froms else (0, 0.0)
        if elastic and named:
            begun, when = next(each for each in froms if each[1] > killed)
            made = max((step for step, until in steps if until < when), default=0)
            text = f"{begun} of {made}, {when - killed:.1f} s"
            check(phase, begun, made, 1, where)
        found.append((begun, made, text))
    return found


def outcome(family: str, name: str) -> tuple[int, str, str]:
    """See `Kind.ends`."""
    ends = KINDS[name].ends
    return ends.get(family, ends.get("", (0, "no process", "")))


def judge(
    expected: tuple[int, str, str], elastic: bool, plan: Sequence[str], code: int, output: str
) -> None:
    """Checks that a job ended, restarted, and named the killed process, as expected."""
    plain, _, named = expected
    told = [" ".join(text.split()) for text in WHAT.findall(output)]
    ends = len(plan) if named else 0
    first = "restart" in plan and not named  # a kill that only causes the restart
    assert code == (0 if elastic and named else plain), f"exit code {code}: {output}"
    assert output.count(AGAIN) == first + ends * elastic, f"restarts: {output}"
    assert len(told) == first + ends, f"reports: {told}: {output}"
    assert not named or all(re.match(named, each) for each in told), f"not {named}: {output}"


def check(phase: str, begun: int, made: int, apart: int, where: str) -> None:
    """Checks that training continued from one of the last two commits, `apart` commits apart."""
    apart *= 1 if phase == "commit" and apart == 1 else 5
    assert made // apart * apart - 2 * apart <= begun <= made, f"{begun} of {made}: {where}"


def row(family: str, name: str, elastic: bool, nodes: Nodes, phases: Sequence[str]) -> list[str]:
    """A job's results for a kill in each of the phases."""
    # A job that continues, or restarts, reaches all phases in turn; but there is only one watcher.
    plans = [[phase] for phase in phases]
    if elastic and name not in (RUN, WATCHER):
        plans = [list(phases)]
    with tempfile.TemporaryDirectory() as disk:
        kept = disk if elastic and name == RUN else ""
        found = [each for plan in plans for each in run(family, name, elastic, plan, nodes, kept)]
    texts = [text for _, _, text in found]
    if kept:  # each job has continued from the previous job's commits on disk
        for number, ((_, made, text), (begun, _, _)) in enumerate(itertools.pairwise(found)):
            check(phases[number], begun, made, 2, name)
            texts[number] = f"{begun} of {made}, {text}"
    return texts


SHORT = (
    ("mpich", RUN, True, ("training", "commit")),
    ("openmpi", "a rank's keeper", False, ("start",)),
)


def rows(short: bool) -> Sequence[tuple[str, str, bool, Sequence[str]]]:
    """Each combination of MPI, kind and elastic or plain job, with its phases."""
    if short:
        return SHORT
    found: list[tuple[str, str, bool, Sequence[str]]] = []
    for name, family in itertools.product(KINDS, jobs.LIBRARIES):
        # For a watcher, an elastic job outside its training behaves like a plain one. A plain job
        # has an agent elsewhere only while it is asked to end.
        alike = ("start", "training", "end") if name == WATCHER else ()
        found.append((family, name, True, [each for each in PHASES if each not in alike]))
        if name != AGENT:
            found.append((family, name, False, alike or ("training",)))
    return found


def prove(short: bool) -> Table:
    """See the module's docstring."""
    table = Table(
        "In two-rank jobs, `kill -9` ends one process of each kind in up to five phases. "
        "Start: before `init()` has returned. Training. Restart: while the job restarts after "
        "another kill. Commit: while the job writes a commit of 16 MB. End: after the program has "
        "left the job. Every job behaved as expected; `tests/prove/kills.py` describes the "
        "expected behaviour and the reasons. The jobs left no process, shared memory or file "
        "behind, except MPI files in jobs on several machines (launcher.md). For an elastic "
        "job, a cell shows the step from which training continued, the number of steps completed "
        "before the kill, and the time until training continued. For kills during training, "
        "this time includes a second kill during the restart. All elastic jobs ended with "
        "exit code 0. For a kill of `tf_hvd run` in an elastic job, a cell shows the step from "
        "which the repeated command continued, and the number of steps completed before the kill. "
        "The time given is the time until all processes had ended. Every second commit was saved "
        "in `TF_HVD_COMMIT_DIR`. For a plain job, a cell shows the exit code, and the time until "
        "the job ended. Before that, `./dev` "
        "killed ranks at 100 random moments inside operations, in jobs of 3 and 4 ranks without "
        "Python. Each surviving rank reported the killed one "
        "(`tests/runtime/transport/kills_test.sh`).",
        ["killed", "MPI", "job", "named in the error", *PHASES],
    )
    reason = cluster.why_not()
    assert short or not reason, f"no second host on this machine: {reason}"
    with contextlib.ExitStack() as ends:
        two = {} if short else ends.enter_context(cluster.cluster(["alpha", "beta"]))
        for family, name, elastic, phases in rows(short):
            texts = row(family, name, elastic, two if KINDS[name].elsewhere else {}, phases)
            by_phase = dict(zip(phases, texts, strict=True))
            job, who = "elastic" if elastic else "plain", outcome(family, name)[1]
            table.add(name, family, job, who, *(by_phase.get(phase, "") for phase in PHASES))
    return table
