"""`horovodrun`: Horovod's command line, implemented by `tf_hvd run --as-horovod`."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import subprocess
import sys
from collections.abc import MutableMapping, Sequence

from tf_hvd.horovod.horovodrun_flags import FLAGS, Flag
from tf_hvd.launch.commands.doctor_findings import version_text
from tf_hvd.launch.commands.main import Parser, add_run_options, start
from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.job.launchers import FAMILY_NAMES, find_launcher

PROGRAM = "horovodrun"
_BUILT = """\
{version}:

Available Frameworks:
    [{tensorflow}] TensorFlow{why_not_tensorflow}
    [ ] PyTorch
    [ ] MXNet

Available Controllers:
    [{mpi}] MPI{which_mpi}
    [ ] Gloo

Available Tensor Operations:
    [{nccl}] NCCL{which_nccl}
    [ ] DDL
    [ ] CCL
    [{mpi}] MPI
    [ ] Gloo
"""


def make_parser() -> argparse.ArgumentParser:
    """Return a parser for all of Horovod's flags, which may be abbreviated as in Horovod."""
    parser = Parser(
        prog=PROGRAM,
        allow_abbrev=True,
        description="Start a Horovod script on several ranks, with the options of Horovod's "
        "horovodrun. tf_hvd run --as-horovod starts the job.",
        epilog=f"example: {PROGRAM} -np 4 python train.py",
    )
    parser.add_argument("-v", "--version", action="store_true", help="print the version")
    parser.add_argument(
        "-cb",
        "--check-build",
        action="store_true",
        help="print which frameworks and features this installation supports",
    )
    for flag in FLAGS:
        _add(parser, flag)
    parser.add_argument("command", nargs=argparse.REMAINDER, help="the program and its arguments")
    return parser


def to_run(options: argparse.Namespace, environ: MutableMapping[str, str]) -> list[str]:
    """Convert parsed flags to the arguments of `tf_hvd run`.

    Args:
        options: the options returned by the parser from `make_parser`.
        environ: the environment. Variables that flags set are added to it.

    Returns:
        The arguments. Flags without an effect are reported on standard error.

    Raises:
        UsageError: a flag requests an unsupported feature.
    """
    arguments = ["--as-horovod", "--tag-output"]
    launcher_args = []
    for flag in FLAGS:
        given = getattr(options, _destination(flag))
        if given is None or given is False:
            continue
        name = flag.names[-1]
        if flag.refused:
            raise UsageError(f"{name}: {flag.refused}")
        if flag.told:
            print(f"{PROGRAM}: {name} has no effect: {flag.told}", file=sys.stderr)
        elif flag.variable:
            environ[flag.variable] = flag.value or _value(flag, given)
        elif flag.option == "--mpi-args":
            launcher_args.append(given)
        elif "nargs" in flag.keywords:
            arguments += [flag.option, *given]
        elif flag.takes:
            arguments += [flag.option, ",".join(given) if isinstance(given, list) else given]
        else:
            arguments.append(flag.option)
    if launcher_args:
        arguments.append(f"--mpi-args={' '.join(launcher_args)}")
    return [*arguments, *options.command]


def version() -> str:
    """Return the text that `--version` prints."""
    # Imported here because only this function needs it.
    from tf_hvd.horovod.names import HOROVOD_VERSION

    ours = importlib.metadata.version("tf_hvd")
    return f"Horovod v{HOROVOD_VERSION}, served by tf_hvd v{ours}"


def check_build() -> str:
    """Return the text that `--check-build` prints: Horovod's table of features."""
    loaded = subprocess.run(
        [sys.executable, "-c", "import tf_hvd; print('NCCL', tf_hvd.nccl_built())"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    why_not = ""
    nccl = int(loaded.stdout.rpartition("NCCL ")[2] or 0)
    if loaded.returncode:
        why_not = f" ({loaded.stderr.strip().splitlines()[-1]})"
    try:
        launcher = find_launcher("auto", os.environ)
        mpi, which = "X", f" ({FAMILY_NAMES[launcher.family]}, {launcher.program})"
    except UsageError as error:
        mpi, which = " ", f" ({error})"
    return _BUILT.format(
        version=version(),
        tensorflow=" " if loaded.returncode else "X",
        why_not_tensorflow=why_not,
        mpi=mpi,
        which_mpi=which,
        nccl="X" if nccl else " ",
        which_nccl=f" ({version_text(nccl, 10000, 100, 1)})" if nccl else "",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `horovodrun`.

    Args:
        arguments: the command line without the program's name (default: `sys.argv[1:]`).

    Returns:
        The job's exit code, or 2 after a one-line error on standard error if the request is
        impossible.
    """
    parser = make_parser()
    options = parser.parse_args(arguments)
    if options.version or options.check_build:
        print(version() if options.version else check_build())
        return 0
    runner = Parser(prog=PROGRAM)
    add_run_options(runner)
    try:
        words = to_run(options, os.environ)
    except UsageError as error:
        parser.error(str(error))
    return start(runner.parse_args(words))


def _destination(flag: Flag) -> str:
    return flag.names[-1].lstrip("-").replace("-", "_")


def _add(parser: argparse.ArgumentParser, flag: Flag) -> None:
    if not flag.takes:
        parser.add_argument(
            *flag.names, dest=_destination(flag), action="store_true", help=flag.meaning
        )
        return
    metavar = tuple(flag.takes.split()) if "nargs" in flag.keywords else flag.takes
    parser.add_argument(
        *flag.names,
        dest=_destination(flag),
        metavar=metavar,
        type=str.upper if flag.choices else str,
        choices=flag.choices or None,
        help=flag.meaning.replace("%", "%%"),
        **flag.keywords,
    )


def _value(flag: Flag, given: str) -> str:
    if flag.choices:
        return given.lower()
    if flag.factor == 1:
        return given
    try:
        return str(int(float(given) * flag.factor))
    except (OverflowError, ValueError) as error:
        raise UsageError(f"{flag.names[-1]}: {given!r} is not a number") from error
