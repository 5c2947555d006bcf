"""DistributedOptimizer for the optimizers of tf.compat.v1."""

from typing import Any

import tensorflow as tf

from tf_hvd import basics
from tf_hvd._autograph import verbatim
from tf_hvd._local import LocalVariables, reduce_except_local
from tf_hvd.compression import Compression, Compressor
from tf_hvd.process_sets import ProcessSet, global_process_set
from tf_hvd.reduction import GradientReducer


class _DistributedOptimizer(tf.compat.v1.train.Optimizer):  # type: ignore[misc]
    """Wraps a v1 optimizer: `compute_gradients` reduces, everything else is the inner one's.

    Slots, hyperparameters and their names in checkpoints are those of the inner
    optimizer: a checkpoint does not show that it was wrapped.
    """

    def __init__(
        self,
        optimizer: Any,
        name: str,
        use_locking: bool,
        reducer: GradientReducer,
        scale_local_gradients: bool,
    ) -> None:
        super().__init__(use_locking=use_locking, name=name)
        self._optimizer = optimizer
        self._reducer = reducer
        self._local = LocalVariables()
        self._scale_local = scale_local_gradients

    def register_local_var(self, var: Any) -> None:
        """From now on the gradient of `var` is not reduced."""
        self._local.register(var)

    @verbatim
    def compute_gradients(self, *args: Any, **kwargs: Any) -> list[tuple[Any, Any]]:
        """The inner optimizer's compute_gradients, then the reduction over all ranks."""
        pairs = self._optimizer.compute_gradients(*args, **kwargs)
        reduced = reduce_except_local(
            self._reducer,
            self._local,
            self._scale_local,
            [gradient for gradient, _ in pairs],
            [variable for _, variable in pairs],
        )
        return [(gradient, pair[1]) for gradient, pair in zip(reduced, pairs, strict=True)]

    def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
        """The inner optimizer's apply_gradients; reduces nothing."""
        return self._optimizer.apply_gradients(*args, **kwargs)

    def get_slot(self, *args: Any, **kwargs: Any) -> Any:
        """The inner optimizer's slot."""
        return self._optimizer.get_slot(*args, **kwargs)

    def get_slot_names(self, *args: Any, **kwargs: Any) -> Any:
        """The inner optimizer's slot names."""
        return self._optimizer.get_slot_names(*args, **kwargs)

    def variables(self, *args: Any, **kwargs: Any) -> Any:
        """The inner optimizer's variables."""
        return self._optimizer.variables(*args, **kwargs)


def _refuse(optimizer: Any) -> None:
    """Raises for what is not a v1 optimizer, saying what to use."""
    kind = f"{type(optimizer).__module__}.{type(optimizer).__name__}"
    if "keras" in kind or hasattr(optimizer, "apply_gradients"):
        raise NotImplementedError(
            f"DistributedOptimizer does not wrap {kind} in this version of tf_hvd: only the "
            "optimizers of tf.compat.v1.train. Use tf_hvd.DistributedGradientTape in a training "
            "loop of your own, and give what its gradient() returns to "
            "optimizer.apply_gradients()."
        )
    raise ValueError(f"{kind} is not an optimizer: give one of tf.compat.v1.train.")


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: Any,
    name: str | None = None,
    use_locking: bool = False,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    backward_passes_per_step: int = 1,
    op: int = basics.Average,
    gradient_predivide_factor: float = 1.0,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Wraps an optimizer so that its gradients are reduced over all ranks.

    Args:
      optimizer: a tf.compat.v1.train.Optimizer.
      name: name of the wrapper; the default is "Distributed" and the type's name.
      use_locking: passed on to the base class.
      device_dense: device for the collectives, "" for TensorFlow's choice.
      device_sparse: device for those of IndexedSlices.
      compression: see `tf_hvd.Compression`.
      sparse_as_dense: turn IndexedSlices into tensors first.
      backward_passes_per_step: 1; more is not supported in this version.
      op: Average, Sum, Min, Max or Product.
      gradient_predivide_factor: with Average, divide by this before the sum and
        by size() / this after it.
      average_aggregated_gradients: has a meaning only with more than one
        backward pass per step.
      num_groups: deprecated; use `groups`.
      groups: None for buckets (TF_HVD_BUCKET_BYTES); a number of groups of about
        the same length; or lists of variables, each reduced as one request.
      process_set: `global_process_set`.
      scale_local_gradients: divide the gradients of variables registered with
        `register_local_var` by the number of ranks.

    Returns:
      A tf.compat.v1.train.Optimizer.

    Raises:
      NotImplementedError: a Keras optimizer, Adasum, more than one backward pass.
      ValueError: not an optimizer, or an argument that makes no sense.
    """
    if not isinstance(optimizer, tf.compat.v1.train.Optimizer):
        _refuse(optimizer)
    if isinstance(optimizer, _DistributedOptimizer):
        raise ValueError("this optimizer is distributed already; it would reduce twice.")
    if backward_passes_per_step < 1:
        raise ValueError(f"backward_passes_per_step={backward_passes_per_step} must be at least 1.")
    if backward_passes_per_step > 1 or average_aggregated_gradients:
        raise NotImplementedError(
            "backward_passes_per_step > 1 and average_aggregated_gradients are not supported in "
            "this version of tf_hvd; add up gradients yourself and reduce the sum with "
            "tf_hvd.grouped_allreduce."
        )
    name = name or f"Distributed{type(optimizer).__name__}"
    reducer = GradientReducer(
        name, device_dense, device_sparse, compression, sparse_as_dense, op,
        gradient_predivide_factor, num_groups, groups, process_set,
    )  # fmt: skip
    return _DistributedOptimizer(optimizer, name, use_locking, reducer, scale_local_gradients)
