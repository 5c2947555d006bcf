"""The simulation against what this project's own ranks take.

    tf_hvd run -np 2 python benchmarks/scale_own.py measured.json
    python benchmarks/simulate_scale.py own measured.json

The first measures sums of several sizes in turns, so that what else the machine does slows all of
them. The second fits what a core and a link take on some, and predicts the others.
"""

import dataclasses
import json
import math
import pathlib
import statistics
import sys
import time

from scale_jobs import fitted, simulate
from scale_tables import Table, points


@dataclasses.dataclass(frozen=True)
class Costs:
    """What is fitted, nanoseconds."""

    call: float = 60_000.0  # of TensorFlow and Python, in each call
    byte: float = 0.05  # that is copied or summed, in the cache
    far_byte: float = 0.1  # more, of one that is not
    cache: float = 4e6  # bytes of it
    message: float = 10_000.0  # until a message of MPI is on its way, and seen


@dataclasses.dataclass(frozen=True)
class Workload:
    """What is summed in one step, and how long that took."""

    name: str
    tensors: tuple[int, ...]  # elements
    measured_ns: float


# Bytes. Those that the fit does not see come in between, and as a group.
_FITTED = (4, 65_536, 1 << 20, 8 << 20, 64 << 20)
_PREDICTED = (4_096, 262_144, 4 << 20, 32 << 20)
_GROUP = (4_096, 3_000_000, 70_000, 9_000_000, 1_000_000, 500)  # elements
_ROUNDS = {1: 40, 2: 8}  # by nodes


def measure(file: str) -> None:
    """On the ranks of a job: the median of each workload's time on the slower rank."""
    import tensorflow as tf

    import tf_hvd as hvd

    hvd.init()
    works = {str(size): (size // 4,) for size in _FITTED + _PREDICTED} | {"group": _GROUP}
    calls = {}
    for name, counts in works.items():
        tensors = [tf.ones([count]) for count in counts]

        def call(tensors=tensors, name=name):
            if len(tensors) > 1:
                return hvd.grouped_allreduce(tensors, op=hvd.Sum, name=name)
            return hvd.allreduce(tensors[0], op=hvd.Sum, name=name)

        calls[name] = call, 2 if sum(counts) > 1 << 20 else 20
    times = {name: [] for name in works}
    for turn in range(_ROUNDS[hvd.cross_size()] + 3):
        for name, (call, times_each) in calls.items():
            hvd.barrier()
            call()  # what the one before has left in the cache
            began = time.perf_counter()
            for _ in range(times_each):
                call()
            took = (time.perf_counter() - began) / times_each
            slower = float(hvd.allreduce(tf.constant(took, tf.float64), op=hvd.Max, name="took"))
            if turn >= 3:
                times[name].append(1e9 * slower)
    if hvd.rank() == 0:
        found = {
            "nodes": hvd.cross_size(),
            "workloads": [
                Workload(name, tensors, statistics.median(times[name]))
                for name, tensors in works.items()
            ],
        }
        pathlib.Path(file).write_text(json.dumps(found, default=dataclasses.asdict, indent=1))


def simulated_ns(workload: Workload, costs: Costs, nodes: int, gbit: float) -> float:
    """How long the simulation says that a workload takes on two ranks.

    Args:
      workload: what is summed.
      costs: of core and link.
      nodes: 1 or 2; then each has one of the ranks.
      gbit: of the link between nodes, as tc shapes it.
    """
    # Input and output: all of it is in the cache, or in the end, of eight times that, nothing.
    used = 2 * 4 * sum(workload.tensors)
    byte = costs.byte + costs.far_byte * min(1.0, max(0.0, used / costs.cache - 1) / 7)
    settings = {
        "nodes": nodes,
        "ranks_per_node": 2 // nodes,
        "schedule": "host",
        "call_ns": 20,
        "copy_byte_ns": byte,
        "reduce_byte_ns": byte,
        "submit_ns": 0,
        "update_ns": costs.call,
        "message_ns": costs.message / 4,
        "latency_ns": costs.message / 2,
        "steps": 6,
    }
    if nodes > 1:
        # Of 1538 bytes on the wire 1448 are data; tc's 256kb pass at once.
        settings |= {"byte_ns": 8 / gbit * 1538 / 1448, "burst_bytes": 256 * 1024}
    gradients = [("sum", 0.0, workload.tensors)]
    steps = simulate(settings, gradients)["steps_ns"]
    return sum(steps) / len(steps)


def check(file: str, gbit: float) -> None:
    """Fits on some workloads of a file, and prints how far all of them are off."""
    try:
        document = json.loads(pathlib.Path(file).read_text())
        nodes = document["nodes"]
        found = [Workload(**each) for each in document["workloads"]]
    except OSError as error:
        sys.exit(str(error))
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"{file} is not what scale_own.py writes: {error!r}")
    known = [each for each in found if each.name in map(str, _FITTED)]

    def off(workload: Workload, costs: Costs) -> float:
        return simulated_ns(workload, costs, nodes, gbit) / workload.measured_ns

    costs = fitted(Costs(), lambda costs: sum(math.log(off(each, costs)) ** 2 for each in known))
    print(f"{nodes} nodes: {costs}")
    table = Table("", "bytes", "measured", "simulated, off by")
    for each in found:
        table.row(
            "fitted" if each in known else "predicted",
            each.name,
            f"{each.measured_ns / 1e3:.1f} us",
            f"{points(off(each, costs) - 1)} %",
        )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("scale_own.py takes the file to write")
    measure(sys.argv[1])
