# tf_hvd run -np 2 python benchmarks/eager_latency.py
"""Eager allreduce of a small tensor, beside what bounds it, in turns within one run.

Prints medians over all calls of rank 0, in microseconds: this library; MPI_Allreduce through
mpi4py, on the same buffers and the same MPI, where mpi4py is installed; and tf.identity, below
which no eager op can be.
"""

import argparse
import os
import shlex
import statistics
import sys
import time

import numpy as np
import tensorflow as tf

import tf_hvd as hvd


def mpi_allreduce(elements):
    """A call of MPI_Allreduce, or None: before hvd.init, which then uses the same MPI."""
    if "TF_HVD_MPI_LIBRARY" in os.environ:
        os.environ.setdefault("MPI4PY_LIBMPI", os.environ["TF_HVD_MPI_LIBRARY"])
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        return None
    send, receive = np.ones(elements, np.float32), np.empty(elements, np.float32)
    return lambda: MPI.COMM_WORLD.Allreduce(send, receive)


def seconds_of(call, count):
    """The seconds of each of `count` calls."""
    clock = time.perf_counter
    seconds = []
    for _ in range(count):
        begin = clock()
        call()
        seconds.append(clock() - begin)
    return seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, default=4, help="size of the float32 tensor")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--calls", type=int, default=250, help="calls of each kind in one round")
    arguments = parser.parse_args()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    elements = max(1, arguments.bytes // 4)
    mpi = mpi_allreduce(elements)
    hvd.init()
    tensor = tf.ones([elements])
    calls = {
        "tf_hvd allreduce": lambda: hvd.allreduce(tensor, op=hvd.Sum),
        "tf_hvd allreduce, name=": lambda: hvd.allreduce(tensor, op=hvd.Sum, name="latency"),
        "MPI_Allreduce (mpi4py)": mpi,
        "tf.identity": lambda: tf.identity(tensor),
    }
    calls = {name: call for name, call in calls.items() if call is not None}
    seconds = {name: [] for name in calls}
    for turn in range(arguments.rounds + 1):
        for name, call in calls.items():
            measured = seconds_of(call, arguments.calls)
            if turn:  # the first round warms up
                seconds[name] += measured

    bound = hvd.allgather_object(sorted(os.sched_getaffinity(0)))
    if hvd.rank() == 0:
        where = "; ".join(f"rank {rank} on cores {cores}" for rank, cores in enumerate(bound))
        print(f"{4 * elements} bytes, {hvd.size()} ranks: {where}")
        for name, values in seconds.items():
            tail = statistics.quantiles(values, n=100)[98]
            median = statistics.median(values)
            print(f"{name:26} median {median * 1e6:8.1f} us   99 % below {tail * 1e6:8.1f} us")
        repeat = shlex.join(["python", *sys.argv])
        print(f"repeat with: tf_hvd run -np {hvd.size()} {repeat}")


if __name__ == "__main__":
    main()
