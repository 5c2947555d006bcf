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
from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.job import interpreter, run, signals
from tf_hvd.launch.job.environment import horovod_path
from tf_hvd.launch.job.session import Home

_NOT_AS_ASKED = 2
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, and takes no abbreviations."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **kwargs})

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's, but a command's unknown options are its own error, with the likeliest."""
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            near = difflib.get_close_matches(unknown[0], self._option_string_actions, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            self.error(f"unknown argument {unknown[0]}{hint}")
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        """Ends the process with exit code 2 and the message, without the usage."""
        self.exit(_NOT_AS_ASKED, f"{self.prog}: {message}\n")


class _Print(argparse.Action):
    """Prints the text that the function `const` returns, and ends the process with exit code 0."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        print(self.const())
        parser.exit()


def _version() -> str:
    """Which wheel this is. Works also beside a TensorFlow that it was not built for."""
    info = importlib.import_module("tf_hvd._build_info")
    return f"tf_hvd {info.VERSION}, built for TensorFlow {wheels.named(list(info.BUILDS))}"


def _add_files(runner: argparse.ArgumentParser) -> None:
    runner.add_argument(
        "--output-filename",
        metavar="FOLDER",
        help="also write the output of rank N to FOLDER/rank.N/stdout and .../stderr",
    )
    runner.add_argument(
        "--prefix-output-with-timestamp",
        action="store_true",
        help="put the time before each line that a rank prints",
    )
    runner.add_argument(
        "--tag-output",
        action="store_true",
        help="put the rank and the stream before each line, as `[1,0]<stdout>: `",
    )
    runner.add_argument(
        "--timeline",
        metavar="FILE",
        help="write what each rank's collectives do, and when, to FILE and beside it "
        "(JSON, which ui.perfetto.dev opens)",
    )
    runner.add_argument(
        "--timeline-limit",
        type=whole("a number of megabytes, as 500", 1),
        metavar="MB",
        help="how long a rank's may become: what comes last is kept",
    )
    runner.add_argument(
        "--metrics",
        metavar="FILE",
        help="write what each rank's collectives have taken to FILE and beside it every 5 s, as "
        "OpenMetrics text (FILE.prom: for the node exporter)",
    )


def _add_environment(runner: argparse.ArgumentParser) -> None:
    runner.add_argument(
        "-x",
        dest="variables",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="set a variable for all ranks, or pass on one that is not passed on by default",
    )
    runner.add_argument(
        "--env-file", metavar="FILE", help="a file with a line `NAME=VALUE` for each such variable"
    )


def _add_network(runner: argparse.ArgumentParser) -> None:
    runner.add_argument(
        "-p", "--ssh-port", type=int, metavar="PORT", help="ssh port of the other hosts"
    )
    runner.add_argument(
        "-i", "--ssh-identity-file", metavar="FILE", help="private ssh key for the other hosts"
    )
    runner.add_argument(
        "--network-interfaces",
        default="",
        metavar="NAME,...",
        help="restrict MPI to these interfaces (MPICH uses only the first)",
    )
    runner.add_argument(
        "--no-host-check",
        action="store_true",
        help="skip the check of the other hosts before the job starts",
    )


