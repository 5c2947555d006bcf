"""The kinds of collectives and the reduce ops, for code that treats them alike: as in base/types.h.

The standard library alone. A test compares the two.
"""

import enum
from dataclasses import dataclass


class Yield(enum.Enum):
    """What a collective yields to a rank for each tensor."""

    NOTHING = "there are no tensors"
    WHOLE = "as many elements as the tensor has"
    OWN_ROWS = "its share of as many rows as the tensor has"
    ALL_ROWS = "the rows of all ranks"
    SENT_ROWS = "the rows that each rank has for it"


@dataclass(frozen=True)
class Kind:
    """A kind of collective."""

    name: str  # as errors and recordings have it
    yields: Yield = Yield.NOTHING
    reduces: bool = False  # elements: calls have an `op`
    has_root: bool = False  # calls have a `root_rank`
    grouped: bool = False  # there is an op for groups of tensors as well

    @property
    def functions(self) -> dict[str, str]:
        """The TensorFlow ops of what moves tensors, and the functions of tf_hvd that call them."""
        op = self.name.capitalize()
        single = {f"Horovod{op}": self.name}
        return single | ({f"HorovodGrouped{op}": f"grouped_{self.name}"} if self.grouped else {})


# By their numbers.
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
"""Their names, by their numbers."""

OF_TENSORS = {kind.name: kind for kind in KINDS if kind.yields is not Yield.NOTHING}
"""What moves tensors, by name."""
