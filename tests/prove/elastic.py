"""Random kills of an elastic job's ranks: it ends with the same bits as an undisturbed job."""

from __future__ import annotations

import contextlib
import os
import pathlib
import random
import re
import signal
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jobs
from prove import Table

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "nodes"))
import cluster

# State that is local to a rank: moving statistics, dropout, NumPy's random numbers.
PROGRAM = """
import keras, numpy as np, struct
import tf_hvd.keras as hvd_keras

here()
keras.utils.set_random_seed(3 + rank)
model = keras.Sequential([
    keras.Input([8]), keras.layers.Dense(16, activation="relu"),
    keras.layers.BatchNormalization(), keras.layers.Dropout(0.2), keras.layers.Dense(1),
])
model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse")
sampler = hvd.elastic.ElasticSampler(4096, 8)
state = hvd.elastic.TensorFlowKerasState(model, batch=0, ledger=0, sampler=sampler)
features = np.random.default_rng(0).normal(size=[4096, 8]).astype("f")
start = int(os.environ["TF_HVD_ELASTIC_START"])
steps = os.open(os.path.join(os.environ["TF_HVD_PROVE"], "steps"),
                os.O_CREAT | os.O_WRONLY | os.O_APPEND)

@hvd.elastic.run
def train(state):
    while state.batch < int(os.environ["STEPS"]):
        for indices in sampler.dataset():
            values = features[indices] + np.random.normal(size=[len(indices), 8]).astype("f")
            model.train_on_batch(values, values[:, :1])
            sampler.record_batch()
            state.batch += 1
            if rank == 0:
                os.write(steps, struct.pack("<dqq", time.time(), start, state.batch))
            state.commit()
            if state.batch >= int(os.environ["STEPS"]):
                break
        else:
            sampler.set_epoch(sampler.epoch + 1)

train(state)
import hashlib
bits = hashlib.sha256(b"".join(value.tobytes() for value in model.get_weights())).hexdigest()
os.write(1, f"end {rank} {bits[:16]} at {sampler.position}{chr(10)}".encode())
"""
RECORD = struct.Struct("<dqq")
STEPS = 2000


class Case(NamedTuple):
    """One job: MPI, ranks, on two machines or one, kills."""

    family: str
    ranks: int
    on_nodes: bool
    kills: int


CASES = (
    Case("openmpi", 4, False, 50),
    Case("mpich", 4, False, 50),
    Case("openmpi", 4, True, 50),
    Case("openmpi", 2, False, 20),
)


def steps_of(job: jobs.Job) -> list[tuple[float, int, int]]:
    """When, in which start, and which step: of all that rank 0 has made."""
    with contextlib.suppress(FileNotFoundError):
        data = (job.folder / "steps").read_bytes()
        return list(RECORD.iter_unpack(data[: len(data) // RECORD.size * RECORD.size]))
    return []


def wait_for_step(job: jobs.Job, start: int, beyond: int) -> tuple[float, int]:
    """When the first step beyond a number was made, of that start or a later one, and of which."""
    deadline = time.monotonic() + jobs.STARTS
    while True:
        for when, number, step in steps_of(job):
            if number >= start and step > beyond:
                return when, number
        assert job.process.poll() is None, f"the job ended early:\n{job.output()}"
        assert time.monotonic() < deadline, f"no step for {jobs.STARTS} s:\n{job.output()}"
        time.sleep(0.005)


def kill(job: jobs.Job, rank: int, nodes: Sequence[cluster.Node]) -> None:
    process = int((job.folder / f"pid.{rank}").read_text())
    if nodes:
        where = nodes[rank // 2].command(["kill", "-9", str(process)])
        subprocess.run(where, check=True)
    else:
        os.kill(process, signal.SIGKILL)


def run(
    case: Case, steps: int, nodes: Sequence[cluster.Node], chance: random.Random
) -> tuple[list[str], list[float]]:
    """The ranks' final output, and the seconds from each kill to the next step.

    Without kills: the seconds from the job's start to its first step.
    """
    kills, ranks = case.kills, case.ranks
    options = ["--min-np", str(ranks)]
    if nodes:
        options += ["-H", ",".join(f"{node.name}:2" for node in nodes)]
    within = nodes[0].command if nodes else list
    settings = {"STEPS": str(steps)}
    seconds = []
    began = time.time()
    with jobs.Job(case.family, ranks, jobs.PREAMBLE + PROGRAM, settings, options, within) as job:
        if not kills:
            seconds.append(wait_for_step(job, 0, 0)[0] - began)
        start, apart = 0, steps // (kills + 1)
        for number in range(kills):
            beyond = max(1, number * apart + chance.randrange(apart))
            _, start = wait_for_step(job, start, beyond)
            time.sleep(chance.uniform(0, 0.05))
            kill(job, chance.randrange(ranks), nodes)
            killed = time.time()
            when, start = wait_for_step(job, start + 1, 0)
            seconds.append(when - killed)
            print(f"kill {number + 1}: {seconds[-1]:.1f} s", flush=True)
        code = job.wait(jobs.STARTS + jobs.ENDS)
        output, left = job.output(), job.left()
    assert code == 0, output
    assert not left, f"left behind: {left}\n{output}"
    ends = sorted(re.findall(r"^end .*", output, re.MULTILINE))
    assert len(ends) == ranks, output
    return ends, seconds


@contextlib.contextmanager
def two_nodes() -> Iterator[Sequence[cluster.Node]]:
    with cluster.cluster(["alpha", "beta"]) as nodes:
        yield list(nodes.values())


def prove(short: bool) -> Table:
    table = Table(
        f"`kill -9` ends a random rank at a random moment in a training run of {STEPS} steps. "
        "Every job ended with exit code 0. The results on all ranks were bit-identical to those "
        "of an undisturbed job. The jobs left no process, shared memory or file behind. "
        '"Median" and "worst" are the times in seconds from a kill to the end of the first step '
        'after the restart. "A start" is the time in seconds from the start of an undisturbed job '
        "to its first step:",
        ["MPI", "ranks", "kills", "median", "worst", "a start"],
    )
    # With two ranks, because two cores are enough for them.
    steps, cases = (60, [Case("openmpi", 2, False, 2)]) if short else (STEPS, CASES)
    chance = random.Random(11)
    for case in cases:
        if case.on_nodes and cluster.why_not():
            continue
        with two_nodes() if case.on_nodes else contextlib.nullcontext([]) as nodes:
            expected, cold = run(case._replace(kills=0), steps, nodes, chance)
            ends, seconds = run(case, steps, nodes, chance)
        assert ends == expected, f"{ends}\nexpected\n{expected}"
        where = f"{case.ranks}, on two machines" if case.on_nodes else str(case.ranks)
        figures = (statistics.median(seconds), max(seconds), *cold)
        table.add(case.family, where, case.kills, *(f"{each:.1f}" for each in figures))
    return table
