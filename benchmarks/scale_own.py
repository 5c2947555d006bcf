"""Compares the simulation with measurements of this project's own ranks.

    tf_hvd run -np 2 python benchmarks/scale_own.py measured.json
    python benchmarks/simulate_scale.py own measured.json

The first command measures sums of several sizes, interleaved, so that other load slows all of
them equally. The second calibrates the simulation with some of them and predicts the others.
Several files are from several jobs, which differ in the location of their memory; their median
is used.
"""

import dataclasses
import json
import math
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import scale_models
from scale_jobs import simulate
from scale_tables import Table, points


@dataclasses.dataclass(frozen=True)
class Costs:
    """The calibrated costs in nanoseconds."""

    call: float = 20_000.0  # TensorFlow and Python, per call
    message: float = 0.0  # until a message of MPI is sent and seen
    # Cost of each byte that is copied or summed, by the total bytes of a call. As the total grows,
    # it exceeds one cache after the other. Between two sizes the cost is interpolated by the
    # logarithm.
    byte: tuple[tuple[int, float], ...] = ()

    def of_byte(self, size: int) -> float:
        """Cost of a byte in a sum of `size` bytes."""
        if not self.byte:
            return 0.0
        sizes, costs = zip(*self.byte, strict=True)
        return float(np.interp(math.log(size), np.log(sizes), costs))


@dataclasses.dataclass(frozen=True)
class Workload:
    """The tensors of one call, the number of successive calls, and the time of one call."""

    name: str
    tensors: tuple[int, ...]  # elements
    calls: int
    measured_ns: float

    @property
    def bytes(self) -> int:
        return 4 * sum(self.tensors)


# Bytes. The sizes between them, and groups, are not used for the calibration.
_KIB, _MIB = 1 << 10, 1 << 20
_CALIBRATED = (
    *(4, _KIB, 4 * _KIB, 16 * _KIB, 64 * _KIB, 256 * _KIB),
    *(_MIB, 2 * _MIB, 4 * _MIB, 8 * _MIB, 16 * _MIB, 32 * _MIB, 64 * _MIB),
)
_PREDICTED = (
    *(2 * _KIB, 8 * _KIB, 32 * _KIB, 128 * _KIB, 512 * _KIB),
    *(3 * _MIB, 6 * _MIB, 12 * _MIB, 24 * _MIB, 48 * _MIB),
)
_SIX = (4_096, 3_000_000, 70_000, 9_000_000, 1_000_000, 500)  # elements
_ROUNDS = {1: 40, 2: 8}  # by number of nodes


def _sums() -> dict[str, tuple[int, ...]]:
    """Elements of the tensors that are summed together, by name."""
    gradients = scale_models.gradients("ResNet50")
    return {str(size): (size // 4,) for size in sorted(_CALIBRATED + _PREDICTED)} | {
        "six tensors": _SIX,
        "ResNet-50's gradients": tuple(each.elements for each in gradients),
    }


def _warmup(calls: int) -> int:
    """Number of calls before `calls` timed ones, on ranks and in the simulation."""
    return 1 + calls // 4


def measure(file: str) -> None:
    """Measure on the ranks of a job the median time of each workload on the slower rank."""
    import tensorflow as tf

    import tf_hvd as hvd

    hvd.init()
    works, calls = _sums(), {}
    for name, counts in works.items():
        tensors = [tf.ones([count]) for count in counts]

        def call(tensors=tensors, name=name):
            if len(tensors) > 1:
                return hvd.grouped_allreduce(tensors, op=hvd.Sum, name=name)
            return hvd.allreduce(tensors[0], op=hvd.Sum, name=name)

        calls[name] = call, max(2, min(200, 2 * _MIB // sum(counts)))
    times = {name: [] for name in works}
    for turn in range(_ROUNDS[hvd.cross_size()] + 3):
        for name, (call, times_each) in calls.items():
            hvd.barrier()
            for _ in range(_warmup(times_each)):
                call()  # leaves the cache as a previous call does
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
                Workload(name, tensors, calls[name][1], statistics.median(times[name]))
                for name, tensors in works.items()
            ],
        }
        pathlib.Path(file).write_text(json.dumps(found, default=dataclasses.asdict, indent=1))


def simulated_ns(workload: Workload, costs: Costs, nodes: int, gbit: float) -> float:
    """Time of a workload on two ranks according to the simulation.

    Args:
      workload: the sums to simulate.
      costs: costs of cores and links.
      nodes: 1 or 2; with 2, each node has one rank.
      gbit: rate of the link between nodes, as shaped by tc.
    """
    byte = costs.of_byte(workload.bytes)
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
        "warmup": _warmup(workload.calls),
        "steps": workload.calls,
    }
    if nodes > 1:
        # 1448 of 1538 bytes on the wire are data; tc passes 256 kB at once.
        settings |= {"byte_ns": 8 / gbit * 1538 / 1448, "burst_bytes": 256 * 1024}
    gradients = [("sum", 0.0, workload.tensors)]
    steps = simulate(settings, gradients)["steps_ns"]
    return sum(steps) / len(steps)


