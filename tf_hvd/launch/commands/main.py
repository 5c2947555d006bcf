"""The entry point of the `tf_hvd` command."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import errno
import importlib
import os
import pathlib
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from tf_hvd.core import wheels
from tf_hvd.launch.commands import bench, doctor, dump, strip_ops, timeline
from tf_hvd.launch.commands.argument_types import rank_count, seconds, whole
from tf_hvd.launch.elastic import driver as elastic_driver
from tf_hvd.launch.errors import HostsError, UsageError
from tf_hvd.launch.job import interpreter, run, signals
from tf_hvd.launch.job.environment import horovod_path
from tf_hvd.launch.job.session import Home

_NOT_AS_ASKED = 2
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Parser(argparse.ArgumentParser):
    """An argument parser that reports errors in one line and accepts no abbreviated options."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **kwargs})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, but name the command and suggest an option if one is unknown."""
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            near = difflib.get_close_matches(unknown[0], self._option_string_actions, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            self.error(f"unknown argument {unknown[0]}{hint}")
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        """Print the message without the usage, and exit with code 2."""
        self.exit(_NOT_AS_ASKED, f"{self.prog}: {message}\n")


class _Print(argparse.Action):
    """An action that prints the text returned by the function `const` and exits with code 0."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        print(self.const())
        parser.exit()


def _version() -> str:
    """Return the wheel's version and the TensorFlow versions that it was built for.

    Works with any installed TensorFlow version.
    """
    info = importlib.import_module("tf_hvd._build_info")
    return f"tf_hvd {info.VERSION}, built for TensorFlow {wheels.named(list(info.BUILDS))}"


def _add_files(runner: argparse.ArgumentParser) -> None:
    runner.add_argument(
        "--output-filename",
        metavar="FOLDER",
        help="also write rank N's output to FOLDER/rank.N/stdout and FOLDER/rank.N/stderr",
    )
    runner.add_argument(
        "--prefix-output-with-timestamp",
        action="store_true",
        help="prefix each line of the ranks' output with the time",
    )
    runner.add_argument(
        "--tag-output",
        action="store_true",
        help="prefix each line of output with its rank and stream, such as `[1,0]<stdout>: `",
    )
    runner.add_argument(
        "--timeline",
        metavar="FILE",
        help="record when each collective ran, as JSON for ui.perfetto.dev. Rank 0 writes FILE; "
        "each other rank N writes a file of that name with .rank-N before the extension",
    )
    runner.add_argument(
        "--timeline-limit",
        type=whole("a number of megabytes, such as 500", 1),
        metavar="MB",
        help="maximum timeline size per rank, in MB; the oldest events are dropped (default: "
        "unlimited)",
    )
    runner.add_argument(
        "--metrics",
        metavar="FILE",
        help="every 5 s, write counters of the time and bytes spent in collectives, in OpenMetrics "
        "format. Rank 0 writes FILE; the other ranks insert .rank-N before its extension. "
        "Prometheus' node exporter reads files named *.prom",
    )


def _add_environment(runner: argparse.ArgumentParser) -> None:
    runner.add_argument(
        "-x",
        dest="variables",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="environment variable to set for all ranks; without VALUE, pass the current value to "
        "all hosts",
    )
    runner.add_argument(
        "--env-file",
        metavar="FILE",
        help="file of environment variables to set for all ranks, one NAME[=VALUE] per line",
    )


def _add_network(runner: argparse.ArgumentParser) -> None:
    runner.add_argument(
        "-p", "--ssh-port", type=int, metavar="PORT", help="SSH port of the other hosts"
    )
    runner.add_argument(
        "-i", "--ssh-identity-file", metavar="FILE", help="private SSH key for the other hosts"
    )
    runner.add_argument(
        "--network-interfaces",
        default="",
        metavar="NAME,...",
        help="network interfaces that MPI may use (MPICH uses only the first)",
    )
    runner.add_argument(
        "--no-host-check",
        action="store_true",
        help="skip the check of the other hosts before the job starts",
    )


def make_parser() -> argparse.ArgumentParser:
    """Return the parser for all commands.

    Each command sets `start`, a function that takes the parsed options.
    """
    parser = Parser(prog="tf_hvd", description="Distributed training for TensorFlow.")
    parser.add_argument(
        "--version", action=_Print, const=_version, nargs=0, help="print the version"
    )
    parser.add_argument(
        "--horovod-path",
        action=_Print,
        const=horovod_path,
        nargs=0,
        help="print the folder that makes `import horovod` import tf_hvd; add it to PYTHONPATH if "
        "the program is not started by tf_hvd run",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    runner = commands.add_parser(
        "run",
        help="start a program on several ranks under MPI",
        description="Start a program on several ranks, using the installed MPI launcher.",
        epilog="example: tf_hvd run -np 4 python train.py",
    )
    add_run_options(runner)
    strip_ops.add_command(commands)
    bench.add_command(commands, main)
    doctor.add_command(commands)
    dump.add_command(commands)
    timeline.add_command(commands)
    return parser


def add_run_options(runner: argparse.ArgumentParser) -> None:
    """Add the options for `tf_hvd run` to a parser and set the function that starts the job."""
    runner.add_argument(
        *("-np", "--num-proc"),
        dest="np",
        type=rank_count,
        metavar="N",
        help="number of ranks (default: all slots of the given hosts)",
    )
    where = runner.add_mutually_exclusive_group()
    where.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS,...",
        help="hosts and the maximum number of ranks on each",
    )
    where.add_argument(
        "--hostfile", metavar="FILE", help="file of hosts, one `HOST slots=N` per line"
    )
    runner.add_argument(
        "--mpi",
        choices=("openmpi", "mpich", "auto"),
        default="auto",
        help="MPI implementation (default: auto, the first one found)",
    )
    runner.add_argument(
        "--mpi-args",
        default="",
        metavar="ARGS",
        help='extra arguments for the MPI launcher, for example --mpi-args="--tag-output"',
    )
    runner.add_argument(
        "--verbose", action="store_true", help="print the launcher's command line before starting"
    )
    runner.add_argument(
        "--as-horovod",
        action="store_true",
        help="run a Horovod script: `import horovod` imports tf_hvd",
    )
    runner.add_argument(
        "--keras",
        action="store_true",
        help="run a Keras script that uses keras.distribution, without changing it",
    )
    _add_files(runner)
    _add_environment(runner)
    _add_network(runner)
    runner.add_argument(
        "--require-init",
        action="store_true",
        help="exit with a nonzero code if no rank calls init()",
    )
    _add_times(runner)
    _add_elastic(runner)
    runner.add_argument("--end-with-parent", type=pathlib.Path, help=argparse.SUPPRESS)
    runner.add_argument(
        "command", nargs=argparse.REMAINDER, help="program to run, and its arguments"
    )
    runner.set_defaults(start=_start_run, parser=runner)


def _add_times(runner: argparse.ArgumentParser) -> None:
    runner.add_argument(
        "--start-timeout",
        type=seconds,
        metavar="SECONDS",
        help="end the job if its ranks on this machine have not started after SECONDS (default: "
        "wait indefinitely)",
    )
    runner.add_argument(
        "--grace",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
        help="time in seconds that ranks get to finish after Ctrl-C or SIGTERM before they are "
        "killed (default: %(default)g)",
    )


def _add_elastic(runner: argparse.ArgumentParser) -> None:
    group = runner.add_argument_group(
        "elastic jobs",
        "An elastic job restarts its ranks from the last commit when a rank fails or hosts are "
        "added or removed. --min-np or --host-discovery-script makes a job elastic.",
    )
    group.add_argument(
        *("--min-np", "--min-num-proc"),
        dest="min_np",
        type=rank_count,
        metavar="N",
        help="minimum number of ranks; after a failure the job restarts if N slots are available",
    )
    group.add_argument(
        *("--max-np", "--max-num-proc"),
        dest="max_np",
        type=rank_count,
        metavar="N",
        help="maximum number of ranks (default: all available slots)",
    )
    group.add_argument(
        "--host-discovery-script",
        metavar="FILE",
        help="program that prints the available hosts, one `HOST:SLOTS` per line; tf_hvd runs it "
        "every second",
    )
    group.add_argument(
        "--slots-per-host",
        type=rank_count,
        metavar="N",
        help="slots per host for hosts that the discovery script prints without a number",
    )
    group.add_argument(
        "--reset-limit",
        type=whole("a number of restarts; 0 for none"),
        metavar="N",
        help="give up after N restarts (default: unlimited)",
    )
    group.add_argument(
        "--elastic-timeout",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="maximum time to wait for enough hosts, in seconds (default: %(default)g)",
    )
    group.add_argument(
        "--blacklist-cooldown-range",
        dest="cooldown",
        type=float,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="seconds to exclude a host after a rank on it fails: MIN, doubled after each "
        "failure, up to MAX (default: permanently after 3 failures)",
    )


def _start_run(options: argparse.Namespace) -> int:
    if options.command[:1] == ["--"]:
        del options.command[0]
    if not options.command:
        raise UsageError(
            f"no program to run; for example: {options.parser.prog} -np {options.np or 2} "
            "python train.py"
        )
    ignoring = interpreter.ignoring_option(options.command) if options.keras else ""
    if ignoring:
        raise UsageError(
            f"--keras needs PYTHONPATH, which Python's option {ignoring} ignores: remove it, or "
            "add `import tf_hvd.keras` to the program and omit --keras"
        )
    parents = options.end_with_parent
    bound = signals.ending_with_parent(parents) if parents else contextlib.nullcontext()
    try:
        with bound:
            if elastic_driver.is_asked_for(options):
                code = elastic_driver.drive(options, os.environ)
            else:
                with Home() as home:
                    code = run.start_once(options, os.environ, home).code
                    code = run.with_lost_output(code, home)
    except KeyboardInterrupt:  # only before the job starts: supervise() handles SIGINT itself
        return 128 + signal.SIGINT
    if 0 < code < 128:
        text = interpreter.missing_text(options.command[0], os.environ)
        if text:
            print(text, file=sys.stderr, flush=True)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one `tf_hvd` command.

    Args:
        arguments: the command line without the program's name (default: `sys.argv[1:]`).

    Returns:
        The command's exit code. It is 2 if the request is invalid or no command is given.
        Standard error then gets a one-line error or the list of commands.
    """
    words = sys.argv[1:] if arguments is None else list(arguments)
    parser = make_parser()
    if not words:
        parser.print_help(sys.stderr)
        return _NOT_AS_ASKED
    try:
        options = parser.parse_args(words)
        options.words = words
        return start(options)
    except OSError as error:
        # An error without a file name is about standard output: errors of other files carry their
        # name, or were converted to another exception.
        if error.filename is not None or error.errno not in _NO_ROOM:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # discards output that is still buffered
        print(f"{parser.prog}: standard output: {error.strerror}", file=sys.stderr)
        return _NOT_AS_ASKED


def _open_standard_files() -> None:
    """Open /dev/null for closed standard files, so that no other file gets their descriptors."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # `open` returns the lowest free number, which is this one.
            os.set_inheritable(
                os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY), True
            )
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def start(options: argparse.Namespace) -> int:
    """Run the command that the parsed options select and return its exit code."""
    _open_standard_files()
    try:
        code: int = options.start(options)
        sys.stdout.flush()
    except HostsError as error:
        prefix = f"{options.parser.prog}: "
        options.parser.error(f"\n{prefix}".join(why for _, why in error.wrong))
    except UsageError as error:
        options.parser.error(str(error))
    except BrokenPipeError:  # the reader has stopped reading, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return code
