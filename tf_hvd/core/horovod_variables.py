"""Horovod's environment variables: what each of them is here.

docs/config.md is made from this table. `init` warns of variables that ask for what
is not there, and of those that Horovod does not have either. The values come from
tf_hvd.core.config, which reads the environment.
"""

import dataclasses
from collections.abc import Callable, Mapping

from tf_hvd.core import log

PREFIX = "HOROVOD_"
"""What the names of Horovod's variables begin with."""


def _is_on(value: str) -> bool:
    """As Horovod reads a switch: a number above 0."""
    return value.strip().isdigit() and int(value) > 0


def _is_set(value: str) -> bool:
    return value.strip() != ""


def _is_not_mpi(value: str) -> bool:
    return _is_set(value) and value.strip().upper() != "MPI"


@dataclasses.dataclass(frozen=True)
class Variable:
    """One of Horovod's variables.

    Attributes:
      meaning: what it is here, for the table.
      asks: whether a value asks for what is not there, and would be missed.
    """

    meaning: str
    asks: Callable[[str], bool] = lambda value: False


_NOT_HONOURED = "Not honoured, with a warning: "
_HONOURED = Variable("Honoured, see above.")
_GPU = Variable("No meaning: NCCL gets a stream of its own on a GPU, and nothing waits for it.")
_RANK = Variable("No meaning: MPI's launcher gives ranks and sizes.")
_ONLY_MPI = "Only MPI is available; any other value gets a warning."
_TUNED = Variable("No meaning: it needs HOROVOD_AUTOTUNE, which is not honoured.")
_BUILD = Variable("No meaning: it is read when Horovod is built.")
_NODES = Variable("Replaced by TF_HVD_NODE_DATA and TF_HVD_CROSS.")
_SPARK = Variable("No meaning: it belongs to Horovod on Spark.")

VARIABLES: dict[str, Variable] = {
    "HOROVOD_FUSION_THRESHOLD": Variable("Honoured, see above; the default is half of Horovod's."),
    "HOROVOD_STALL_CHECK_DISABLE": _HONOURED,
    "HOROVOD_STALL_CHECK_TIME_SECONDS": _HONOURED,
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": Variable(
        "Honoured, see above; it is on by default, unlike Horovod's."
    ),
    "HOROVOD_LOG_LEVEL": Variable("Honoured for what the native library prints, see above."),
    "HOROVOD_LOG_HIDE_TIME": Variable("No meaning: lines carry no time."),
    "HOROVOD_CYCLE_TIME": Variable("No meaning: nothing runs by a clock."),
    "HOROVOD_CACHE_CAPACITY": Variable("No meaning: there is no response cache."),
    "HOROVOD_DISABLE_GROUP_FUSION": Variable(
        "No meaning: no result depends on what is fused with what."
    ),
    "HOROVOD_DYNAMIC_PROCESS_SETS": Variable("Always so: sets can be added at any time."),
    "HOROVOD_HIERARCHICAL_ALLREDUCE": _NODES,
    "HOROVOD_HIERARCHICAL_ALLGATHER": _NODES,
    "HOROVOD_TORUS_ALLREDUCE": _NODES,
    "HOROVOD_CPU_OPERATIONS": Variable(_ONLY_MPI, asks=_is_not_mpi),
    "HOROVOD_CONTROLLER": Variable(_ONLY_MPI, asks=_is_not_mpi),
    "HOROVOD_MPI_THREADS_DISABLE": Variable(
        f"{_NOT_HONOURED}a thread of tf_hvd calls MPI.", asks=_is_on
    ),
    "HOROVOD_THREAD_AFFINITY": Variable(
        f"{_NOT_HONOURED}`tf_hvd run` binds ranks to cores.", asks=_is_set
    ),
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": Variable("No meaning: Adasum sends no chunks."),
    "HOROVOD_ELASTIC": Variable("No meaning: `tf_hvd run --min-np` makes a job elastic."),
    "HOROVOD_ENABLE_XLA_OPS": Variable(
        "No meaning: collectives are compiled by XLA wherever a step is."
    ),
    "HOROVOD_TIMELINE": Variable("Honoured, see above."),
    "HOROVOD_TIMELINE_MARK_CYCLES": Variable("Honoured, see above."),
    "HOROVOD_AUTOTUNE": Variable(
        f"{_NOT_HONOURED}nothing is tuned. In simulations no other buckets were better for every "
        "model: what gained up to 2 points for one on 512 GPUs cost others as much "
        "(docs/scaling.md).",
        asks=_is_on,
    ),
    "HOROVOD_AUTOTUNE_LOG": _TUNED,
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": _TUNED,
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": _TUNED,
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": _TUNED,
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": _TUNED,
    **dict.fromkeys(
        (
            "HOROVOD_GPU_OPERATIONS",
            "HOROVOD_GPU_ALLREDUCE",
            "HOROVOD_GPU_ALLGATHER",
            "HOROVOD_GPU_BROADCAST",
            "HOROVOD_GPU_ALLTOALL",
            "HOROVOD_GPU_REDUCESCATTER",
        ),
        Variable("Honoured when a job starts, see above."),
    ),
    "HOROVOD_BATCH_D2D_MEMCOPIES": _GPU,
    "HOROVOD_NUM_NCCL_STREAMS": _GPU,
    "HOROVOD_ENABLE_ASYNC_COMPLETION": _GPU,
    "HOROVOD_DISABLE_NVTX_RANGES": _GPU,
    "HOROVOD_CCL_CACHE": Variable("No meaning: oneCCL is not used."),
    "HOROVOD_GLOO_IFACE": Variable("No meaning: MPI chooses the network."),
    "HOROVOD_GLOO_TIMEOUT_SECONDS": Variable("Replaced by the stall limits above."),
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": Variable("No meaning: MPI's launcher brings ranks together."),
    "HOROVOD_GLOO_RENDEZVOUS_PORT": Variable("No meaning: MPI's launcher brings ranks together."),
    "HOROVOD_HOSTNAME": _RANK,
    "HOROVOD_RANK": _RANK,
    "HOROVOD_SIZE": Variable(
        "`init` fails if it is more than 1 and this process is alone: Horovod's own launcher "
        "started it."
    ),
    "HOROVOD_LOCAL_RANK": _RANK,
    "HOROVOD_LOCAL_SIZE": _RANK,
    "HOROVOD_CROSS_RANK": _RANK,
    "HOROVOD_CROSS_SIZE": _RANK,
    "HOROVOD_START_TIMEOUT": Variable("Read by Horovod's launcher; here by nobody."),
    "HOROVOD_ELASTIC_TIMEOUT": Variable("No meaning: see `tf_hvd run --elastic-timeout`."),
    "_HOROVOD_SECRET_KEY": Variable("No meaning: it is of Horovod's own launchers."),
    **dict.fromkeys(
        (
            "HOROVOD_SPARK_PYTHONPATH",
            "HOROVOD_SPARK_START_TIMEOUT",
            "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX",
            "HOROVOD_SPARK_WORK_DIR",
        ),
        _SPARK,
    ),
}
"""Every variable that Horovod 0.28.1 reads when it runs, and choices of its build that are
settings here; `_BUILT_BY` has the others."""

