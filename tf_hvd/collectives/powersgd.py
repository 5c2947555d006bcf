"""PowerSGD: gradients are sent as the product of two thin matrices.

The algorithm is from Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient
Compression for Distributed Optimization", NeurIPS 2019. For a gradient of n x m numbers,
(n + m) * rank numbers are sent. The error of the approximation is kept and added to the next
gradient (error feedback). PowerSGD helps if the network is slow and the layers are large. It
changes the results of training, so compare the accuracy with and without it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.core.tensorflow_hooks import ByVariables, state_variable, tf_variable, waits_for

# A function that averages tensors of any dtypes across the ranks, under a name.
Average = Callable[[list[Any], str], list[Any]]


@dataclasses.dataclass
class _Matrix:
    rows: int
    columns: int
    error: Any  # [rows, columns], the accumulated error of this rank
    basis: Any  # [columns, rank], Q of the previous step; the same on all ranks


class PowerSGD:
    """Low-rank compression of the gradients of an optimizer or a tape.

    Pass it as `hvd.DistributedOptimizer(optimizer, compression=hvd.PowerSGD(rank=4))`. It needs
    op=Average. Gradients with fewer than two dimensions, and gradients that would shrink by less
    than `min_ratio`, are averaged uncompressed.

    All ranks must run on processors with identical arithmetic, because each rank orthogonalises
    the same matrix independently.

    Args:
      rank: int, number of columns of the thin matrices, 4 by default. More columns approximate
        the gradient better.
      min_ratio: float, 2.0 by default. A gradient is compressed only if it shrinks by at least
        this factor.
      error_feedback: bool, whether to add the error of the approximation to the next gradient;
        True by default. The accumulated errors differ between ranks and are not in checkpoints.

    Raises:
      ValueError: `rank` or `min_ratio` is below 1.

    Example:
      optimizer = hvd.DistributedOptimizer(
          keras.optimizers.SGD(0.1), compression=hvd.PowerSGD(rank=2)
      )
    """

    def __init__(
        self, rank: int = 4, *, min_ratio: float = 2.0, error_feedback: bool = True
    ) -> None:
        if rank < 1 or min_ratio < 1:
            raise ValueError(
                f"PowerSGD(rank={rank}, min_ratio={min_ratio}) is not valid; pass at least 1 for "
                "both."
            )
        self.rank = rank
        self.min_ratio = min_ratio
        self.error_feedback = error_feedback
        self._matrices: ByVariables[_Matrix | None] = ByVariables()
        self._of_tensors: ByVariables[dict[int, _Matrix | None]] = ByVariables()

    def average(
        self, gradients: Sequence[Any], variables: Sequence[Any], average: Average
    ) -> list[Any]:
        """Return the approximate averages of gradients across the ranks.

        Args:
          gradients: tensors with known shapes; None stays None.
          variables: the gradients' sources. The state between steps is kept for each variable.
            For a source that is not a variable, the state is kept for its position in this list.
          average: function that averages tensors exactly; takes a list of tensors and a name.

        Returns:
          Tensors with the shapes and dtypes of `gradients`, bitwise the same on all ranks.

        Raises:
          ValueError: a shape is unknown, or differs from the previous step.
        """
        matrices = {
            i: self._matrix_of(i, gradient, variables)
            for i, gradient in enumerate(gradients)
            if gradient is not None
        }
        thin = {i: matrix for i, matrix in matrices.items() if matrix is not None}
        whole = [i for i, matrix in matrices.items() if matrix is None]
        results = list(gradients)
        if whole:
            averages = average([gradients[i] for i in whole], "whole")
            for i, value in zip(whole, averages, strict=True):
                results[i] = value
        for i, value in self._approximate(thin, gradients, average).items():
            results[i] = value
        return results

    def _approximate(
        self, states: dict[int, _Matrix], gradients: Sequence[Any], average: Average
    ) -> dict[int, Any]:
        if not states:
            return {}
        wanted = {}
        for i, state in states.items():
            flat = tf.reshape(gradients[i], [state.rows, state.columns])
            wanted[i] = tf.cast(flat, state.error.dtype) + state.error
        products = average([tf.matmul(wanted[i], states[i].basis) for i in states], "p")
        left = {i: tf.linalg.qr(p).q for i, p in zip(states, products, strict=True)}
        transposed = [tf.matmul(wanted[i], left[i], transpose_a=True) for i in states]
        right = dict(zip(states, average(transposed, "q"), strict=True))
        results = {}
        for i, state in states.items():
            approximation = tf.matmul(left[i], right[i], transpose_b=True)
            updates = [state.basis.assign(right[i])]
            if self.error_feedback:
                updates.append(state.error.assign(wanted[i] - approximation))
            with tf.control_dependencies(waits_for(updates)):
                shaped = tf.reshape(approximation, gradients[i].shape)
                results[i] = tf.cast(shaped, gradients[i].dtype)
        return results

    def _matrix_of(self, index: int, gradient: Any, variables: Sequence[Any]) -> _Matrix | None:
        variable = tf_variable(variables[index])

        def make() -> _Matrix | None:
            return self._matrix(index, gradient)

        if isinstance(variable, tf.Variable):
            return self._matrices.get([variable], make)
        # Tensors are new in each step, so only the variables in the list identify the list.
        known = [v for v in variables if isinstance(tf_variable(v), tf.Variable)]
        places = self._of_tensors.get(known, dict)
        if index not in places:
            places[index] = make()
        matrix = places[index]
        if matrix is not None and gradient.shape.num_elements() != matrix.rows * matrix.columns:
            raise ValueError(
                f"PowerSGD: the gradient of source {index}, a tensor, had {matrix.rows} x "
                f"{matrix.columns} values in the previous step but now has the shape "
                f"{gradient.shape}. Use a separate PowerSGD for each list of tensors, or use "
                "variables as sources."
            )
        return matrix

    def _matrix(self, index: int, gradient: Any) -> _Matrix | None:
        shape = gradient.shape
        if not shape.is_fully_defined():
            raise ValueError(
                f"PowerSGD needs gradients with known shapes, but one has shape {shape}. Set its "
                "shape, or use another compression method."
            )
        if shape.rank < 2 or 0 in shape or not gradient.dtype.is_floating:
            return None
        columns = shape[-1]
        rows = shape.num_elements() // columns
        if rows * columns < self.min_ratio * self.rank * (rows + columns):
            return None
        # Half precision would lose the errors that error feedback keeps.
        dtype = gradient.dtype if gradient.dtype.size >= 4 else tf.float32
        with tf.init_scope():
            # The initial basis is the same on all ranks and in every run.
            basis = tf.random.stateless_normal([columns, self.rank], [index, 0], dtype=dtype)
            return _Matrix(
                rows,
                columns,
                state_variable(tf.zeros([rows, columns], dtype), f"powersgd/error_{index}"),
                state_variable(basis, f"powersgd/basis_{index}"),
            )
