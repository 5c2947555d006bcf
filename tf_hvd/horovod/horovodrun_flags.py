"""The flags of `horovodrun` in Horovod 0.28.1 and their meaning in tf_hvd. Contains only data.

docs/launcher.md contains this table; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Flag:
    """One flag: its names, its argument, and its meaning in one of four fields.

    - `option`: the equivalent option of `tf_hvd run`.
    - `variable`: the environment variable that the flag sets to `value`, or to the flag's argument
      times `factor`.
    - `told`: why the flag has no effect; printed when the flag is used.
    - `refused`: why the flag is an error, and the fix.
    """

    names: tuple[str, ...]
    takes: str = ""
    option: str = ""
    variable: str = ""
    told: str = ""
    refused: str = ""
    factor: int = 1
    value: str = ""
    choices: tuple[str, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    @property
    def attribute(self) -> str:
        """The flag's attribute in `horovod.runner._HorovodArgs`."""
        name = self.names[-1].lstrip("-").replace("-", "_")
        return _ATTRIBUTES.get(name, name)

    @property
    def meaning(self) -> str:
        """The flag's meaning, for the help and the docs."""
        if self.option:
            return f"same as `tf_hvd run {self.option}`"
        if self.variable:
            unit = f", times {self.factor}" if self.factor != 1 else ""
            return f"sets `{self.variable}`{'=' + self.value if self.value else unit}"
        return f"refused: {self.refused}" if self.refused else f"no effect: {self.told}"


# Attributes with names that differ from the flags' names in Horovod's parser.
_ATTRIBUTES = {
    "network_interface": "nics",
    "slots_per_host": "slots",
    "blacklist_cooldown_range": "cooldown_range",
    "tcp": "tcp_flag",
    "gloo": "use_gloo",
    "mpi": "use_mpi",
    "jsrun": "use_jsrun",
}
_NO_CYCLE = "collectives start when they are ready, without a timed cycle"
_NO_CACHE = "tf_hvd agrees on collectives without a cache"
_NO_LAYERS = "ranks on a node always reduce first; see TF_HVD_NODE_DATA"
_NO_TUNING = "tf_hvd has no autotuning"
_ONE_STREAM = "tf_hvd uses one separate NCCL stream per GPU"
_NO_GLOO = "tf_hvd does not use Gloo"
_NO_TIME = "log lines have no timestamps; see --prefix-output-with-timestamp"


def _switch(name: str, told: str) -> list[Flag]:
    return [Flag((f"--{name}",), told=told), Flag((f"--no-{name}",), told=told)]


# In the order and groups of Horovod's help.
FLAGS: tuple[Flag, ...] = (
    Flag(("-np", "--num-proc"), "N", option="-np"),
    Flag(("--disable-cache",), told="tf_hvd caches no checks of hosts"),
    Flag(("--start-timeout",), "SECONDS", option="--start-timeout"),
    Flag(
        ("--network-interfaces", "--network-interface"),
        "NAME,...",
        option="--network-interfaces",
        keywords={"action": "append"},
    ),
    Flag(("--output-filename",), "FOLDER", option="--output-filename"),
    Flag(("--verbose",), option="--verbose"),
    Flag(("--config-file",), "FILE", refused="pass its settings as flags"),
    Flag(("-p", "--ssh-port"), "PORT", option="--ssh-port"),
    Flag(("-i", "--ssh-identity-file"), "FILE", option="--ssh-identity-file"),
    Flag(("--fusion-threshold-mb",), "MB", variable="HOROVOD_FUSION_THRESHOLD", factor=1 << 20),
    Flag(("--cycle-time-ms",), "MS", told=_NO_CYCLE),
    Flag(("--cache-capacity",), "N", told=_NO_CACHE),
    *_switch("hierarchical-allreduce", _NO_LAYERS),
    *_switch("hierarchical-allgather", _NO_LAYERS),
    *_switch("torus-allreduce", _NO_LAYERS),
    *_switch("autotune", _NO_TUNING),
    Flag(("--autotune-log-file",), "FILE", told=_NO_TUNING),
    Flag(("--autotune-warmup-samples",), "N", told=_NO_TUNING),
    Flag(("--autotune-steps-per-sample",), "N", told=_NO_TUNING),
    Flag(("--autotune-bayes-opt-max-samples",), "N", told=_NO_TUNING),
    Flag(("--autotune-gaussian-process-noise",), "X", told=_NO_TUNING),
    Flag(("--min-np", "--min-num-proc"), "N", option="--min-np"),
    Flag(("--max-np", "--max-num-proc"), "N", option="--max-np"),
    Flag(("--slots-per-host",), "N", option="--slots-per-host"),
    Flag(("--elastic-timeout",), "SECONDS", option="--elastic-timeout"),
    Flag(("--reset-limit",), "N", option="--reset-limit"),
    Flag(
        ("--blacklist-cooldown-range",),
        "MIN MAX",
        option="--blacklist-cooldown-range",
        keywords={"nargs": 2},
    ),
    Flag(("--timeline-filename",), "FILE", option="--timeline"),
    Flag(("--timeline-mark-cycles",), variable="HOROVOD_TIMELINE_MARK_CYCLES", value="1"),
    Flag(("--no-timeline-mark-cycles",), variable="HOROVOD_TIMELINE_MARK_CYCLES", value="0"),
    Flag(("--no-stall-check",), variable="HOROVOD_STALL_CHECK_DISABLE", value="1"),
    Flag(("--stall-check",), variable="HOROVOD_STALL_CHECK_DISABLE", value="0"),
    Flag(
        ("--stall-check-warning-time-seconds",),
        "SECONDS",
        variable="HOROVOD_STALL_CHECK_TIME_SECONDS",
    ),
    Flag(
        ("--stall-check-shutdown-time-seconds",),
        "SECONDS",
        variable="HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    ),
    *_switch("mpi-threads-disable", "tf_hvd requests the highest thread level that MPI supports"),
    Flag(("--mpi-args",), "ARGS", option="--mpi-args"),
    Flag(("--tcp",), told="MPI's own settings select the network: OMPI_MCA_*, UCX_*, FI_*"),
    Flag(("--binding-args",), "ARGS", option="--mpi-args"),
    Flag(("--num-nccl-streams",), "N", told=_ONE_STREAM),
    Flag(("--thread-affinity",), "N", told="the launcher binds ranks to cores; see --binding-args"),
    Flag(("--gloo-timeout-seconds",), "SECONDS", told=_NO_GLOO),
    Flag(
        ("--log-level",),
        "LEVEL",
        variable="HOROVOD_LOG_LEVEL",
        choices=("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"),
    ),
    Flag(("--log-with-timestamp",), told=_NO_TIME),
    Flag(("--log-without-timestamp",), told=_NO_TIME),
    *_switch("log-hide-timestamp", _NO_TIME),
    Flag(
        ("-prefix-timestamp", "--prefix-output-with-timestamp"),
        option="--prefix-output-with-timestamp",
    ),
    Flag(("-H", "--hosts"), "HOST:SLOTS,...", option="--hosts"),
    Flag(("-hostfile", "--hostfile"), "FILE", option="--hostfile"),
    Flag(("--host-discovery-script",), "FILE", option="--host-discovery-script"),
    Flag(("--gloo",), refused=f"{_NO_GLOO}; omit the flag to use MPI"),
    Flag(("--mpi",), told="tf_hvd always uses MPI"),
    Flag(
        ("--jsrun",),
        refused="start the program with jsrun itself",
    ),
)
