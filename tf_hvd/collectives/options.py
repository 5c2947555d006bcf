"""ReductionOptions: how tensors are reduced, checked once and handed on as one value."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import reduce_ops, scales
from tf_hvd.collectives.compression import Compression, Compressor
from tf_hvd.collectives.powersgd import PowerSGD
from tf_hvd.core import config
from tf_hvd.core.process_sets import ProcessSet, global_process_set, id_of
from tf_hvd.core.tensorflow_hooks import warn_deprecated


def resolve_sparse(sparse: str | None) -> str:
    """The way that `sparse=` means: "auto", "rows" or "dense"; None is TF_HVD_SPARSE."""
    if sparse is None:
        return config.SPARSE.read()
    if sparse not in config.SPARSE.choices:
        known = ", ".join(repr(choice) for choice in config.SPARSE.choices)
        raise ValueError(f"sparse={sparse!r} is not one of {known}.")
    return sparse


def _resolve_groups(groups: Any, num_groups: int) -> Any:
    """None, a positive number, or a list of lists of variables."""
    if num_groups:
        warn_deprecated("num_groups= is deprecated; use groups=.")
        groups = num_groups if groups is None else groups
    if groups is None:
        return None
    if isinstance(groups, int):
        if isinstance(groups, bool) or groups <= 0:
            raise ValueError(f"groups={groups!r} must be a positive number or lists of variables.")
        return groups
    if not isinstance(groups, (list, tuple)) or not all(
        isinstance(group, (list, tuple)) for group in groups
    ):
        raise ValueError("groups= must be a positive number or a list of lists of variables.")
    return groups


# Of the ops that reduce; those of ops/common.h.
_DEFAULTS: tuple[tuple[str, Any], ...] = (
    ("ignore_name_scope", False),
    (scales.ATTRIBUTE, []),
    ("compression", ""),
    ("wire_dtype", ""),
    ("wire_name", ""),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReductionOptions:
    """How tensors are reduced: what the public functions take as a dozen arguments.

    They make one of it, and everything behind them gets that by keyword. Hashable. What the
    attributes mean is said there, in `allreduce` and `DistributedOptimizer`.

    Raises:
      TypeError: `compression` is no Compressor.
      ValueError: no such op, or no such way for IndexedSlices; PowerSGD where the
        average is not taken plainly.
    """

    op: int = reduce_ops.Average
    prescale_factor: float = 1.0
    postscale_factor: float = 1.0
    compression: type[Compressor] | PowerSGD = Compression.none
    process_set: ProcessSet | int = global_process_set  # an op's gradient knows its number only
    ignore_name_scope: bool = False
    device_dense: str = ""
    device_sparse: str = ""
    sparse: str | None = None
    sparse_as_dense: bool = False
    # None for buckets, a number of groups, or lists of variables; compared is what comes of it.
    groups: Any = dataclasses.field(default=None, compare=False)

    def __post_init__(self) -> None:
        reduce_ops.check(self.op)
        if self.sparse is not None:
            resolve_sparse(self.sparse)
        if not callable(getattr(self.compression, "compress", None)) and not isinstance(
            self.compression, PowerSGD
        ):
            raise TypeError(
                f"compression={self.compression!r} cannot compress; pass hvd.Compression.none, "
                "hvd.Compression.fp16, hvd.Compression.bf16 or a Compressor of your own."
            )
        if isinstance(self.compression, PowerSGD) and (
            self.op != reduce_ops.Average or self.prescale_factor != 1.0
        ):
            raise ValueError("PowerSGD needs op=Average and gradient_predivide_factor=1.")

    @classmethod
    def of_gradients(
        cls, *, gradient_predivide_factor: float = 1.0, num_groups: int = 0, **options: Any
    ) -> "ReductionOptions":
        """What an optimizer or a tape is told.

        Raises:
          ValueError: `gradient_predivide_factor` with an op other than Average;
            `groups` is neither a positive number nor lists of variables; and as
            this class.
        """
        groups = _resolve_groups(options.pop("groups", None), num_groups)
        made = cls(
            prescale_factor=1.0 / gradient_predivide_factor,
            postscale_factor=gradient_predivide_factor,
            groups=groups,
            **options,
        )
        if gradient_predivide_factor != 1.0 and made.op != reduce_ops.Average:
            raise ValueError("gradient_predivide_factor needs op=Average.")
        return made

    @functools.cached_property
    def attributes(self) -> dict[str, Any]:
        """The attributes of an op that reduces, all but the set's number; not to be changed."""
        return {
            "reduce_op": self.op,
            "prescale_factor": self.prescale_factor,
            "postscale_factor": self.postscale_factor,
            "ignore_name_scope": self.ignore_name_scope,
            scales.ATTRIBUTE: scales.exact(self.prescale_factor, self.postscale_factor),
            "compression": "",
            "wire_dtype": "",
            "wire_name": "",
        }

    @functools.cached_property
    def attributes_in_turn(self) -> tuple[Any, ...] | None:
        """Names and values of those without a default, and of the others that are not it.

        TensorFlow takes time for each. None where a tensor needs more than to go through the op.
        """
        if self.compression is not Compression.none or self.device_dense:
            return None
        told = (item for item in self.attributes.items() if item not in _DEFAULTS)
        return tuple(itertools.chain.from_iterable(told))

    def averages_in_int64(self, dtype: tf.DType) -> bool:
        """Whether tensors of this type travel as int64, so that their sum does not wrap around."""
        return self.op == reduce_ops.Average and dtype in scales.NARROW

    @property
    def set_id(self) -> int:
        """The number of the process set, which must be registered."""
        return self.process_set if isinstance(self.process_set, int) else id_of(self.process_set)

    @property
    def set_size(self) -> int | None:
        """How many ranks take part; None if that is not known now."""
        return None if isinstance(self.process_set, int) else self.process_set.size()

    @property
    def compressor(self) -> type[Compressor]:
        """What makes each tensor smaller by itself."""
        if isinstance(self.compression, PowerSGD):
            raise ValueError(
                "PowerSGD keeps a state for each gradient from step to step: pass it to an "
                "optimizer or a tape."
            )
        return self.compression

    def check_slices(self, *tensors: Any) -> None:
        """Raises if there are IndexedSlices among `tensors` that the op cannot reduce."""
        if self.op in (reduce_ops.Sum, reduce_ops.Average):
            return
        if any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors):
            raise NotImplementedError(
                f"allreduce of IndexedSlices with op={reduce_ops.NAMES[self.op]} is not defined; "
                "use Sum or Average, or convert them with tf.convert_to_tensor."
            )


