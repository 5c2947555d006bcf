"""`horovod.run` and `horovod.runner`: Horovod's signature, served by `tf_hvd.run`."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tf_hvd.horovod.horovodrun_flags import FLAGS
from tf_hvd.launch.job.run_function import run as _run

__all__ = ["run"]


class _HorovodArgs:
    """What `horovod.runner.launch._run` takes: an attribute for each of horovodrun's flags.

    All are None until they are set, but for `num_proc`, which is 1.
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
    """Calls a function on several ranks, as `horovod.run` does.

    The ranks' `import horovod` gets tf_hvd. `disable_cache` and `use_mpi` change nothing.

    Args:
      func: what every rank calls, with `args` and `kwargs`.
      args: its arguments.
      kwargs: its keyword arguments.
      num_proc: the number of ranks.
      min_num_proc: makes the job elastic: it is started again with no less than so many ranks.
      max_num_proc: the most ranks of an elastic job.
      slots: of a host that the discovery script prints without a number.
      reset_limit: how often an elastic job is started again.
      cooldown_range: two numbers of seconds: how long a host that failed is left out.
      hosts: `name:slots,...`.
      hostfile: a file that names the hosts, instead.
      host_discovery_script: prints the hosts of an elastic job.
      start_timeout: seconds in which the ranks of this machine must have started.
      ssh_port: ssh port of the other hosts.
      ssh_identity_file: private ssh key for the other hosts.
      disable_cache: without effect: no check of the hosts is remembered.
      output_filename: a folder for the output of each rank.
      verbose: prints the launcher's command line.
      use_gloo: refused: there is no Gloo.
      use_mpi: without effect: MPI serves every job.
      mpi_args: more arguments for the launcher.
      network_interface: `network_interfaces`, in Horovod's older form.
      network_interfaces: restrict MPI to these interfaces: a list, or names and commas.
      executable: the Python of the ranks.
      np: `num_proc`, in Horovod's older form.
      min_np: `min_num_proc`, in Horovod's older form.
      max_np: `max_num_proc`, likewise.

    Returns:
      What the function returned on each rank, in the order of the ranks; of an elastic job, on
      those of its last start.

    Raises:
      RankError: a RuntimeError; the function raised on a rank, or a rank gave no result.
      ValueError: what is asked for is not there, or hosts are given twice.
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
        raise ValueError("use_gloo=True: there is no Gloo; leave it out, MPI serves the job.")
    if given["hosts"] is not None and given["hostfile"] is not None:
        raise ValueError("hosts and hostfile were both given; give one of them.")


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
