"""horovod.common.process_sets: what the code of a gradient makes of an op's attribute."""

from tf_hvd.core import process_sets

__all__ = ["_temp_process_set_object"]


def _temp_process_set_object(process_set_id: int) -> process_sets.ProcessSet:
    """The registered set that has a number, which ops carry.

    Raises:
      ValueError: there is none.
    """
    if process_set_id == process_sets.WORLD:
        return process_sets.global_process_set
    known = process_sets.with_number(process_set_id)
    if known is None:
        raise ValueError(f"there is no process set {process_set_id}.")
    return known
