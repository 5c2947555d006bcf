"""Compares the time of a 4-byte eager allreduce between two installations.

    python benchmarks/eager_cost.py BEFORE/bin/python AFTER/bin/python -np 1

Each turn starts one job with each Python. A job's result is the median of its batches. Ranks are
bound to cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile

PROGRAM = """
import os, time
os.sched_setaffinity(0, {{int(os.environ.get("OMPI_COMM_WORLD_LOCAL_RANK", 0))}})
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)
import tf_hvd as hvd
hvd.init()
value = tf.constant([1.0])
def batch(calls):
    start = time.perf_counter()
    for _ in range(calls):
        hvd.allreduce(value, op=hvd.Sum{name})
    return (time.perf_counter() - start) / calls * 1e6
batch(3000)
times = sorted(batch(500) for _ in range(30))
if hvd.rank() == 0:
    print("median", times[15])
"""


def measure(python: str, ranks: int, named: bool) -> float:
    """Return the time of a call in microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        program = os.path.join(folder, "program.py")
        with open(program, "w") as file:
            file.write(PROGRAM.format(name=', name="x"' if named else ""))
        words = [python, program]
        if ranks > 1:
            command = os.path.join(os.path.dirname(python), "tf_hvd")
            words = [command, "run", "-np", str(ranks), *words]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
    return float(done.stdout.split("median")[1])


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pythons", nargs=2, metavar="PYTHON")
    parser.add_argument("-np", type=int, default=1)
    parser.add_argument("--named", action="store_true")
    parser.add_argument("--turns", type=int, default=9)
    options = parser.parse_args()
    times: dict[str, list[float]] = {python: [] for python in options.pythons}
    for turn in range(options.turns):
        for python in options.pythons if turn % 2 else reversed(options.pythons):
            times[python].append(measure(python, options.np, options.named))
    for python, values in times.items():
        middle = statistics.median(values)
        print(f"{python}: {middle:.2f} us (from {min(values):.2f} to {max(values):.2f})")
    differences = [after - before for before, after in zip(*times.values(), strict=True)]
    print(f"difference, median of the turns: {statistics.median(differences):.2f} us")


if __name__ == "__main__":
    main()
