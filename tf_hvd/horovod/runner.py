"""`horovod.run` and `horovod.runner`: Horovod's signature, implemented by `tf_hvd.run`."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tf_hvd.horovod.horovodrun_flags import FLAGS
from tf_hvd.launch.job.run_function import run as _run

__all__ = ["run"]


class _HorovodArgs:
    """The argument of `horovod.runner.launch._run`, with an attribute for each horovodrun flag.

    All attributes are None by default, except `num_proc`, which is 1.
    """

    def __init__(self) -> None:
        for flag in FLAGS:
            setattr(self, flag.attribute, None)
        self.num_proc: Any = 1
        self.command: Any = None
        self.run_func: Any = None
        self.executable: Any = None


def run(
    func: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Any = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: float | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | bool | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: str | Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Any]:
    """Call a function on several ranks, as `horovod.run` does.

    On the ranks, `import horovod` imports tf_hvd.

    Args:
      func: the function that every rank calls, with `args` and `kwargs`.
      args: tuple or list of positional arguments for the function (default: none).
      kwargs: dict of keyword arguments for the function (default: none).
      num_proc: int, the number of ranks (default: 1).
      min_num_proc: int, the minimum number of ranks. Makes the job elastic: it restarts after a
        failure.
      max_num_proc: int, the maximum number of ranks in an elastic job.
      slots: int, slots per host for hosts that the discovery script prints without a number.
      reset_limit: int, the maximum number of restarts in an elastic job.
      cooldown_range: two numbers, the shortest and the longest time to exclude a failed host, in
        seconds.
      hosts: the hosts as a string, `name:slots,...` (default: this machine).
      hostfile: path of a file that lists the hosts, as an alternative to `hosts`.
      host_discovery_script: path of a script that prints the hosts of an elastic job.
      start_timeout: seconds within which the ranks on this machine must start (default: no limit).
      ssh_port: SSH port of the other hosts.
      ssh_identity_file: path of the private SSH key for the other hosts.
      disable_cache: no effect, because checks of hosts are never cached.
      output_filename: path of a folder for the ranks' output.
      verbose: whether to print the launcher's command line.
      use_gloo: must not be True, because tf_hvd does not use Gloo.
      use_mpi: no effect, because tf_hvd always uses MPI.
      mpi_args: additional arguments for the MPI launcher, as a string.
      network_interface: Horovod's older name for `network_interfaces`.
      network_interfaces: the network interfaces that MPI may use, as a list or as comma-separated
        names.
      executable: path of the Python that runs the ranks (default: the current Python).
      np: Horovod's older name for `num_proc`.
      min_np: Horovod's older name for `min_num_proc`.
      max_np: Horovod's older name for `max_num_proc`.

    Returns:
      A list of the function's results in rank order. For an elastic job, the results are from the
      job's last start.

    Raises:
      RankError: (a RuntimeError) the function raised an error on a rank, or a rank returned no
        result.
      ValueError: an argument requests an unsupported feature, or both `hosts` and `hostfile` are
        given.
    """
    given = dict(locals())
    _refuse(given)
    if np is not None:
        warnings.warn("np is Horovod's older name of num_proc", DeprecationWarning, stacklevel=2)
    return _run(
        func,
        args,
        kwargs,
        num_proc if np is None else np,
        hosts=hosts,
        hostfile=hostfile,
        executable=executable,
        options=_options(given),
    )


def _refuse(given: Mapping[str, Any]) -> None:
    if given["use_gloo"]:
        raise ValueError("use_gloo=True: tf_hvd does not use Gloo; omit it to use MPI.")
    if given["hosts"] is not None and given["hostfile"] is not None:
        raise ValueError("hosts and hostfile were both given; pass only one of them.")


def _options(given: Mapping[str, Any]) -> list[str]:
    names = (
        *("start_timeout", "ssh_port", "ssh_identity_file", "output_filename", "mpi_args"),
        *("reset_limit", "host_discovery_script"),
    )
    values = {name: given[name] for name in names}
    values["min-np"] = given["min_num_proc"] or given["min_np"]
    values["max-np"] = given["max_num_proc"] or given["max_np"]
    values["slots-per-host"] = given["slots"]
    nics = given["network_interfaces"] or given["network_interface"]
    values["network_interfaces"] = nics if isinstance(nics, str | None) else ",".join(nics)
    options = [
        f"--{name.replace('_', '-')}={value}" for name, value in values.items() if value is not None
    ]
    if given["cooldown_range"] is not None:
        options += ["--blacklist-cooldown-range", *map(str, given["cooldown_range"])]
    return ["--as-horovod", *["--verbose"] * bool(given["verbose"]), *options]
