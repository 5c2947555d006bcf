"""Runs random training programs on all ranks and compares each with one worker.

All ranks draw the same programs. Rank 0 also trains each of them in one process, with the rows of
all ranks, and compares. A failing program is reported with the command that repeats only it. With
--shrink, everything that is not needed for the failure is removed first.

    ./dev fuzz --training N [--seed S] [-np RANKS] [--only NUMBER] [--shrink 1] [--known 1]
"""

import argparse
import contextlib
import dataclasses
import functools
import os
import traceback

import keras
import numpy as np
import tensorflow as tf
import tf_keras
import training_models as models
import training_programs as programs
import training_ranks as ranks
import training_reference as reference
import training_session
from training_known import known

import tf_hvd as hvd
import tf_hvd.keras

TOLERANCE = 1e-9
SHOWN = 1500


@dataclasses.dataclass
class Report:
    """A rank's report about a program."""

    outcome: reference.Outcome | None = None
    error: str = ""


class JobEndedError(Exception):
    """A program ended the job, so no further program can run."""


def tolerance(program, size):
    """The allowed difference from one worker: relative to the greatest change, and absolute."""
    if program.policy == "mixed_float16" or program.wrapped("compression"):
        return 0.05, 1e-3
    members = len(program.members(size))
    if program.model == "linear":
        exact = program.wrapped("op") == "Sum" or members & (members - 1) == 0
        return 0, 0.0 if exact else 1e-4
    return 0, TOLERANCE


@functools.lru_cache(maxsize=64)
def expected(program, size, salt=0):
    """One worker's outcome."""
    with tf_hvd.unguarded():
        worker = training_session.one_worker if program.library == "v1" else reference.train
        return worker(program, size, salt)


def differences(what, found, wanted, near):
    """The differences between two lists of arrays that exceed the tolerance."""
    if len(found) != len(wanted):
        return [f"{len(found)} {what}, {len(wanted)} are expected"]
    faults = []
    for i, (a, b) in enumerate(zip(found, wanted, strict=True)):
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape or a.dtype != b.dtype:
            faults.append(f"{what} {i}: {a.dtype}{a.shape}, not {b.dtype}{b.shape}")
            continue
        a, b = a.astype(np.float64), b.astype(np.float64)
        relative, absolute = near
        limit = absolute + relative * max(np.abs(b).max(initial=0), 0.1)
        if not (np.abs(a - b) <= limit).all():
            faults.append(f"{what} {i}: up to {np.abs(a - b).max():.3g} apart, not {limit:.3g}")
    return faults


def faults_of(program, size, reports):
    """The faults in the ranks' reports."""
    if program.crossed:
        silent = [r for r, report in enumerate(reports) if "mismatch in" not in report.error]
        return [f"ranks {silent} do not report that the lists are crossed"] if silent else []
    errors = [f"rank {r} fails with {report.error}" for r, report in enumerate(reports)]
    errors = [text for text, report in zip(errors, reports, strict=True) if report.error]
    if errors:
        return errors
    members = program.members(size)
    faults = unlike(members, [reports[r].outcome.weights for r in members], "weights")
    faults += against(program, size, 0, reports[0].outcome)
    if program.left_out == "trains":
        by_itself = dataclasses.replace(program, left_out="")
        faults += [
            f"the excluded rank: {fault}"
            for fault in against(by_itself, 1, 1, reports[size - 1].outcome)
        ]
    elif {"average", "keras_stop", "plateau"} & set(program.callbacks):
        faults += unlike(members, [reports[r].outcome.losses for r in members], "losses")
    faults += losses(program, size, [reports[r].outcome.losses for r in members])
    return faults


def unlike(members, values, what):
    """Reports ranks that differ from the first in any bit."""
    flat = [[np.asarray(v).tobytes() for v in tf.nest.flatten(value)] for value in values]
    odd = [rank for rank, mine in zip(members, flat, strict=True) if mine != flat[0]]
    return [f"the {what} of ranks {odd} are not those of rank {members[0]}"] if odd else []


def against(program, size, salt, outcome):
    """The differences between a rank's outcome and one worker's."""
    wanted = expected(program, size, salt)
    near = tolerance(program, size)
    faults = differences("weights", outcome.weights, wanted.weights, near)
    # Keras' partial sums of an incomplete update are local to each rank.
    partial = program.option("gradient_accumulation_steps")
    # An optimizer with its own update may be built in a job, for sums of passes, but not otherwise.
    alike = not partial and program.override != "own_update"
    if program.policy == "float64" and not program.wrapped("compression") and alike:
        faults += differences("state", outcome.state, wanted.state, near)
    return faults


