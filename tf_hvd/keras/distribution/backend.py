"""The functions of `keras.distribution` that Keras' TensorFlow backend does not have.

Keras' frontend calls them as attributes of its module `distribution_lib`. Each rank is a process
with one device.
"""

import random
import sys
from typing import Any

import tensorflow as tf

from tf_hvd.collectives.objects import Title, allgather_object
from tf_hvd.core import basics, config, devices, log
from tf_hvd.keras.distribution import private
from tf_hvd.keras.fit_config import by_rank

_JOINED = Title("keras.distribution.initialize on all ranks")


class _Joined:
    done = False


def _join() -> None:
    """Joins the job of a launcher, with equal seeds on all ranks; does nothing without a job."""
    if not basics.is_initialized():
        if config.launched_rank() is None and not config.launcher_job():
            return
        basics.init()
    if _Joined.done or basics.size() == 1:
        return
    _Joined.done = True
    try:
        devices.pin()
    except RuntimeError as error:
        if devices.has_gpu():
            log.warning(
                "keras.distribution: this rank's GPU cannot be selected any more (%s). Call "
                "keras.distribution.initialize() at the beginning of the program.",
                error,
            )
    own = private.seed_of_program()
    # A draw would shift the random numbers of a program that has set its seed.
    drawn = random.randint(1, 10**9) if own is None else None
    seeds = allgather_object((own, drawn), name=_JOINED)
    given = [seed for seed, _ in seeds]
    if len(set(given)) > 1:
        raise ValueError(
            "keras.distribution: the ranks have different seeds: "
            f"{by_rank(given, range(len(given)))}. Call keras.utils.set_random_seed with the same "
            "number on all ranks."
        )
    if given[0] is None:
        keras: Any = sys.modules["keras"]
        keras.utils.set_random_seed(seeds[0][1])


def has_joined() -> bool:
    """Whether the program has called a function of `keras.distribution` that joins the job."""
    return _Joined.done


def initialize(
    job_addresses: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> None:
    """Join the job that a launcher such as `tf_hvd run` has started.

    All ranks get the same seed, unless the program has called `keras.utils.set_random_seed`.

    Args:
      job_addresses: ignored; the launcher has connected the processes.
      num_processes: if given, it must be the number of ranks.
      process_id: if given, it must be this process's rank.

    Raises:
      ValueError: on all ranks, if an argument contradicts the job, or the ranks' seeds differ.
    """
    if not basics.is_initialized():
        basics.init()
    asked = (num_processes, process_id)
    everyone = allgather_object(asked, name=_JOINED) if basics.size() > 1 else [asked]
    for rank, (count, number) in enumerate(everyone):
        if count not in (None, basics.size()) or number not in (None, rank):
            raise ValueError(
                f"keras.distribution.initialize(num_processes={count}, process_id={number}) was "
                f"called on rank {rank} of {basics.size()}. Start as many processes as you need "
                "with `tf_hvd run -np N python ...`, and omit both arguments and Keras' variables "
                "KERAS_DISTRIBUTION_*."
            )
    _join()


def num_processes() -> int:
    _join()
    return basics.size() if basics.is_initialized() else 1


def process_id() -> int:
    _join()
    return basics.rank() if basics.is_initialized() else 0


def _own_devices(device_type: str | None) -> list[str]:
    """Returns the devices of one process; by default its GPUs or, without a GPU, its CPUs."""
    wanted = [device_type.upper()] if device_type else ["GPU", "TPU", "CPU"]
    for kind in wanted:
        found = tf.config.list_logical_devices(kind)
        if found:
            return [f"{kind.lower()}:{number}" for number in range(len(found))]
    return []


def list_devices(device_type: str | None = None) -> list[str]:
    """The devices of all ranks, one for each: "cpu:0", "cpu:1", ..."""
    ranks = num_processes()
    own = _own_devices(device_type)
    if ranks == 1 or not own:
        return own
    kind = own[0].partition(":")[0]
    return [f"{kind}:{rank}" for rank in range(ranks)]


def get_device_count(device_type: str | None = None) -> int:
    return len(list_devices(device_type))


def distribute_tensor(tensor: Any, layout: Any) -> Any:
    """The tensor itself: each rank has its rows."""
    return tensor


def distribute_data_input(per_process_batch: Any, layout: Any, batch_dim_name: str) -> Any:
    return per_process_batch


FUNCTIONS = {
    function.__name__: function
    for function in (
        *(initialize, num_processes, process_id, list_devices, get_device_count),
        *(distribute_tensor, distribute_data_input),
    )
}