_OF_GRADIENTS = {
    *("op", "compression", "process_set", "device_dense", "device_sparse", "sparse"),
    *("sparse_as_dense", "groups", "num_groups", "gradient_predivide_factor"),
}


def about_reduction(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Of the `locals()` of an optimizer or a tape what `ReductionOptions.of_gradients` takes."""
    return {name: value for name, value in arguments.items() if name in _OF_GRADIENTS}


def options_of_call(
    op: int,
    prescale_factor: float,
    postscale_factor: float,
    compression: Any,
    process_set: ProcessSet,
    ignore_name_scope: bool,
    device_dense: str,
    device_sparse: str = "",
    sparse: str | None = None,
) -> ReductionOptions:
    """What a collective is told; calls that are told alike get the same object.

    The arguments are attributes of the class. Those that scale get one of their own: 0.0 and
    -0.0 are equal, and not the same.
    """
    told = (op, compression, process_set, ignore_name_scope, device_dense, device_sparse, sparse)
    try:
        made = _unscaled(*told)
    except TypeError:  # one of them has no hash
        made = _unscaled.__wrapped__(*told)
    if prescale_factor == 1.0 == postscale_factor:
        return made
    return dataclasses.replace(
        made, prescale_factor=prescale_factor, postscale_factor=postscale_factor
    )


@functools.lru_cache(maxsize=128, typed=True)
def _unscaled(
    op: int,
    compression: Any,
    process_set: ProcessSet,
    ignore_name_scope: bool,
    device_dense: str,
    device_sparse: str,
    sparse: str | None,
) -> ReductionOptions:
    return ReductionOptions(
        op=op,
        compression=compression,
        process_set=process_set,
        ignore_name_scope=ignore_name_scope,
        device_dense=device_dense,
        device_sparse=device_sparse,
        sparse=sparse,
    )
