# tf_hvd run -np 2 python benchmarks/idle_cost.py
"""Measures the CPU time of each rank's process while a job is idle.

The result is the median of several windows for each of three states:

- before hvd.init, which is the cost of Python and TensorFlow;
- after hvd.init, with nothing pending;
- while one rank waits in an allreduce that the other ranks have not called yet.
"""

import shlex
import statistics
import sys
import threading
import time

import tensorflow as tf
from absl import app, flags

import tf_hvd as hvd

_WINDOWS = flags.DEFINE_integer("windows", 5, "number of windows per state")
_SECONDS = flags.DEFINE_float("seconds", 2.0, "seconds per window")


def cpu_share(seconds):
    """CPU time of all threads of this process during a time window, as a share of one core."""
    wall, cpu = time.perf_counter(), time.process_time()
    time.sleep(seconds)
    return (time.process_time() - cpu) / (time.perf_counter() - wall)


def share_while_waiting(seconds):
    """CPU share while rank 0 calls an allreduce one window earlier than the other ranks."""
    late = threading.Thread(target=hvd.allreduce, args=(tf.constant(1.0),), daemon=True)
    hvd.allreduce(tf.constant(1.0), name="together")
    if hvd.rank() == 0:
        late.start()
        share = cpu_share(seconds)
        late.join()
    else:
        share = cpu_share(seconds)
        late.start()
        late.join()
    return share


def main(_):
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    def median(measure):
        return statistics.median(measure(_SECONDS.value) for _ in range(_WINDOWS.value))

    tf.identity(tf.constant(1.0))
    shares = {"before init": median(cpu_share)}
    hvd.init()
    for _ in range(100):
        hvd.allreduce(tf.constant(1.0), name="warm")
    shares["idle"] = median(cpu_share)
    shares["rank 0 waits for the others"] = median(share_while_waiting)

    everywhere = hvd.allgather_object(shares)
    if hvd.rank() == 0:
        print(f"{hvd.size()} ranks, CPU time as a share of one core")
        for state in shares:
            each = [one[state] for one in everywhere]
            listed = ", ".join(f"rank {rank} {share:.2%}" for rank, share in enumerate(each))
            print(f"{state:28} all ranks {sum(each):.2%}  ({listed})")
        repeat = shlex.join(["python", *sys.argv])
        print(f"repeat with: tf_hvd run -np {hvd.size()} {repeat}")


if __name__ == "__main__":
    app.run(main)
