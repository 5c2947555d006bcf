"""Horovod's environment variables: which ones tf_hvd honours, warns about, or ignores.

`init` warns about variables that request an unsupported feature. It also warns about HOROVOD_
variables that do not exist in Horovod. tf_hvd.core.config reads the values from the environment.
"""

import dataclasses
from collections.abc import Callable, Mapping


def _is_on(value: str) -> bool:
    """Return whether Horovod reads a value as true, which means a number above 0."""
    return value.strip().isdigit() and int(value) > 0


def _is_set(value: str) -> bool:
    return value.strip() != ""


def _is_not_mpi(value: str) -> bool:
    return _is_set(value) and value.strip().upper() != "MPI"


@dataclasses.dataclass(frozen=True)
class Variable:
    """The properties of one of Horovod's variables."""

    meaning: str  # the meaning in tf_hvd, for docs/config.md and the warning
    asks: Callable[[str], bool] = lambda value: False  # whether it requests an unsupported feature


_HONOURED = Variable("Honoured, see above.")
_GPU = Variable("Honoured when a job starts, see above.")
_ONLY_MPI = Variable("Only MPI is available; any other value gets a warning.", asks=_is_not_mpi)
_NOT_HONOURED = "Not honoured, with a warning: "

VARIABLES: dict[str, Variable] = {
    "HOROVOD_FUSION_THRESHOLD": Variable("Honoured, see above; the default is half of Horovod's."),
    "HOROVOD_STALL_CHECK_DISABLE": _HONOURED,
    "HOROVOD_STALL_CHECK_TIME_SECONDS": _HONOURED,
    "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": Variable(
        "Honoured, see above. On by default, unlike in Horovod."
    ),
    "HOROVOD_LOG_LEVEL": Variable("Honoured for the native library's log, see above."),
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
        f"{_NOT_HONOURED}tf_hvd calls MPI from a background thread.", asks=_is_on
    ),
    "HOROVOD_THREAD_AFFINITY": Variable(
        f"{_NOT_HONOURED}`tf_hvd run` binds ranks to cores.", asks=_is_set
    ),
    "HOROVOD_AUTOTUNE": Variable(
        f"{_NOT_HONOURED}tf_hvd has no autotuning. In simulations, no other choice of buckets was "
        "better for all models. Choices that gained up to 2 percentage points of efficiency for "
        "one model on 512 GPUs cost other models as much.",
        asks=_is_on,
    ),
    "HOROVOD_SIZE": Variable(
        "`init` fails if the value is more than 1 and the job has only one process. In this case, "
        "Horovod's own launcher has started the process."
    ),
}
"""The variables of Horovod 0.28.1 that have an effect or cause a warning."""

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
"""Horovod's other variables, for run time or build time; some container images set them."""


def warnings(values: Mapping[str, str]) -> list[str]:
    """Return the warnings about the Horovod variables that are set, given their values by name."""
    texts = [
        f"{name}={value} is not honoured: {VARIABLES[name].meaning.removeprefix(_NOT_HONOURED)}"
        for name, value in sorted(values.items())
        if name in VARIABLES and VARIABLES[name].asks(value)
    ]
    unknown = sorted(values.keys() - VARIABLES.keys() - IGNORED)
    if unknown:
        texts.append(
            f"{', '.join(unknown)}: neither Horovod nor tf_hvd has such a variable; "
            "check the spelling, or unset the variable."
        )
    return texts
