"""Runs random programs of collectives on all ranks and compares with NumPy.

Rank 0 draws the programs (Hypothesis) and sends each to the others. They run programs until rank 0
stops them, so a failure can be shrunk.

    ./dev fuzz [--programs N] [--seed S] [-np RANKS]
"""

import argparse
import contextlib
import dataclasses
import functools
import os
import re
import threading
import time

import hypothesis
import numpy as np
import programs
import tensorflow as tf
from numpy_collectives import difference, numbers
from programs import COMPILED, FUNCTION, ONE_BY_ONE, SESSION, THREADS

import tf_hvd as hvd

# tf_hvd's text, without TensorFlow's additions.
TOLD = re.compile(r"(?:mismatch in |\w+ ')[^\n]*?(?= \[Op:|\n|$|\s*\[\[|\{\{)")
MAX_SHOWN = 300


@dataclasses.dataclass
class Report:
    """A rank's observations of a program."""

    faults: list[str]
    errors: dict[str, str]
    """The error text of each call that had to fail, by its position in the program."""


def mistaken_arrays(call, arrays):
    """The input of the odd rank."""
    first, rest = (arrays[0], arrays[1:]) if arrays else (np.float32([1]), [])
    match call.mistake:
        case "dtype":
            other = "int32" if call.dtype == "float32" else "float32"
            return [numbers(other, array.shape, 0) for array in arrays]
        case "shape":
            return [first[..., np.newaxis], *rest]
        case "scalar":
            return [numbers(call.dtype, (), 0), *rest]
        case "members":
            return [first, *rest, first]
    return [first, *rest]


def mistaken_arguments(call):
    """The arguments that only the odd rank passes."""
    match call.mistake:
        case "operation":
            other = "allreduce" if call.operation == "broadcast" else "broadcast"
            op = programs.REDUCTIONS[call.dtype][0]
            return {"operation": other, "root": call.ranks[0], "op": op}
        case "op":
            return {"op": next(op for op in programs.REDUCTIONS[call.dtype] if op != call.op)}
        case "scale":
            return {"postscale": call.postscale * 2}
        case "root":
            return {"root": next(rank for rank in call.ranks if rank != call.root)}
        case "splits":  # more rows than any rank has
            size = len(call.ranks)
            return {"splits": ((max(call.rows[0]) + 9, *[0] * (size - 1)),) * size}
    return {}


def as_made_by(call, rank, arrays):
    """The call and its arrays as this rank makes it: with the mistake on the odd rank."""
    if call.mistake == "" or call.odd != rank:
        return call, arrays
    return dataclasses.replace(call, **mistaken_arguments(call)), mistaken_arrays(call, arrays)


def invoke(call, arrays, rank, sets):
    """Make the call; returns a list of tensors."""
    call, arrays = as_made_by(call, rank, arrays)
    function = getattr(hvd, call.operation)
    options = {"name": call.name, "process_set": sets[call.process_set]}
    if call.operation == "barrier":
        function(**options)
        return []
    if call.operation == "broadcast_":
        return broadcast_in_place(arrays, call.root, options)
    if call.operation == "broadcast":
        return [function(tf.constant(arrays[0]), call.root, **options)]
    if call.operation in programs.REDUCING:
        options["op"] = getattr(hvd, call.op)
        options["prescale_factor"], options["postscale_factor"] = call.prescale, call.postscale
    if call.operation.startswith("grouped"):
        return list(function([tf.constant(array) for array in arrays], **options))
    if call.operation == "alltoall" and call.splits is not None:
        splits = call.splits[call.ranks.index(rank)]
        return list(function(tf.constant(arrays[0]), splits=list(splits), **options))
    return [function(tf.constant(arrays[0]), **options)]


def broadcast_in_place(arrays, root, options):
    variables = [tf.Variable(array) for array in arrays]
    hvd.broadcast_(variables, root, **options)
    return [variable.read_value() for variable in variables]


def in_order(made, rank, sets):
    """Results of calls one by one, as lists of arrays or errors."""
    return {call.name: attempt(call, arrays, rank, sets) for call, arrays in made}


def attempt(call, arrays, rank, sets):
    try:
        return [tensor.numpy() for tensor in invoke(call, arrays, rank, sets)]
    except Exception as error:  # whatever it is, the other ranks continue
        return error


