"""DistributedGradientTape, a tf.GradientTape that reduces gradients across all ranks."""

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import reduce_ops
from tf_hvd.collectives.compression import Compression, Compressor
from tf_hvd.collectives.options import ReductionOptions, about_reduction
from tf_hvd.collectives.powersgd import PowerSGD
from tf_hvd.core.process_sets import ProcessSet, global_process_set
from tf_hvd.core.tensorflow_hooks import verbatim
from tf_hvd.training import agreement, eager_marks, guard, initial_weights
from tf_hvd.training._local import LocalVariables, weights_of_layers
from tf_hvd.training.reduction import GradientReducer

_NAME = "DistributedGradientTape"


class _DistributedGradientTape(tf.GradientTape):  # type: ignore[misc]
    """A view of the tape that the user passed; both tapes share all their state."""

    def __init__(self, tape: Any, reducer: GradientReducer, scale_local: bool) -> None:
        # No super().__init__: the state exists already, and both tapes must see each
        # other's changes (one may be entered and the other asked for gradients).
        self.__dict__ = tape.__dict__
        self._hvd_reducer = reducer
        self._hvd_local = LocalVariables(scale_local)
        self._hvd_is_plain = False

    def register_local_var(self, var: Any) -> None:
        """Register a local variable, so that its gradient is not reduced from now on."""
        self._hvd_local.register(var)

    register_local_source = register_local_var  # Horovod's name

    @verbatim
    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        *,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """Return the gradients of `target`, reduced across all ranks.

        Args:
          target: tensor, or nested structure of tensors, to differentiate.
          sources: nested structure of tensors, tf.Variables or Keras variables.
          output_gradients: see tf.GradientTape.gradient.
          use_generic_names: whether to omit the graph's name scope from the names of the
            collectives (default: False).
          unconnected_gradients: see tf.GradientTape.gradient. With NONE (default), the same sources
            must be unconnected on all ranks.

        Returns:
          Tensors, IndexedSlices and None in the structure of `sources`.

        Raises:
          The errors of tf.GradientTape.gradient and of `tf_hvd.allreduce`.
        """
        guard.check_combination(_NAME)
        gradients = super().gradient(
            target, sources, output_gradients, unconnected_gradients=unconnected_gradients
        )
        if self._hvd_is_plain:
            return gradients
        flat = tf.nest.flatten(sources)
        shared = [source for source in flat if source not in self._hvd_local]
        compared, read = initial_weights.before_reduction(shared, self._hvd_reducer.process_set)
        with tf.control_dependencies(compared):
            reduced = self._hvd_reducer.reduce(
                tf.nest.flatten(gradients),
                flat,
                use_generic_names,
                step=agreement.stamped(None, read),
                local=self._hvd_local,
            )
        if eager_marks.wanted():
            pairs = zip(reduced, flat, strict=True)
            eager_marks.put([None if v in self._hvd_local else g for g, v in pairs], flat)
        return tf.nest.pack_sequence_as(sources, reduced)

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """Return this rank's own Jacobian without a reduction, like tf.GradientTape.jacobian."""
        with self._plain():
            return super().jacobian(*args, **kwargs)

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """Return this rank's own Jacobian of a batch, like tf.GradientTape.batch_jacobian."""
        with self._plain():
            return super().batch_jacobian(*args, **kwargs)

    @contextlib.contextmanager
    def _plain(self) -> Iterator[None]:
        """Within the block, do not reduce in `gradient`, which TensorFlow calls for a Jacobian."""
        self._hvd_is_plain = True
        try:
            yield
        finally:
            self._hvd_is_plain = False

    @verbatim
    def get_local_and_global_gradients(
        self,
        target: Any,
        sources: Sequence[Any],
        output_gradients: Any = None,
        use_generic_names: bool = False,
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """Return the result of `gradient` as two lists of (source, gradient) pairs.

        The first list has the local sources, and the second list has all other sources.
        """
        flat = tf.nest.flatten(sources)
        gradients = self.gradient(target, flat, output_gradients, use_generic_names)
        pairs = list(zip(flat, gradients, strict=True))
        local = [pair for pair in pairs if pair[0] in self._hvd_local]
        shared = [pair for pair in pairs if pair[0] not in self._hvd_local]
        return local, shared


@functools.lru_cache(maxsize=16)
def _distributed_class(kind: Any) -> type[_DistributedGradientTape]:
    """Create the class of distributed tapes for a tape class; it has the same name."""
    return type(kind.__name__, (_DistributedGradientTape, kind), {})


@verbatim
def DistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] | PowerSGD = Compression.none,
    sparse_as_dense: bool = False,
    op: int = reduce_ops.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
    *,
    sparse: str | None = None,
) -> _DistributedGradientTape:
    """Wrap a tf.GradientTape so that `gradient()` reduces gradients across all ranks.

    Only `gradient()` reduces; `jacobian` and all other methods are those of the tape. You can
    wrap a tape before or after it records.

    With op=Adasum, each gradient is combined as a separate vector, and IndexedSlices need
    sparse_as_dense=True.

    Args:
      gradtape: the tf.GradientTape to wrap.
      device_dense: device for dense gradients; "" (default) for TensorFlow's choice.
      device_sparse: device for IndexedSlices; "" (default) for TensorFlow's choice.
      compression: how gradients are compressed for transport, see `tf_hvd.Compression`.
      sparse_as_dense: whether to convert IndexedSlices to dense tensors before the reduction.
      op: Average (default), Sum, Min, Max, Product or Adasum.
      gradient_predivide_factor: with Average, divide by this factor before the sum and by
        size() / factor after it.
      num_groups: deprecated; use `groups`.
      groups: how gradients are grouped for the reduction, see `tf_hvd.DistributedOptimizer`.
      process_set: the ranks that train together; other ranks keep their own gradients.
      scale_local_gradients: whether to divide the gradients of variables registered with
        `register_local_var` by the number of ranks.
      sparse: how IndexedSlices are sent, see `tf_hvd.allreduce`.

    Returns:
      A tape of a subclass of the class of `gradtape`, with the same name.

    Raises:
      ValueError: `gradtape` is not a tape, or is already distributed; or another argument
        is invalid.

    Example:
      weight = tf.Variable(2.0)
      with tf.GradientTape() as tape:
          loss = weight * (1.0 + hvd.rank())
      tape = hvd.DistributedGradientTape(tape)
      gradient = tape.gradient(loss, weight)  # 1.5 with 2 ranks
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise ValueError(
            f"{type(gradtape).__name__} is not a tf.GradientTape. Pass a tape as the first "
            "argument."
        )
    if "_hvd_reducer" in vars(gradtape):
        raise ValueError(
            "this tape is already distributed. A second DistributedGradientTape would reduce its "
            "gradients twice. Remove one of the two calls."
        )
    options = ReductionOptions.of_gradients(**about_reduction(locals()))
    kind: Any = type(gradtape)
    return _distributed_class(kind)(
        gradtape, GradientReducer(_NAME, options), scale_local_gradients
    )


@verbatim
def PartialDistributedGradientTape(  # noqa: N802 - Horovod's name
    gradtape: Any,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] | PowerSGD = Compression.none,
    sparse_as_dense: bool = False,
    op: int = reduce_ops.Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
    *,
    sparse: str | None = None,
) -> _DistributedGradientTape:
    """Wrap a tf.GradientTape like DistributedGradientTape, but keep some layers' gradients local.

    `local_layers` is a built layer or a list of built layers, of Keras 3 or tf_keras. The gradients
    of their trainable weights are not reduced. The other arguments are those of
    `DistributedGradientTape`.

    Raises:
      ValueError: an entry of `local_layers` is not a layer, or does not have weights yet. This
        function also raises the errors of `DistributedGradientTape`.

    Example:
      head = keras.layers.Dense(1)
      head.build([None, 2])
      tape = hvd.PartialDistributedGradientTape(tf.GradientTape(), local_layers=head)
    """
    given = dict(locals())
    weights = weights_of_layers(given.pop("local_layers"))
    tape = DistributedGradientTape(**given)
    for weight in weights:
        tape.register_local_var(weight)
    return tape
