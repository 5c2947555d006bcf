"""Names that exist in Horovod but not in tf_hvd, and their replacements."""

_NO_TORCH = "tf_hvd supports TensorFlow only; use Horovod for other frameworks"
_NO_CLUSTER = "start the ranks with tf_hvd run or the cluster's MPI launcher"
_NO_DATA_SERVICE = "use tf_hvd.shard, or TensorFlow's own tf.data service (tf.data.experimental)"
ABSENT = {
    "data": _NO_DATA_SERVICE,
    "http": f"tf_hvd does not use Gloo, so it has no rendezvous server; {_NO_CLUSTER}",
    "mxnet": _NO_TORCH,
    "ray": _NO_CLUSTER,
    "spark": _NO_CLUSTER,
    "torch": _NO_TORCH,
}

_FALSE = "which returns False; tf_hvd does not use {}"
_HELPER = "a helper for scripts written for Horovod"
# Names of horovod.tensorflow that `import tf_hvd as hvd` lacks.
_HOROVODS = {
    "ccl_built": _FALSE.format("oneCCL"),
    "check_extension": _HELPER,
    "check_num_rank_power_of_2": _HELPER,
    "ddl_built": _FALSE.format("DDL"),
    "gloo_built": _FALSE.format("Gloo"),
    "gloo_enabled": _FALSE.format("Gloo"),
    "gpu_available": _HELPER,
    "handle_average_backwards_compatibility": _HELPER,
    "refs_to_vars": _HELPER,
    "rocm_built": _FALSE.format("ROCm"),
    "split_list": _HELPER,
    "vars_to_refs": _HELPER,
}


def why(name: str) -> str:
    """Return what to use instead of a name that tf_hvd lacks; "" if Horovod lacks it too."""
    if name in _HOROVODS:
        module = "call tf_hvd.install_as_horovod() and use horovod.tensorflow"
        return f": {module}.{name}, {_HOROVODS[name]}"
    return f": {ABSENT[name]}" if name in ABSENT else ""
