"""ReductionOptions: the checked arguments of a reduction as one value."""

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
from tf_hvd.core.process_sets import ProcessSet, check_kind, global_process_set, id_of
from tf_hvd.core.tensorflow_hooks import warn_deprecated


def resolve_sparse(sparse: str | None) -> str:
    """Return the mode that `sparse=` selects: "auto", "rows" or "dense".

    None selects the mode in the setting TF_HVD_SPARSE.
    """
    if sparse is None:
        return config.SPARSE.read()
    if sparse not in config.SPARSE.choices:
        known = ", ".join(repr(choice) for choice in config.SPARSE.choices)
        raise ValueError(f"sparse={sparse!r} is not a valid mode; use one of {known}.")
    return sparse


def _resolve_groups(groups: Any, num_groups: int) -> Any:
    """Return the groups: None, a positive number, or a list of lists of variables."""
    if num_groups:
        warn_deprecated("num_groups= is deprecated; use groups=.")
        groups = num_groups if groups is None else groups
    is_number = isinstance(groups, int) and not isinstance(groups, bool) and groups > 0
    are_lists = isinstance(groups, (list, tuple)) and all(
        isinstance(group, (list, tuple)) for group in groups
    )
    if groups is None or is_number or are_lists:
        return groups
    raise ValueError(
        f"groups={groups!r} is not valid; pass a positive integer or a list of lists of variables."
    )


# Attributes of the reducing ops, with the defaults that ops/common.h declares.
_DEFAULTS: tuple[tuple[str, Any], ...] = (
    ("ignore_name_scope", False),
    (scales.ATTRIBUTE, []),
    ("compression", ""),
    ("wire_dtype", ""),
    ("wire_name", ""),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReductionOptions:
    """The arguments that tell a public function how to reduce tensors, as one value.

    The public functions create this object and pass it to internal functions. It is hashable.
    `allreduce` and `DistributedOptimizer` document its attributes.

    Raises:
      TypeError: `compression` is neither a Compressor nor a PowerSGD.
      ValueError: `op` or `sparse` is invalid; or PowerSGD is combined with an op other than
        Average or with a `prescale_factor` other than 1.
    """

    op: int = reduce_ops.Average
    prescale_factor: float = 1.0
    postscale_factor: float = 1.0
    compression: type[Compressor] | PowerSGD = Compression.none
    process_set: ProcessSet | int = global_process_set  # the gradient of an op knows only a number
    ignore_name_scope: bool = False
    device_dense: str = ""
    device_sparse: str = ""
    sparse: str | None = None
    sparse_as_dense: bool = False
    # None for buckets, a number of groups, or lists of variables. Not compared here, because
    # callers compare the resulting groups.
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
                "hvd.Compression.fp16, hvd.Compression.bf16 or a subclass of hvd.Compressor."
            )
        if isinstance(self.compression, PowerSGD) and (
            self.op != reduce_ops.Average or self.prescale_factor != 1.0
        ):
            raise ValueError(
                "PowerSGD needs op=Average and gradient_predivide_factor=1; pass these values, or "
                "another compression."
            )

    @classmethod
    def of_gradients(
        cls, *, gradient_predivide_factor: float = 1.0, num_groups: int = 0, **options: Any
    ) -> "ReductionOptions":
        """Create the options of an optimizer or a tape from its arguments.

        Raises:
          ValueError: `gradient_predivide_factor` is 0, or is combined with an op other than
            Average; `groups` is neither a positive number nor lists of variables. The
            constructor may raise other errors.
        """
        check_kind(options.get("process_set", global_process_set))
        if not gradient_predivide_factor:
            raise ValueError(
                "gradient_predivide_factor=0 is not valid, because gradients are divided by it; "
                "pass a positive number, such as hvd.size()."
            )
        groups = _resolve_groups(options.pop("groups", None), num_groups)
        made = cls(
            prescale_factor=1.0 / gradient_predivide_factor,
            postscale_factor=gradient_predivide_factor,
            groups=groups,
            **options,
        )
        if gradient_predivide_factor != 1.0 and made.op != reduce_ops.Average:
            raise ValueError(
                f"gradient_predivide_factor={gradient_predivide_factor} needs op=Average; pass "
                "op=hvd.Average, or omit gradient_predivide_factor."
            )
        return made

    @functools.cached_property
    def attributes(self) -> dict[str, Any]:
        """The attributes of a reducing op, except the set's number. Do not change the dict."""
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
    def flat_attributes(self) -> tuple[Any, ...] | None:
        """The names and values, alternating, of the attributes that differ from their defaults.

        Defaults are omitted because TensorFlow spends time on each attribute. None if a tensor
        needs more work than the op itself.
        """
        if self.compression is not Compression.none or self.device_dense:
            return None
        given = (item for item in self.attributes.items() if item not in _DEFAULTS)
        return tuple(itertools.chain.from_iterable(given))

    def averages_in_int64(self, dtype: tf.DType) -> bool:
        """Return whether tensors of this dtype are sent as int64, to keep sums from overflowing."""
        return self.op == reduce_ops.Average and dtype in scales.NARROW

    @property
    def set_id(self) -> int:
        """The number of the process set; raises ValueError if the set is not registered."""
        return self.process_set if isinstance(self.process_set, int) else id_of(self.process_set)

    @property
    def set_size(self) -> int | None:
        """The number of participating ranks; None if it is not known yet."""
        return None if isinstance(self.process_set, int) else self.process_set.size()

    @property
    def compressor(self) -> type[Compressor]:
        """The compressor for individual tensors; raises ValueError for PowerSGD."""
        if isinstance(self.compression, PowerSGD):
            raise ValueError(
                "compression=PowerSGD cannot be used in a single call, because it keeps a state "
                "for each gradient between steps; pass it to an optimizer or a tape."
            )
        return self.compression

    def check_slices(self, *tensors: Any) -> None:
        """Raise NotImplementedError if `tensors` include IndexedSlices that `op` cannot reduce."""
        if self.op in (reduce_ops.Sum, reduce_ops.Average):
            return
        if any(isinstance(tensor, tf.IndexedSlices) for tensor in tensors):
            raise NotImplementedError(
                f"allreduce of IndexedSlices with op={reduce_ops.NAMES[self.op]} is not defined; "
                "use Sum or Average, or convert the IndexedSlices with tf.convert_to_tensor."
            )


_OF_GRADIENTS = {
    *("op", "compression", "process_set", "device_dense", "device_sparse", "sparse"),
    *("sparse_as_dense", "groups", "num_groups", "gradient_predivide_factor"),
}


def about_reduction(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Select the arguments of `ReductionOptions.of_gradients` from the `locals()` of its caller."""
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
    """Return the options of a collective; calls with equal arguments get the same object.

    The arguments are those of ReductionOptions. A call with scale factors gets a new object,
    because 0.0 and -0.0 compare equal but give different results.
    """
    given = (op, compression, process_set, ignore_name_scope, device_dense, device_sparse, sparse)
    try:
        made = _unscaled(*given)
    except TypeError:  # an argument is not hashable
        made = _unscaled.__wrapped__(*given)
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