def make_parser() -> argparse.ArgumentParser:
    """The parser of all commands; each sets `start`, a function of the parsed options."""
    parser = Parser(prog="tf_hvd", description="Distributed training for TensorFlow.")
    parser.add_argument(
        "--version", action=_Print, const=_version, nargs=0, help="print the version"
    )
    parser.add_argument(
        "--horovod-path",
        action=_Print,
        const=horovod_path,
        nargs=0,
        help="print the folder that lets `import horovod` give tf_hvd: for PYTHONPATH, under "
        "launchers other than tf_hvd run",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    runner = commands.add_parser(
        "run",
        help="start a program on several ranks under MPI",
        description="Starts a program on several ranks with the MPI launcher that is installed.",
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
    """Gives a parser what `tf_hvd run` takes, and its start."""
    runner.add_argument(
        *("-np", "--num-proc"),
        dest="np",
        type=rank_count,
        metavar="N",
        help="the number of ranks (may be left out where hosts are given: all their slots)",
    )
    where = runner.add_mutually_exclusive_group()
    where.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS,...",
        help="the hosts, and how many ranks each may hold",
    )
    where.add_argument(
        "--hostfile", metavar="FILE", help="a file with a line `HOST slots=N` for each host"
    )
    runner.add_argument(
        "--mpi",
        choices=("openmpi", "mpich", "auto"),
        default="auto",
        help="which MPI to use (auto: the first found)",
    )
    runner.add_argument(
        "--mpi-args",
        default="",
        metavar="ARGS",
        help='more arguments for the launcher, as --mpi-args="--tag-output"',
    )
    runner.add_argument(
        "--verbose", action="store_true", help="print the launcher's command line first"
    )
    runner.add_argument(
        "--as-horovod",
        action="store_true",
        help="run a Horovod script: `import horovod` imports tf_hvd",
    )
    _add_files(runner)
    _add_environment(runner)
    _add_network(runner)
    runner.add_argument(
        "--require-init",
        action="store_true",
        help="exit with a nonzero code if no rank ever called init()",
    )
    _add_times(runner)
    _add_elastic(runner)
    runner.add_argument("--end-with-parent", type=pathlib.Path, help=argparse.SUPPRESS)
    runner.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    runner.set_defaults(start=_start_run, parser=runner)


def _add_times(runner: argparse.ArgumentParser) -> None:
    runner.add_argument(
        "--start-timeout",
        type=seconds,
        metavar="SECONDS",
        help="end the job if its ranks on this machine have not started within SECONDS",
    )
    runner.add_argument(
        "--grace",
        type=seconds,
        default=10.0,
        metavar="SECONDS",
        help="after Ctrl-C or SIGTERM: how long ranks may take to end (default: %(default)g)",
    )


def _add_elastic(runner: argparse.ArgumentParser) -> None:
    group = runner.add_argument_group("elastic jobs", "docs/elastic.md says what they are")
    group.add_argument(
        *("--min-np", "--min-num-proc"),
        dest="min_np",
        type=rank_count,
        metavar="N",
        help="start again when a rank has ended, if there are hosts for N ranks",
    )
    group.add_argument(
        *("--max-np", "--max-num-proc"),
        dest="max_np",
        type=rank_count,
        metavar="N",
        help="the most ranks, however many hosts come (default: as many as there are slots)",
    )
    group.add_argument(
        "--host-discovery-script",
        metavar="FILE",
        help="a program that prints the hosts that are there now, a line `HOST:SLOTS` for each",
    )
    group.add_argument(
        "--slots-per-host",
        type=rank_count,
        metavar="N",
        help="of a host that the script prints without a number",
    )
    group.add_argument(
        "--reset-limit",
        type=whole("a number of restarts; 0 for none"),
        metavar="N",
        help="end the job after N starts beside the first",
    )
    group.add_argument(
        "--elastic-timeout",
        type=seconds,
        default=600.0,
        metavar="SECONDS",
        help="how long to wait for enough hosts (default: %(default)g)",
    )
    group.add_argument(
        "--blacklist-cooldown-range",
        dest="cooldown",
        type=float,
        nargs=2,
        metavar=("MIN", "MAX"),
        help="leave a host whose rank has failed out for so many seconds, more each time",
    )


def _start_run(options: argparse.Namespace) -> int:
    if options.command[:1] == ["--"]:
        del options.command[0]
    if not options.command:
        raise UsageError(
            f"no program to run; for example: {options.parser.prog} -np {options.np or 2} "
            "python train.py"
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
    except KeyboardInterrupt:  # before the job has started; supervise() obeys it without
        return 128 + signal.SIGINT
    if 0 < code < 128:
        text = interpreter.missing_text(options.command[0], os.environ)
        if text:
            print(text, file=sys.stderr, flush=True)
    return code


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one `tf_hvd` command.

    Args:
        arguments: the command line without the program's name; by default this process's own.

    Returns:
        The exit code: the command's own, or 2, with one line on standard error, for what cannot be
        done as asked; without a command that is the list of them.
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
        # Of a file that a command has opened it has the name, or is no OSError any more.
        if error.filename is not None or error.errno not in _NO_ROOM:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is still to be written
        print(f"{parser.prog}: standard output: {error.strerror}", file=sys.stderr)
        return _NOT_AS_ASKED


def _open_standard_files() -> None:
    """A closed standard file would be taken by the next that is opened, here or in a rank."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            # It gets the lowest number that is free, which is this one.
            os.set_inheritable(
                os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY), True
            )
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def start(options: argparse.Namespace) -> int:
    """Does what the options say; returns the exit code."""
    _open_standard_files()
    try:
        code: int = options.start(options)
        sys.stdout.flush()
    except UsageError as error:
        options.parser.error(str(error))
    except BrokenPipeError:  # whoever reads has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    return code