# Read when Horovod is built; images leave them in the environment.
_BUILT_BY = (
    "HOROVOD_ALLOW_MIXED_GPU_IMPL",
    "HOROVOD_BUILD_ARCH_FLAGS",
    "HOROVOD_BUILD_CUDA_CC_LIST",
    "HOROVOD_CMAKE",
    "HOROVOD_CUDA_HOME",
    "HOROVOD_DEBUG",
    "HOROVOD_GPU",
    "HOROVOD_LOCAL_VERSION",
    "HOROVOD_NCCL_HOME",
    "HOROVOD_NCCL_INCLUDE",
    "HOROVOD_NCCL_LIB",
    "HOROVOD_NCCL_LINK",
    "HOROVOD_NVTX_INCLUDE",
    "HOROVOD_ROCM_HOME",
    "HOROVOD_SKIP_COMPILE",
    "HOROVOD_WITHOUT_GLOO",
    "HOROVOD_WITHOUT_MPI",
    "HOROVOD_WITHOUT_MXNET",
    "HOROVOD_WITHOUT_NVTX",
    "HOROVOD_WITHOUT_PYTORCH",
    "HOROVOD_WITHOUT_TENSORFLOW",
    "HOROVOD_WITH_GLOO",
    "HOROVOD_WITH_MPI",
    "HOROVOD_WITH_MXNET",
    "HOROVOD_WITH_NVTX",
    "HOROVOD_WITH_PYTORCH",
    "HOROVOD_WITH_TENSORFLOW",
)


def warnings(values: Mapping[str, str]) -> list[str]:
    """What a user should know about the variables that are set.

    Args:
      values: Horovod's variables and what they are set to.
    """
    known = {**VARIABLES, **dict.fromkeys(_BUILT_BY, _BUILD)}
    texts = [
        f"{name}={value} is not honoured: {known[name].meaning.removeprefix(_NOT_HONOURED)}"
        for name, value in sorted(values.items())
        if name in known and known[name].asks(value)
    ]
    unknown = sorted(name for name in values if name not in known)
    if unknown:
        texts.append(
            f"{', '.join(unknown)}: neither Horovod nor tf_hvd has such a variable; "
            "docs/config.md lists those they have."
        )
    return texts


def check(values: Mapping[str, str], rank: int, size: int) -> None:
    """What `init` does with Horovod's variables once it knows the job.

    Rank 0 logs each warning once.

    Args:
      values: Horovod's variables and what they are set to.
      rank: of this process.
      size: of the job.

    Raises:
      ValueError: Horovod's own launcher started several processes, and each is alone.
    """
    started = values.get("HOROVOD_SIZE", "").strip()
    if size == 1 and started.isdigit() and int(started) > 1:
        raise ValueError(
            f"HOROVOD_SIZE={started}: this looks like one of {started} processes of Horovod's own "
            "launcher, which does not start MPI jobs, so that each would train alone; start them "
            f"with tf_hvd run -np {started} or mpirun. (Unset HOROVOD_SIZE to be alone.)"
        )
    if rank != 0:
        return
    for text in warnings(values):
        log.warn_once("%s", text)


def markdown() -> str:
    """The table as Markdown."""
    rows = [f"| `{name}` | {variable.meaning} |" for name, variable in VARIABLES.items()]
    built = ", ".join(f"`{name}`" for name in _BUILT_BY)
    return "\n".join(
        ["| variable | here |", "|---|---|", *rows, "", f"{_BUILD.meaning[:-1]}: {built}.", ""]
    )
