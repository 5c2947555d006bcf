"""Horovod's environment variables: which are honoured, which are refused, which are ignored.

`init` warns of variables that ask for something that tf_hvd does not have, and of names that
Horovod does not have either. The values come from tf_hvd.core.config, which reads the environment.
"""

import dataclasses
from collections.abc import Callable, Mapping


def _is_on(value: str) -> bool:
    """As Horovod reads a switch: a number above 0."""
    return value.strip().isdigit() and int(value) > 0


def _is_set(value: str) -> bool:
    return value.strip() != ""


def _is_not_mpi(value: str) -> bool:
    return _is_set(value) and value.strip().upper() != "MPI"


@dataclasses.dataclass(frozen=True)
class Variable:
    """One of Horovod's variables."""

    meaning: str  # here, for docs/config.md and for the warning
    asks: Callable[[str], bool] = lambda value: False  # for something that tf_hvd does not have


_HONOURED = Variable("Honoured, see above.")
_GPU = Variable("Honoured when a job starts, see above.")
_ONLY_MPI = Variable("Only MPI is available; any other value gets a warning.", asks=_is_not_mpi)
_NOT_HONOURED = "Not honoured, with a warning: "

VARIABLES: dict[str, Variable] = {
    "HOROVOD_FUSION_THRESHOLD": Variable("Honoured, see above; the default is half of Horovod's."),
    "HOROVOD_STALL_CHECK_DISABLE": _HONOURED,
    "HOROVOD_STALL_CHECK_TIME_SECONDS": _HONOURED,
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": Variable(
        "Honoured, see above; it is on by default, unlike Horovod's."
    ),
    "HOROVOD_LOG_LEVEL": Variable("Honoured for what the native library prints, see above."),
    "HOROVOD_TIMELINE": _HONOURED,
    "HOROVOD_TIMELINE_MARK_CYCLES": _HONOURED,
    "HOROVOD_GPU_OPERATIONS": _GPU,
    "HOROVOD_GPU_ALLREDUCE": _GPU,
    "HOROVOD_GPU_ALLGATHER": _GPU,
    "HOROVOD_GPU_BROADCAST": _GPU,
    "HOROVOD_GPU_ALLTOALL": _GPU,
    "HOROVOD_GPU_REDUCESCATTER": _GPU,
    "HOROVOD_CPU_OPERATIONS": _ONLY_MPI,
    "HOROVOD_CONTROLLER": _ONLY_MPI,
    "HOROVOD_MPI_THREADS_DISABLE": Variable(
        f"{_NOT_HONOURED}a thread of tf_hvd calls MPI.", asks=_is_on
    ),
    "HOROVOD_THREAD_AFFINITY": Variable(
        f"{_NOT_HONOURED}`tf_hvd run` binds ranks to cores.", asks=_is_set
    ),
    "HOROVOD_AUTOTUNE": Variable(
        f"{_NOT_HONOURED}nothing is tuned. In simulations no other buckets were better for every "
        "model: what gained up to 2 points for one on 512 GPUs cost others as much "
        "(docs/scaling.md).",
        asks=_is_on,
    ),
    "HOROVOD_SIZE": Variable(
        "`init` fails if it is more than 1 and this process is alone: Horovod's own launcher "
        "started it."
    ),
}
"""The variables of Horovod 0.28.1 that have an effect, or a warning."""

_IGNORED = """
ADASUM_MPI_CHUNK_SIZE ALLOW_MIXED_GPU_IMPL AUTOTUNE_BAYES_OPT_MAX_SAMPLES
AUTOTUNE_GAUSSIAN_PROCESS_NOISE AUTOTUNE_LOG AUTOTUNE_STEPS_PER_SAMPLE AUTOTUNE_WARMUP_SAMPLES
BATCH_D2D_MEMCOPIES BUILD_ARCH_FLAGS BUILD_CUDA_CC_LIST CACHE_CAPACITY CCL_CACHE CMAKE CROSS_RANK
CROSS_SIZE CUDA_HOME CYCLE_TIME DEBUG DISABLE_GROUP_FUSION DISABLE_NVTX_RANGES
DYNAMIC_PROCESS_SETS ELASTIC ELASTIC_TIMEOUT ENABLE_ASYNC_COMPLETION ENABLE_XLA_OPS GLOO_IFACE
GLOO_RENDEZVOUS_ADDR GLOO_RENDEZVOUS_PORT GLOO_TIMEOUT_SECONDS GPU HIERARCHICAL_ALLGATHER
HIERARCHICAL_ALLREDUCE HOSTNAME LOCAL_RANK LOCAL_SIZE LOCAL_VERSION LOG_HIDE_TIME NCCL_HOME
NCCL_INCLUDE NCCL_LIB NCCL_LINK NUM_NCCL_STREAMS NVTX_INCLUDE RANK ROCM_HOME SKIP_COMPILE
SPARK_PYTHONPATH SPARK_START_TIMEOUT SPARK_USE_LOCAL_RANK_GPU_INDEX SPARK_WORK_DIR START_TIMEOUT
TORUS_ALLREDUCE WITHOUT_GLOO WITHOUT_MPI WITHOUT_MXNET WITHOUT_NVTX WITHOUT_PYTORCH
WITHOUT_TENSORFLOW WITH_GLOO WITH_MPI WITH_MXNET WITH_NVTX WITH_PYTORCH WITH_TENSORFLOW
"""
IGNORED = frozenset(f"HOROVOD_{name}" for name in _IGNORED.split())
"""The others that it reads, when it runs or when it is built: images leave some of them behind."""


def warnings(values: Mapping[str, str]) -> list[str]:
    """What a user should know about Horovod's variables that are set."""
    texts = [
        f"{name}={value} is not honoured: {VARIABLES[name].meaning.removeprefix(_NOT_HONOURED)}"
        for name, value in sorted(values.items())
        if name in VARIABLES and VARIABLES[name].asks(value)
    ]
    unknown = sorted(values.keys() - VARIABLES.keys() - IGNORED)
    if unknown:
        texts.append(
            f"{', '.join(unknown)}: neither Horovod nor tf_hvd has such a variable; "
            "docs/config.md lists those they have."
        )
    return texts