def in_threads(made, rank, sets):
    """The same, with each call in a separate thread."""
    results = {}

    def work(call, arrays):
        results[call.name] = attempt(call, arrays, rank, sets)

    threads = [threading.Thread(target=work, args=pair) for pair in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def in_graph(made, rank, sets, execute):
    """The same, as one graph; an error belongs to its only call."""

    def build():
        return {call.name: invoke(call, arrays, rank, sets) for call, arrays in made}

    try:
        return execute(build)
    except Exception as error:  # whatever it is, the other ranks continue
        return {call.name: error for call, _ in made}


def as_function(build, jit=None):
    outputs = tf.function(build, autograph=False, jit_compile=jit)()
    return tf.nest.map_structure(lambda tensor: tensor.numpy(), outputs)


def as_session(build):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        return session.run(build())


RUNNERS = {
    ONE_BY_ONE: in_order,
    THREADS: in_threads,
    FUNCTION: lambda *made: in_graph(*made, as_function),
    COMPILED: lambda *made: in_graph(*made, functools.partial(as_function, jit=True)),
    SESSION: lambda *made: in_graph(*made, as_session),
}


def run_batch(batch, rank, sets):
    """Runs this rank's calls of a batch; its results by name."""
    mine = [batch.calls[i] for i in batch.orders[rank] if rank in batch.calls[i].ranks]
    if not mine:
        return {}
    time.sleep(batch.delays_ms[rank] / 1000)
    made = [(call, programs.inputs(call, call.ranks.index(rank))) for call in mine]
    return RUNNERS[batch.how](made, rank, sets)


def check(call, result, rank):
    """The faults of one call, and the error's text if it had to fail."""
    if isinstance(result, Exception):
        if call.mistake == "" or not isinstance(result, tf.errors.OpError):
            return [f"fails with {result}"], None
        told = TOLD.search(result.message)
        text = told[0] if told else f"not told in '{result.message}'"
        refused = call.mistake in programs.REFUSED and rank == call.odd
        kind = tf.errors.InvalidArgumentError if refused else tf.errors.FailedPreconditionError
        wanted = [f"'{call.name}'", *([] if refused else [f"rank {call.odd}"])]
        faults = [f"'{w}' is not in '{result.message}'" for w in wanted if w not in result.message]
        return faults + [f"fails with {result!r}"] * (not isinstance(result, kind)), text
    if call.mistake != "":
        return ["does not fail"], None
    wanted = programs.expected(call, call.ranks.index(rank))
    faults = [difference(a, e) for a, e in zip(result, wanted, strict=True)]
    return [fault for fault in faults if fault], None


def run_program(program, rank, sets):
    """Runs a program on this rank."""
    report = Report([], {})
    for i, batch in enumerate(program):
        results = run_batch(batch, rank, sets)
        for call in batch.calls:
            if rank not in call.ranks:
                continue
            where = f"batch {i}, {call.name}"
            faults, text = check(call, results[call.name], rank)
            report.faults += [f"{where} on rank {rank}: {f[:MAX_SHOWN]}" for f in faults]
            if text is not None:
                report.errors[where] = text
    return report


def disagreements(reports):
    """Calls that failed with different texts on different ranks."""
    faults = []
    for where in {where for report in reports for where in report.errors}:
        texts = {report.errors[where] for report in reports if where in report.errors}
        if len(texts) > 1:
            faults.append(f"{where}: different texts on the ranks: {sorted(texts)}")
    return faults


class Driver:
    """Rank 0's side: runs a program on all ranks."""

    def __init__(self, sets):
        self.sets = sets
        self.ran = 0

    def __call__(self, program):
        try:
            hvd.broadcast_object(program, 0, name="program")
            report = run_program(program, 0, self.sets)
            reports = hvd.allgather_object(report, name="reports")
        except tf.errors.UnknownError as error:
            # No other program can run, so this one cannot be shrunk.
            raise SystemExit(f"the job ended in this program:\n{program}\n{error}") from error
        self.ran += 1
        faults = [fault for report in reports for fault in report.faults] + disagreements(reports)
        assert not faults, "\n".join(faults)

    def stop(self):
        """Let the other ranks end."""
        with contextlib.suppress(tf.errors.OpError):
            hvd.broadcast_object(None, 0, name="program")


def follow(sets):
    """The other ranks' side; returns the number of programs that they received."""
    count = 0
    while (program := hvd.broadcast_object(None, 0, name="program")) is not None:
        hvd.allgather_object(run_program(program, hvd.rank(), sets), name="reports")
        count += 1
    return count


@contextlib.contextmanager
def process_sets():
    """All ranks, and sets that overlap; the same on all ranks."""
    size = hvd.size()
    members = [{0, size - 1}, set(range(1, size)), {size - 1, size - 2, 0}]
    unique = {tuple(sorted(ranks)) for ranks in members if 0 < len(ranks) < size}
    sets = [hvd.add_process_set(list(ranks)) for ranks in sorted(unique)]
    try:
        yield [hvd.global_process_set, *sets]
    finally:
        # If the job has ended, they no longer exist, and the reason is already reported.
        with contextlib.suppress(hvd.HorovodInternalError):
            for process_set in sets:
                hvd.remove_process_set(process_set)


def run_programs(count, seed=None):
    """Runs `count` programs on all ranks of the job; returns how many were run.

    Without a seed, the programs are the same each time.
    """
    with process_sets() as sets:
        return drive(count, seed, sets) if hvd.rank() == 0 else follow(sets)


def drive(count, seed, sets):
    """Rank 0's part of run_programs."""
    driver = Driver(sets)
    settings = hypothesis.settings(
        max_examples=count,
        derandomize=seed is None,
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        print_blob=False,
    )
    members = [tuple(process_set.ranks) for process_set in sets]

    @settings
    @hypothesis.given(program=programs.programs(members))
    def every_program(program):
        driver(program)

    if seed is not None:
        every_program = hypothesis.seed(seed)(every_program)
    try:
        every_program()
    finally:
        driver.stop()
    return driver.ran


def main():
    """`./dev fuzz`, on each rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    # It warns about functions that are created repeatedly, which is intended here.
    tf.get_logger().setLevel("ERROR")
    # A lost call is an error after seconds.
    os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", "5")
    os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60")
    hvd.init()
    if hvd.rank() == 0:
        print(f"{arguments.programs} programs from seed {arguments.seed}", flush=True)
    count = run_programs(arguments.programs, arguments.seed)
    if hvd.rank() == 0:
        print(f"{count} programs gave what NumPy gives", flush=True)


if __name__ == "__main__":
    main()
