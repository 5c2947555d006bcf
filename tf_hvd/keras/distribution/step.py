"""The step that is being built or run: this rank's rows, and the weight of the rank.

In a step each rank computes the loss of its rows as if they were the whole batch: a mean over its n
rows. The loss of the N rows of all ranks is the mean of these losses weighted by n/N. Gradients are
therefore multiplied by n*R/N before R ranks average them. If all ranks have N/R rows, nothing is
multiplied.

Each thread has its own step. While a step is traced, it acts in its graph and in nested graphs. It
does not act in functions that TensorFlow lifts out of the graph, such as initializers.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import collectives, reduce_ops
from tf_hvd.core.tensorflow_hooks import enclosing_graphs
from tf_hvd.keras.distribution import rows
from tf_hvd.keras.distribution.active import Setup


class _Steps(threading.local):
    def __init__(self) -> None:
        self.stack: list[Step] = []


_steps = _Steps()


def current() -> "Step | None":
    """The step in which the calling code runs or is traced; None outside of steps."""
    if not _steps.stack:
        return None
    step = _steps.stack[-1]
    return step if step.acts() else None


def as_int(value: Any) -> Any:
    """A number of rows that is known, or a tensor."""
    known = tf.get_static_value(value) if tf.is_tensor(value) else value
    return value if known is None else int(known)


class Step:
    """A step with this rank's rows of a global batch.

    A LossScaleOptimizer scales the loss for float16. In this case the loss is multiplied by n/N
    before the backward pass, and gradients only by R. Numbers then overflow in the same steps as in
    one process.

    Attributes:
      rows: the number of rows of this rank, an int or an int32 scalar.
      total: the number of rows of all ranks.
      begin: the number of rows of lower ranks.
    """

    def __init__(self, setup: Setup, mine: Any, total: Any = None, begin: Any = None) -> None:
        self.ranks, self._rank = setup.ranks, setup.rank
        self.rows = as_int(mine)
        self._whole = None if total is None else (as_int(total), as_int(begin))
        self._loss_is_weighted = False
        self._graph = next(iter(enclosing_graphs()), None)

    @property
    def total(self) -> Any:
        return self._of_all()[0]

    @property
    def begin(self) -> Any:
        return self._of_all()[1]

    def _of_all(self) -> tuple[Any, Any]:
        """`total` and `begin`. If each rank has its own data, the ranks exchange their numbers.

        They do so in a step that needs them, which an evaluation without masks does not.
        """
        if self._whole is None:
            with contextlib.nullcontext() if self._graph is None else self._graph.as_default():
                mine = tf.reshape(tf.cast(self.rows, tf.int32), [1])
                counts = collectives.allgather(mine, name="rows_of_ranks")
                counts = tf.ensure_shape(counts, [self.ranks])
                self._whole = tf.reduce_sum(counts), tf.reduce_sum(counts[: self._rank])
        return self._whole

    def acts(self) -> bool:
        graphs = list(enclosing_graphs())
        return not graphs if self._graph is None else self._graph in graphs

    @property
    def is_known(self) -> bool:
        """Whether the numbers of rows are known while the step is built."""
        return isinstance(self.rows, int) and isinstance(self.total, int)

    @property
    def needs_others(self) -> bool:
        """Whether the number of all rows is not known on this rank yet."""
        return self._whole is None

    @property
    def is_even(self) -> bool:
        """Whether it is known that this rank has its part of the rows to the last one."""
        return self.is_known and self.rows * self.ranks == self.total

    def per_total(self, dtype: Any) -> Any:
        """n/N, a scalar."""
        n, total = tf.cast(self.rows, tf.float64), tf.cast(self.total, tf.float64)
        return tf.cast(tf.math.divide_no_nan(n, total), dtype)

    def per_rows(self, dtype: Any) -> Any:
        """N/n, a scalar; 0 if this rank has no rows."""
        n, total = tf.cast(self.rows, tf.float64), tf.cast(self.total, tf.float64)
        return tf.cast(tf.math.divide_no_nan(total, n), dtype)

    def weigh_loss(self, loss: Any) -> Any:
        self._loss_is_weighted = True
        return loss * self.per_total(loss.dtype)

    def weigh(self, gradients: Sequence[Any]) -> list[Any]:
        """Multiplies gradients by n*R/N; a rank without rows contributes zeros."""
        if self.is_even and not self._loss_is_weighted:
            return list(gradients)
        places = [place for place, each in enumerate(gradients) if each is not None]
        found = [gradients[place] for place in places]
        values = [each.values if isinstance(each, tf.IndexedSlices) else each for each in found]

        def multiplied() -> list[Any]:
            share = tf.cast(tf.not_equal(self.rows, 0), tf.float64)
            weight = self.ranks * (share if self._loss_is_weighted else self.per_total(tf.float64))
            return [tf.math.multiply_no_nan(each, tf.cast(weight, each.dtype)) for each in values]

        if self.is_known or self._loss_is_weighted:
            weighed = multiplied()
        else:
            even = tf.equal(self.rows * self.ranks, self.total)
            weighed = tf.cond(even, lambda: [tf.identity(each) for each in values], multiplied)
        result = list(gradients)
        for place, before, after in zip(places, found, weighed, strict=True):
            sparse = isinstance(before, tf.IndexedSlices)
            result[place] = (
                tf.IndexedSlices(after, before.indices, before.dense_shape) if sparse else after
            )
        return result

    def sum(self, values: Any, name: str) -> Any:
        """The sum across all ranks of a tensor that losses or activations depend on.

        The derivative takes into account that gradients are weighted later.
        """
        if self.is_even:
            return collectives.allreduce(values, op=reduce_ops.Sum, name=name)
        n = tf.cast(self.rows, tf.float64)
        inside = self._scaled_gradient(values, tf.math.reciprocal_no_nan(n))
        total = collectives.allreduce(inside, op=reduce_ops.Sum, name=name)
        return self._scaled_gradient(total, n)

    def _scaled_gradient(self, values: Any, factor: Any) -> Any:
        """The values, with a derivative that is multiplied by `factor` unless the loss was."""

        @tf.custom_gradient  # type: ignore[untyped-decorator]
        def scaled(x: Any) -> Any:
            def gradient(dy: Any) -> Any:
                return dy if self._loss_is_weighted else dy * tf.cast(factor, dy.dtype)

            return tf.identity(x), gradient

        return scaled(values)


@contextlib.contextmanager
def entered(step: Step) -> Iterator[None]:
    """A context in which `current` returns the step."""
    _steps.stack.append(step)
    try:
        yield
    finally:
        _steps.stack.pop()


def begun(setup: Setup, data: Any) -> tuple[Step, Any, Any]:
    """The step for a batch, this rank's rows, and the digest of the batch.

    The digest is None if the data are the rank's own.
    """
    if isinstance(data, rows.Rows):
        total = data.total.shape[0]
        return (
            _of_total(setup, tf.shape(data.total)[0] if total is None else total),
            data.data,
            data.digest,
        )
    if not setup.shards:
        return Step(setup, rows.length(data)), data, None
    # A batch for train_on_batch.
    step, mark = _of_total(setup, rows.length(data)), rows.digest(_tensors(data))
    return step, rows.of(data, setup.rank, setup.ranks), mark


def _of_total(setup: Setup, total: Any) -> Step:
    total = as_int(total)
    begin, end = rows.bounds(total, setup.rank, setup.ranks)
    return Step(setup, end - begin, total, begin)


def _tensors(data: Any) -> list[Any]:
    flat = tf.nest.flatten(data)
    return [tf.convert_to_tensor(each) if hasattr(each, "__array__") else each for each in flat]
