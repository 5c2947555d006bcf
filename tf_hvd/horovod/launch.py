"""horovod.runner.launch: jobs started from Python, or by `python -m horovod.runner.launch`."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import tf_hvd_command
from tf_hvd.horovod import horovodrun, runner
from tf_hvd.horovod.horovodrun_flags import FLAGS

__all__ = ["run_commandline"]

# The attributes that `horovod.run` accepts as arguments.
_OF_FUNCTIONS = (
    *("num_proc", "min_num_proc", "max_num_proc", "slots", "reset_limit", "cooldown_range"),
    *("hosts", "hostfile", "host_discovery_script", "start_timeout", "ssh_port"),
    *("ssh_identity_file", "output_filename", "verbose", "use_gloo", "use_mpi", "mpi_args"),
    "executable",
)


def _run(args: Any) -> list[Any] | None:
    """Start the job that a `horovod.runner._HorovodArgs` describes, and wait until it ends.

    Args:
      args: a `_HorovodArgs`. Each rank calls the function `args.run_func`. If that is None, each
        rank runs `args.command`, a list of words. The other attributes correspond to
        horovodrun's flags.

    Returns:
      A list of the function's results in rank order; None for a command.

    Raises:
      RuntimeError: the job ended with an exit code other than 0.
      ValueError: an attribute requests an unsupported feature. For a command, the reason is
        printed on standard error.
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
            job.wait()  # the terminal has interrupted the job too
            raise
    if code:
        raise RuntimeError(
            f"the job of {' '.join(map(str, args.command))} ended with exit code {code}; see its "
            "last lines on standard error for the reason."
        )
    return None


def _flags(args: Any) -> Iterator[str]:
    """Yield the flags of horovodrun's command line that correspond to the attributes of `args`."""
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
            yield f"{name}={value}"  # the value may begin with a dash


def _nics(args: Any) -> str | None:
    """Return the network interfaces as one text; Horovod uses a set, a list or a text."""
    names: Any = args.nics
    return names if names is None or isinstance(names, str) else ",".join(sorted(names))


def run_commandline() -> None:
    """Run `horovodrun` with this process's arguments, and exit the process if the job failed."""
    code = horovodrun.main()
    if code:
        sys.exit(code)


if __name__ == "__main__":  # replace this process, which has loaded TensorFlow
    words = tf_hvd_command.command("--horovodrun", *sys.argv[1:])
    os.execv(words[0], words)
