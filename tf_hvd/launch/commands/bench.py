"""`tf_hvd bench`: measure collectives in the current job, or in a job that it starts."""

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
    """Add the command; `start_words` runs a `tf_hvd` command line and returns its exit code."""
    parser = commands.add_parser(
        "bench",
        help="compare collectives with raw MPI and the machine's limits",
        description="Measure collectives on tensors of several sizes or on the gradients of a "
        "model, alternating with raw MPI and with the limits of the machine. Run the command "
        "inside a job, or start a job with -np.",
        epilog="example: tf_hvd bench -np 2 --sizes 4,64K,1M --gradients resnet50",
    )
    job = parser.add_argument_group("options for starting a job")
    job.add_argument("-np", "--num-proc", dest="np", type=rank_count, help="number of ranks")
    job.add_argument("-H", "--hosts", metavar="HOST:SLOTS,...", help="hosts and ranks on each")
    job.add_argument(
        "--mpi",
        choices=("openmpi", "mpich", "auto"),
        default="auto",
        help="MPI implementation (default: auto, the first one found)",
    )
    job.add_argument(
        "--mpi-args", default="", metavar="ARGS", help="extra arguments for the MPI launcher"
    )
    job.add_argument(
        "--verbose", action="store_true", help="print the launcher's command line before starting"
    )
    job.add_argument(_IN_JOB, action="store_true", help=argparse.SUPPRESS)
    add_options(parser)
    parser.set_defaults(start=_start, parser=parser, start_words=start_words)


def add_options(parser: argparse.ArgumentParser) -> None:
    _add_work(parser)
    _add_counts(parser)
    _add_report(parser)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


_count = whole("a number")


def _repetitions(text: str) -> int:
    number = _count(text)
    if number == 0:
        raise argparse.ArgumentTypeError("0 repetitions measure nothing; give 1 or more")
    return number


def _add_work(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sizes",
        type=_names,
        metavar="SIZE,...",
        help=f"tensor sizes in bytes, with suffix K, M or G (default: {_SIZES})",
    )
    parser.add_argument(
        "--operations",
        type=_names,
        default=("allreduce",),
        metavar="NAME,...",
        help=f"collectives to measure: {', '.join(OPERATIONS)} (default: allreduce)",
    )
    parser.add_argument(
        "--dtypes",
        type=_names,
        default=("float32",),
        metavar="NAME,...",
        help="element types: float32, float16, bfloat16, float64 (default: float32)",
    )
    parser.add_argument(
        "--gradients",
        type=_names,
        default=(),
        metavar="MODEL,...",
        help="measure collectives on the gradients of these models (resnet50, vgg16, bert-large); "
        "may be combined with --sizes",
    )
    parser.add_argument(
        "--mode",
        choices=MODES,
        default="",
        help="how to call collectives: eagerly, all in one tf.function, or as one grouped call "
        "(default: eager for --sizes, function for --gradients)",
    )
    parser.add_argument(
        "--peers",
        type=_names,
        metavar="NAME,...",
        help="libraries and machine limits to compare with (default: all available ones)",
    )


def _add_counts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--repetitions",
        type=_repetitions,
        default=30,
        metavar="N",
        help="number of measured repetitions (default: %(default)s)",
    )
    parser.add_argument(
        "--warmup",
        type=_count,
        default=3,
        metavar="N",
        help="number of warm-up repetitions, which are not measured (default: %(default)s)",
    )
    parser.add_argument(
        "--calls",
        type=_count,
        default=0,
        metavar="N",
        help="number of calls per repetition (default: 20 for sizes up to 64K, 1 for larger sizes)",
    )


def _add_report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--training",
        choices=TRAININGS,
        default="",
        help="time the training step of a small convolutional network with and without gradient "
        "reduction: keras uses train_on_batch, tape a custom loop",
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument(
        "--plot", default="", metavar="FILE", help="also save a plot as a .png or .svg file"
    )


def _start(options: argparse.Namespace) -> int:
    try:
        words = ["tf_hvd", *(word for word in options.words if word != _IN_JOB)]
        settings = settings_of(options, shlex.join(words))
    except ValueError as error:
        raise UsageError(str(error)) from None
    if options.np is not None and not options.in_job:
        return _start_job(options)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    # Imported here because TensorFlow takes seconds to load and other commands do not need it.
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
    """Return the benchmark's settings for the parsed options.

    Raises:
      ValueError: an option has an unknown value, or two options cannot be combined.
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
