"""horovod.runner.launch: starts jobs from Python, and as `python -m horovod.runner.launch`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import tf_hvd_command
from tf_hvd.horovod import horovodrun, runner
from tf_hvd.horovod.horovodrun_flags import FLAGS

__all__ = ["run_commandline"]

# What `horovod.run` is given.
_OF_FUNCTIONS = (
    *("num_proc", "min_num_proc", "max_num_proc", "slots", "reset_limit", "cooldown_range"),
    *("hosts", "hostfile", "host_discovery_script", "start_timeout", "ssh_port"),
    *("ssh_identity_file", "output_filename", "verbose", "use_gloo", "use_mpi", "mpi_args"),
    "executable",
)


def _run(args: Any) -> list[Any] | None:
    """Starts the job that `horovod.runner._HorovodArgs` describe, and waits for its end.

    Args:
      args: its `run_func` is called on each rank; without one its `command`, a list of words, is
        started. The other attributes are those of horovodrun's flags.

    Returns:
      What the function returned on each rank; None for a command.

    Raises:
      RuntimeError: the job ended with another exit code than 0.
      ValueError: an attribute asks for what is not there; for a command, standard error says so.
    """
    if args.run_func is not None:
        named = {name: getattr(args, name, None) for name in _OF_FUNCTIONS}
        given: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        return runner.run(args.run_func, network_interfaces=_nics(args), **given)
    words = [*_flags(args), *map(str, args.command)]
    with subprocess.Popen(tf_hvd_command.command("--horovodrun", *words)) as job:
        try:
            code = job.wait()
        except KeyboardInterrupt:
            job.wait()  # the terminal has told it as well
            raise
    if code:
        raise RuntimeError(
            f"the job of {' '.join(map(str, args.command))} ended with exit code {code}; its last "
            "lines on standard error say why."
        )
    return None


def _flags(args: Any) -> Iterator[str]:
    """The words of horovodrun's command line before the command."""
    for flag in FLAGS:
        is_nics = flag.attribute == "nics"
        value = _nics(args) if is_nics else getattr(args, flag.attribute, None)
        if value is None or value is False or (not flag.takes and not value):
            continue
        name = flag.names[-1]
        if not flag.takes:
            yield name
        elif isinstance(value, list | tuple):
            yield from [name, *map(str, value)]
        else:
            yield f"{name}={value}"  # which may begin with a dash


def _nics(args: Any) -> str | None:
    """The network interfaces: Horovod has a set of names, a list, or one text."""
    names: Any = args.nics
    return names if names is None or isinstance(names, str) else ",".join(sorted(names))


def run_commandline() -> None:
    """Runs `horovodrun` with this process's arguments, and ends the process if the job failed."""
    code = horovodrun.main()
    if code:
        sys.exit(code)


if __name__ == "__main__":  # which has loaded TensorFlow
    words = tf_hvd_command.command("--horovodrun", *sys.argv[1:])
    os.execv(words[0], words)