def losses(program, size, everybody):
    """The differences between the mean of the ranks' losses and one worker's."""
    if program.loop not in programs.FITS or program.policy != "float64":
        return []
    wanted = expected(program, size).losses
    shapes = [[len(fit) for fit in mine] for mine in [wanted, *everybody]]
    if any(shape != shapes[0] for shape in shapes):
        return [f"epochs of each fit: {shapes[1:]}, not {shapes[0]}"]
    near = (0, 1e-2 if program.wrapped("compression") else 1e-6)
    means = [np.mean([mine[i] for mine in everybody], axis=0) for i in range(len(wanted))]
    return differences("losses of fit", means, [np.asarray(fit) for fit in wanted], near)


def attempt(program, others):
    """Runs a program on this rank."""
    keras.utils.clear_session()
    tf_keras.backend.clear_session()
    models.set_precision(program)
    try:
        return Report(ranks.train(program, others))
    except Exception as error:  # any exception is reported
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error!s:.{SHOWN}} ({where.filename}:{where.lineno})"
        return Report(error=text)


def run_program(program, others):
    """Runs a program on all ranks; returns the faults, on each of them.

    Raises:
      JobEndedError: no further program can run.
    """
    report = attempt(program, others)
    try:
        reports = hvd.allgather_object(report, name="reports")
        faults = None
        if hvd.rank() == 0:
            faults = faults_of(program, hvd.size(), reports)
        return hvd.broadcast_object(faults, 0, name="faults")
    except Exception as error:  # a rank has left, or is at another place in the program
        raise JobEndedError(f"the job ended: {report.error or error}") from error
    finally:
        models.set_precision(None)


def shrink(program, others, kept=()):
    """Returns the smallest program that still fails; the same on all ranks.

    Args:
      kept: fields that are not changed.
    """
    while True:
        for simpler in programs.simplifications(program, kept):
            if programs.refused(simpler, hvd.size()):
                continue
            if run_program(simpler, others):
                program = simpler
                break
        else:
            return program


@contextlib.contextmanager
def all_but_last():
    """The process set of all ranks except the last; None in a job of one."""
    size = hvd.size()
    if size == 1:
        yield None
        return
    others = hvd.add_process_set(list(range(size - 1)))
    try:
        yield others
    finally:
        with contextlib.suppress(hvd.HorovodInternalError):
            hvd.remove_process_set(others)


def run_programs(
    numbers, seed, with_known=False, stop_at_first=False, tell=lambda *_: None, api="hvd"
):
    """Runs the programs of these numbers.

    Args:
      api: "keras" to run those programs that keras.distribution can train, by that API.
      with_known: whether to run programs that hit a known fault, too.
      stop_at_first: whether to stop after the first failing program.
      tell: function that is called for each failing program.

    Returns:
      The number of programs that ran, and the failing ones: (number, program, faults).
    """
    ran, failing = 0, []
    with all_but_last() as others:
        for number in numbers:
            program = programs.draw(seed, number, hvd.size())
            if api == "keras":
                program = programs.by_keras(program)
            if not with_known and known(program):
                continue
            if programs.refused(program, hvd.size()):
                continue
            try:
                faults = run_program(program, others)
            except JobEndedError as error:
                failing.append((number, program, [str(error)]))
                tell(*failing[-1])
                return ran, failing
            ran += 1
            if faults:
                failing.append((number, program, faults))
                tell(*failing[-1])
                if stop_at_first:
                    break
    return ran, failing


def told(seed, number, program, faults):
    """The report about a failing program."""
    lines = "\n  ".join(faults)
    return (
        f"training program {number} fails:\n{program}\n  {lines}\n"
        f"again: ./dev fuzz --only {number} --seed {seed} -np {hvd.size()}"
    )


def main():
    """`./dev fuzz`, on each rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--only", type=int, action="append")
    parser.add_argument("--shrink", type=int, default=0)
    parser.add_argument("--known", type=int, default=0)
    parser.add_argument("--api", choices=("hvd", "keras"), default="hvd")
    arguments = parser.parse_args()
    tf.get_logger().setLevel("ERROR")
    os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", "10")
    os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "60")
    hvd.init()
    numbers = range(arguments.programs) if arguments.only is None else arguments.only

    def tell(number, program, faults):
        if hvd.rank() == 0:
            print(told(arguments.seed, number, program, faults), flush=True)

    ran, failing = run_programs(
        numbers, arguments.seed, bool(arguments.known), tell=tell, api=arguments.api
    )
    for _, program, _ in failing if arguments.shrink and hvd.is_initialized() else ():
        with all_but_last() as others:
            smallest = shrink(program, others)
        if hvd.rank() == 0:
            print(f"the smallest failing program:\n{smallest}", flush=True)
    if hvd.rank() == 0:
        print(f"{ran - len(failing)} of {ran} training programs had the same result as one worker")
    if failing:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
