"""DistributedGradientTape: tf.GradientTape whose gradients are reduced over all ranks."""

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
from tf_hvd.training import agreement, eager_marks, initial_weights
from tf_hvd.training._local import LocalVariables, weights_of_layers
from tf_hvd.training.reduction import GradientReducer

_NAME = "DistributedGradientTape"


class _DistributedGradientTape(tf.GradientTape):  # type: ignore[misc]
    """A second face of the tape it is given: they share all their state."""

    def __init__(self, tape: Any, reducer: GradientReducer, scale_local: bool) -> None:
        # No super().__init__: the state is there, and both tapes must see each
        # other's changes (one may be entered and the other asked).
        self.__dict__ = tape.__dict__
        self._hvd_reducer = reducer
        self._hvd_local = LocalVariables(scale_local)
        self._hvd_is_plain = False

    def register_local_source(self, source: Any) -> None:
        """From now on the gradient of `source` is not reduced."""
        self._hvd_local.register(source)

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
        """Gradients of `target`, reduced over all ranks.

        Args:
          target: tensor or nested structure of them to differentiate.
          sources: nested structure of tensors, tf.Variables or Keras variables.
          output_gradients: see tf.GradientTape.gradient.
          use_generic_names: leave the graph's name scope out of the requests' names.
          unconnected_gradients: see tf.GradientTape.gradient; with NONE, the same
            sources must be unconnected on all ranks.

        Returns:
          Tensors, IndexedSlices and None in the structure of `sources`.

        Raises:
          As tf.GradientTape.gradient, and as `tf_hvd.allreduce`.
        """
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
        """As tf.GradientTape.jacobian: this rank's own, not reduced."""
        with self._plain():
            return super().jacobian(*args, **kwargs)

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """As tf.GradientTape.batch_jacobian: this rank's own, not reduced."""
        with self._plain():
            return super().batch_jacobian(*args, **kwargs)

    @contextlib.contextmanager
    def _plain(self) -> Iterator[None]:
        """Within it `gradient`, which TensorFlow calls for a Jacobian's rows, is the tape's."""
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
        """What `gradient` gives, as two lists of (source, gradient).

        The first is of the local sources, the second of the others.
        """
        flat = tf.nest.flatten(sources)
        gradients = self.gradient(target, flat, output_gradients, use_generic_names)
        pairs = list(zip(flat, gradients, strict=True))
        local = [pair for pair in pairs if pair[0] in self._hvd_local]
        shared = [pair for pair in pairs if pair[0] not in self._hvd_local]
        return local, shared


@functools.lru_cache(maxsize=16)
def _distributed_class(kind: Any) -> type[_DistributedGradientTape]:
    """The class for tapes of class `kind`, with its name and with it as a base."""
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
) -> Any:
    """Wraps a tf.GradientTape so that `gradient()` reduces over all ranks.

    With op=Adasum the gradients are combined, each tensor as a vector of its own;
    IndexedSlices need sparse_as_dense=True then.
    Only `gradient()` reduces; `jacobian` and the others are those of the tape.
    Works on a tape that has recorded already and on one that is entered later.
    The arguments after the tape are those of `tf_hvd.DistributedOptimizer`.

    Returns:
      A tape whose class has the name of the given one's.

    Raises:
      ValueError: not a tape, distributed already, or an argument that makes no
        sense.
    """
    if not isinstance(gradtape, tf.GradientTape):
        raise ValueError(f"{type(gradtape).__name__} is not a tf.GradientTape.")
    if "_hvd_reducer" in vars(gradtape):
        raise ValueError("this tape is distributed already; it would reduce twice.")
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
) -> Any:
    """A DistributedGradientTape that leaves the gradients of some layers on their rank.

    `local_layers` is a layer or a list of layers, of Keras 3 or tf_keras, built
    already, whose trainable weights are each rank's own. The other arguments are
    those of `DistributedGradientTape`.

    Raises:
      ValueError: one of `local_layers` is no layer or has no weights yet; and as
        `DistributedGradientTape`.
    """
    given = dict(locals())
    weights = weights_of_layers(given.pop("local_layers"))
    tape = DistributedGradientTape(**given)
    for weight in weights:
        tape.register_local_source(weight)
    return tape