def _with_time(wanted_ns: float, start: float, time_ns: Callable[[float], float]) -> float:
    """The cost, at least 0, with which the simulation takes `wanted_ns`: nearly linear."""
    least, cost = time_ns(0.0), start
    for _ in range(3):
        more = time_ns(cost) - least
        if wanted_ns <= least or more <= 0:
            return 0.0
        cost *= (wanted_ns - least) / more
    return cost


def _calibrated(known: Sequence[Workload], nodes: int, gbit: float) -> Costs:
    """Costs with which the simulation takes as long as the ranks did; `known` sorted by size."""
    costs = Costs()
    # The smallest has almost no bytes: its time is what all calls have in common.
    shared = "call" if nodes == 1 else "message"

    def common(cost: float) -> float:
        return simulated_ns(known[0], dataclasses.replace(costs, **{shared: cost}), nodes, gbit)

    shared_ns = _with_time(known[0].measured_ns, 20_000.0, common)
    without_bytes = dataclasses.replace(costs, **{shared: shared_ns})
    byte = []
    for each in known[1:]:

        def of_size(cost: float, each: Workload = each) -> float:
            only = dataclasses.replace(without_bytes, byte=((each.bytes, cost),))
            return simulated_ns(each, only, nodes, gbit)

        byte.append((each.bytes, _with_time(each.measured_ns, 0.05, of_size)))
    return dataclasses.replace(without_bytes, byte=tuple(byte))


def _read(file: str) -> tuple[int, list[Workload]]:
    """Number of nodes of a job, and its measurements."""
    try:
        document = json.loads(pathlib.Path(file).read_text())
        return document["nodes"], [
            Workload(**each | {"tensors": tuple(each["tensors"])}) for each in document["workloads"]
        ]
    except OSError as error:
        sys.exit(str(error))
    except (ValueError, KeyError, TypeError) as error:
        sys.exit(f"{file} was not written by scale_own.py: {error!r}")


def check(files: Sequence[str], gbit: float) -> None:
    """Calibrate with some workloads of these files, and print the errors of all of them."""
    jobs = [_read(file) for file in files]
    nodes, first = jobs[0]
    if any(n != nodes or [w.name for w in works] != [w.name for w in first] for n, works in jobs):
        sys.exit("these files have different workloads or numbers of nodes")
    columns = list(zip(*(works for _, works in jobs), strict=True))
    found = [
        dataclasses.replace(each[0], measured_ns=statistics.median(w.measured_ns for w in each))
        for each in columns
    ]
    known = [each for each in found if each.name in map(str, _CALIBRATED)]
    costs = _calibrated(known, nodes, gbit)
    print(f"{nodes} nodes, {len(jobs)} jobs: {costs}")
    table = Table("", "bytes", "measured", "jobs differ by", "simulated, off by")
    for each, of_jobs in zip(found, columns, strict=True):
        times = [one.measured_ns for one in of_jobs]
        off = simulated_ns(each, costs, nodes, gbit) / each.measured_ns - 1
        table.row(
            "calibrated" if each in known else "predicted",
            each.name,
            f"{each.measured_ns / 1e3:.1f} us",
            f"{100 * (max(times) - min(times)) / each.measured_ns:.1f} %",
            f"{points(off)} %",
        )


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("scale_own.py needs one argument: the file to write")
    measure(sys.argv[1])
