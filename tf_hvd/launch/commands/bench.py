"""`tf_hvd bench`: measures collectives in a job, or starts the job first."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

import tf_hvd_command
from tf_hvd.bench.settings import TRAININGS, Plan, Settings
from tf_hvd.bench.workloads import MODES, OPERATIONS
from tf_hvd.launch.commands.argument_types import rank_count, whole
from tf_hvd.launch.errors import UsageError

_SIZES = "4,1K,64K,1M,16M,64M"
_IN_JOB = "--in-job"
_FAILED = 1


def add_command(commands: Any, start_words: Callable[[Sequence[str]], int]) -> None:
    """`start_words` does what a command line of `tf_hvd` says, and returns the exit code."""
    parser = commands.add_parser(
        "bench",
        help="measure collectives beside raw MPI and the machine's limits",
        description="Measures operations on tensors of several sizes, or on the gradients of a "
        "model, and in turns raw MPI and the machine's limits. Run it in a job, or let it start "
        "one with -np.",
        epilog="example: tf_hvd bench -np 2 --sizes 4,64K,1M --gradients resnet50",
    )
    job = parser.add_argument_group("options for starting a job")
    job.add_argument("-np", "--num-proc", dest="np", type=rank_count, help="the number of ranks")
    job.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="as `tf_hvd run` takes them")
    job.add_argument("--mpi", choices=("openmpi", "mpich", "auto"), default="auto")
    job.add_argument("--mpi-args", default="", metavar="ARGS")
    job.add_argument("--verbose", action="store_true", help="print the launcher's command line")
    job.add_argument(_IN_JOB, action="store_true", help=argparse.SUPPRESS)
    add_options(parser)
    parser.set_defaults(start=_start, parser=parser, start_words=start_words)


def add_options(parser: argparse.ArgumentParser) -> None:
    _add_work(parser)
    _add_report(parser)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


_count = whole("a number")


def _repetitions(text: str) -> int:
    number = _count(text)
    if number == 0:
        raise argparse.ArgumentTypeError("at least one repetition is measured")
    return number


def _add_work(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=_names, help=f"bytes, with K, M or G; default {_SIZES}")
    parser.add_argument(
        "--operations",
        type=_names,
        default=("allreduce",),
        metavar="NAME,...",
        help=", ".join(OPERATIONS),
    )
    parser.add_argument(
        "--dtypes",
        type=_names,
        default=("float32",),
        metavar="NAME,...",
        help="float32, float16, bfloat16, float64",
    )
    parser.add_argument(
        "--gradients",
        type=_names,
        default=(),
        metavar="MODEL,...",
        help="the gradients of resnet50, vgg16 or bert-large, instead of sizes or with them",
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        default="",
        help="calls one by one, in a tf.function, or grouped in one; by default eager for sizes "
        "and a function for gradients",
    )
    parser.add_argument("--peers", type=_names, metavar="NAME,...", help="by default all")
    parser.add_argument("--repetitions", type=_repetitions, default=30, metavar="N")
    parser.add_argument("--warmup", type=_count, default=3, metavar="N")
    parser.add_argument(
        "--calls",
        type=_count,
        default=0,
        metavar="N",
        help="calls in a repetition; by default 20 up to 64K and 1 above",
    )


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--training",
        choices=TRAININGS,
        default="",
        help="time a training step with and without the reduction of its gradients",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--plot", default="", metavar="FILE", help="draw to a .png or .svg file")


def _start(options: argparse.Namespace) -> int:
    try:
        words = ["tf_hvd", *(word for word in options.words if word != _IN_JOB)]
        settings = settings_of(options, shlex.join(words))
    except ValueError as error:
        raise UsageError(str(error)) from None
    if options.np is not None and not options.in_job:
        return _start_job(options)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Only now: TensorFlow takes seconds to load, and the other commands do without.
    from tf_hvd.bench import program
    from tf_hvd.bench.errors import BenchError
    from tf_hvd.bench.job import RunningJob

    try:
        program.run(settings, RunningJob())
    except BenchError as error:
        print(f"tf_hvd bench: {error}", file=sys.stderr, flush=True)
        return _FAILED
    return 0


def settings_of(options: argparse.Namespace, command: str) -> Settings:
    """The settings by parsed options.

    Raises:
      ValueError: there is no such thing, or it cannot be reported so.
    """
    sizes = options.sizes
    if sizes is None:
        sizes = () if options.gradients or options.training else _names(_SIZES)
    settings = Settings(
        sizes=sizes,
        operations=options.operations,
        dtypes=options.dtypes,
        gradients=options.gradients,
        mode=options.mode,
        plan=Plan(options.repetitions, options.warmup, options.calls),
        json=options.json,
        plot=options.plot,
        training=options.training,
        command=command,
        **({"peers": options.peers} if options.peers else {}),
    )
    settings.check()
    return settings


def _start_job(options: argparse.Namespace) -> int:
    words = ["run", "-np", str(options.np), "--mpi", options.mpi, f"--mpi-args={options.mpi_args}"]
    words += ["-H", options.hosts] if options.hosts else []
    words += ["--verbose"] if options.verbose else []
    bench, *rest = options.words
    words += ["--", *tf_hvd_command.command(bench, _IN_JOB, *rest)]
    return int(options.start_words(words))
