# python benchmarks/neighbour.py
"""Measures the effect of other processes on a job's cores: tf_hvd's calls per second, and MPI's.

Each line is a separate job. It is bound to cores or not, and has busy processes pinned to its
cores, or twice as many ranks as cores. Its ranks alternate between 4 kB eager allreduces by tf_hvd
and by MPI_Allreduce through mpi4py, in place. The result is the median of the turns. Context
switches of rank 0's process are also counted for each call: voluntary ones, when it gave up its
core, and involuntary ones.
"""

import os
import resource
import statistics
import subprocess
import sys
import time

from absl import app, flags

_MPI = flags.DEFINE_enum("mpi", "openmpi", ["openmpi", "mpich"], "MPI that the jobs use")
_SECONDS = flags.DEFINE_float("seconds", 2.0, "seconds per turn")
_TURNS = flags.DEFINE_integer("turns", 5, "turns per job")
_MIXED = flags.DEFINE_integer(
    "mixed", 0, "also measure an allreduce of this many bytes, an allgather and a broadcast"
)
_ONLY = flags.DEFINE_multi_integer("only", None, "lines of the table to run, counted from 0")
_RANK = flags.DEFINE_bool("rank", False, "run as a rank of a job (internal)")

SCENARIOS = [  # ranks for each core, bound, busy neighbours
    (1, True, 0),
    (1, True, 1),
    (1, True, 2),
    (1, False, 0),
    (1, False, 1),
    (1, False, 2),
    (2, False, 0),
]
BATCH = 20


def switches():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_nvcsw, usage.ru_nivcsw


def turn(call, seconds):
    """Repeat the call until rank 0's time is up; return calls per second and switches per call."""
    before, began = switches(), time.perf_counter()
    calls, over = 0, False
    while not over:
        over = call(time.perf_counter() - began >= seconds)
        calls += 1
        for _ in range(BATCH - 1):
            call(False)
            calls += 1
    passed = time.perf_counter() - began
    after = switches()
    return calls / passed, *((a - b) / calls for a, b in zip(after, before, strict=True))


def rank():
    import numpy as np
    import tensorflow as tf
    from mpi4py import MPI

    import tf_hvd as hvd

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    hvd.init()
    zeros, ones = tf.zeros(1024), tf.ones(1024)
    more = tf.zeros(_MIXED.value // 4)
    buffer, large = np.zeros(1024, np.float32), np.zeros(_MIXED.value // 4, np.float32)
    rows = np.zeros(1024 * hvd.size(), np.float32)
    first = hvd.rank() == 0

    def by_tf_hvd(over):
        summed = hvd.allreduce(ones if first and over else zeros, op=hvd.Sum, name="x")
        if _MIXED.value:
            hvd.allreduce(more, op=hvd.Sum, name="more")
            hvd.allgather(zeros, name="rows")
            hvd.broadcast(zeros, root_rank=0, name="of one")
        return bool(summed.numpy()[0])

    def by_mpi(over):
        buffer[0] = float(first and over)
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, buffer)
        if _MIXED.value:
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, large)
            MPI.COMM_WORLD.Allgather(buffer, rows)
            over = bool(buffer[0])
            MPI.COMM_WORLD.Bcast(buffer)
            return over
        return bool(buffer[0])

    taken = {by_tf_hvd: [], by_mpi: []}
    for call in taken:
        turn(call, 0.2)
    for _ in range(_TURNS.value):
        for call, figures in taken.items():
            figures.append(turn(call, _SECONDS.value))
    if first:
        for figures in taken.values():
            print(*(statistics.median(column) for column in zip(*figures, strict=True)))


def neighbours(count, cores):
    spin = "while True: pass"
    started = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(count)]
    for process, core in zip(started, cores, strict=False):
        os.sched_setaffinity(process.pid, {core})
    return started


def run(each, bound, busy):
    cores = sorted(os.sched_getaffinity(0))
    binding = "--bind-to none" if _MPI.value == "openmpi" else "-bind-to none"
    command = ["tf_hvd", "run", "-np", str(each * len(cores)), "--mpi", _MPI.value]
    command += [] if bound else [f"--mpi-args={binding}"]
    command += [sys.executable, __file__, "--rank"]
    command += ["--mixed", str(_MIXED.value)]
    command += ["--seconds", str(_SECONDS.value), "--turns", str(_TURNS.value)]
    others = neighbours(busy, cores)
    try:
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    finally:
        for process in others:
            process.kill()
            process.wait()
    return [[float(word) for word in line.split()] for line in printed.splitlines()]


def main(_):
    if _RANK.value:
        return rank()
    print("ranks bound neighbours | tf_hvd/s own lost  loss |    MPI/s own lost  loss | ratio")
    quiet = {}
    for number, (each, bound, busy) in enumerate(SCENARIOS):
        if _ONLY.value and number not in _ONLY.value:
            continue
        ours, mpi = run(each, bound, busy)
        quiet.setdefault(bound, (ours[0], mpi[0]))
        losses = [best / now[0] for best, now in zip(quiet[bound], (ours, mpi), strict=True)]
        cells = [
            f"{figures[0]:8.0f} {figures[1]:.2f} {figures[2]:.2f} {loss:5.2f}"
            for figures, loss in zip((ours, mpi), losses, strict=True)
        ]
        ratio = losses[0] / losses[1]
        name = f"{each}/core {'yes' if bound else 'no':5} {busy:10}"
        print(f"{name} | {' | '.join(cells)} | {ratio:5.2f}", flush=True)


if __name__ == "__main__":
    app.run(main)
