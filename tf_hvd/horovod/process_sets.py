"""horovod.common.process_sets: a helper that Horovod's gradient functions use."""

from tf_hvd.core import process_sets

__all__ = ["_temp_process_set_object"]


def _temp_process_set_object(process_set_id: int) -> process_sets.ProcessSet:
    """Return the registered process set with this number. Ops store the number as an attribute.

    Raises:
      ValueError: no process set with this number exists.
    """
    if process_set_id == process_sets.WORLD:
        return process_sets.global_process_set
    known = process_sets.with_number(process_set_id)
    if known is None:
        raise ValueError(
            f"process set {process_set_id} does not exist; pass a registered set's id."
        )
    return known
