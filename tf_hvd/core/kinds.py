"""Tables of the kinds of collectives and the reduce ops, for generic code.

The tables repeat those in base/types.h, and a test compares them. This module uses only the
standard library.
"""

import enum
from dataclasses import dataclass


class Yield(enum.Enum):
    """The shape of a collective's result on a rank, for each tensor."""

    NOTHING = "there are no tensors"
    WHOLE = "as many elements as the tensor has"
    OWN_ROWS = "its share of as many rows as the tensor has"
    ALL_ROWS = "the rows of all ranks"
    SENT_ROWS = "the rows that each rank has for it"


@dataclass(frozen=True)
class Kind:
    """The properties of a kind of collective."""

    name: str  # as in errors and recordings
    yields: Yield = Yield.NOTHING
    reduces: bool = False  # combines elements: calls have an `op`
    has_root: bool = False  # calls have a `root_rank`
    grouped: bool = False  # also has an op for groups of tensors

    @property
    def functions(self) -> dict[str, str]:
        """The names of this kind's TensorFlow ops, and of the tf_hvd functions that call them."""
        op = self.name.capitalize()
        single = {f"Horovod{op}": self.name}
        return single | ({f"HorovodGrouped{op}": f"grouped_{self.name}"} if self.grouped else {})


# Indexed by kind number.
KINDS = (
    Kind("allreduce", Yield.WHOLE, reduces=True, grouped=True),
    Kind("allgather", Yield.ALL_ROWS, grouped=True),
    Kind("broadcast", Yield.WHOLE, has_root=True),
    Kind("join"),
    Kind("barrier"),
    Kind("add_process_set"),
    Kind("remove_process_set"),
    Kind("alltoall", Yield.SENT_ROWS),
    Kind("reducescatter", Yield.OWN_ROWS, reduces=True, grouped=True),
)

REDUCE_OPS = ("Average", "Sum", "Adasum", "Min", "Max", "Product")
"""The names of the reduce ops, indexed by number."""

OF_TENSORS = {kind.name: kind for kind in KINDS if kind.yields is not Yield.NOTHING}
"""The kinds that transfer tensors, by name."""
