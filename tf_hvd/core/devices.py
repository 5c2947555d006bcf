"""pin_gpu, which chooses the GPU and the processors that a rank uses on its machine."""

import os

import tensorflow as tf

from tf_hvd.core import basics, config, log

_THREADING = tf.config.threading


def pin_gpu() -> None:
    """Pin this rank to one GPU on its machine and to its share of the machine's processors.

    Call `pin_gpu` directly after `init`, before anything uses a GPU. If several GPUs are visible,
    TensorFlow then sees only GPU number `local_rank()` modulo the number of GPUs. If only one GPU
    is visible, for example because of CUDA_VISIBLE_DEVICES or MIG, the rank uses that GPU. Memory
    growth is enabled on the GPU, because NCCL and tf_hvd need GPU memory too.

    If each rank may use all processors of the machine, TensorFlow gets one thread for each
    processor in this rank's share. `pin_gpu` does not change numbers of threads that the program,
    TF_NUM_INTRAOP_THREADS or TF_NUM_INTEROP_THREADS has set. Without a GPU, `pin_gpu` sets only the
    threads.

    Raises:
      NotInitializedError: before `init`.
      RuntimeError: TensorFlow is already using its GPUs.

    Example:
      hvd.init()
      hvd.pin_gpu()
    """
    try:
        pin()
    except RuntimeError as error:
        if not has_gpu():  # only the threads failed; an error would occur only on some machines
            log.warning("pin_gpu() was called too late to set TensorFlow's threads: %s", error)
            return
        raise RuntimeError(
            f"pin_gpu() was called too late ({error}). Call it directly after hvd.init(), before "
            "the first tensor or variable is created."
        ) from error


def has_gpu() -> bool:
    return bool(tf.config.list_physical_devices("GPU"))


def pin() -> None:
    """Do what `pin_gpu` does. Raises TensorFlow's RuntimeError if it is too late."""
    place, ranks = basics.local_rank(), basics.local_size()
    gpus = tf.config.list_physical_devices("GPU")
    if len(gpus) > 1:
        gpus = [gpus[place % len(gpus)]]
        tf.config.set_visible_devices(gpus, "GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    _share_processors(ranks)


def _share_processors(ranks: int) -> None:
    processors = len(os.sched_getaffinity(0))
    if ranks == 1 or processors < (os.cpu_count() or 1):
        return  # this is the only rank, or the launcher has bound it
    share = max(1, processors // ranks)
    decided = config.tensorflows_threads()
    if not _THREADING.get_intra_op_parallelism_threads() and "INTRA" not in decided:
        _THREADING.set_intra_op_parallelism_threads(share)
    if not _THREADING.get_inter_op_parallelism_threads() and "INTER" not in decided:
        _THREADING.set_inter_op_parallelism_threads(share)
