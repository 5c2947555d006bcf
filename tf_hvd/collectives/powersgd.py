"""PowerSGD: gradients travel as the product of two thin matrices.

Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for
Distributed Optimization", NeurIPS 2019. For a gradient of n x m numbers (n + m) * rank
travel. What the approximation leaves out is kept and added to the next gradient
(error feedback). It pays where the network is slow and the layers are large; it
changes the training, so compare the accuracy that it reaches.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.core.tensorflow_hooks import ByVariables, state_variable, tf_variable, waits_for

# Averages tensors of any dtypes over the ranks, as one step under a name.
Average = Callable[[list[Any], str], list[Any]]


@dataclasses.dataclass
class _Matrix:
    rows: int
    columns: int
    error: Any  # [rows, columns], what was left out so far; this rank's own
    basis: Any  # [columns, rank], Q of the last step; the same on all ranks


class PowerSGD:
    """Low-rank compression of the gradients of an optimizer or a tape.

    `hvd.DistributedOptimizer(optimizer, compression=hvd.PowerSGD(rank=4))`. Only for
    op=Average. Gradients of fewer than two dimensions, and those that would not get
    smaller by `min_ratio`, are averaged as they are.

    All ranks must run on processors that compute alike: each orthogonalises the same
    matrix by itself.

    Args:
      rank: columns of the thin matrices; more is closer to the gradient.
      min_ratio: how many times smaller a gradient must get.
      error_feedback: add what was left out to the next gradient. The sums are this
        rank's own and are not in checkpoints.

    Raises:
      ValueError: `rank` or `min_ratio` is below 1.
    """

    def __init__(self, rank: int = 4, min_ratio: float = 2.0, error_feedback: bool = True) -> None:
        if rank < 1 or min_ratio < 1:
            raise ValueError(
                f"PowerSGD(rank={rank}, min_ratio={min_ratio}): both must be at least 1."
            )
        self.rank = rank
        self.min_ratio = min_ratio
        self.error_feedback = error_feedback
        self._matrices: ByVariables[_Matrix | None] = ByVariables()
        self._of_tensors: ByVariables[dict[int, _Matrix | None]] = ByVariables()

    def average(
        self, gradients: Sequence[Any], variables: Sequence[Any], average: Average
    ) -> list[Any]:
        """Approximate averages over the ranks.

        Args:
          gradients: tensors with known shapes; None stays None.
          variables: what they belong to. What is kept from step to step is kept for
            each variable; of a source that is no variable, for its place among those.
          average: how tensors are averaged exactly.

        Returns:
          Tensors of the shapes and dtypes of `gradients`, with the same bits on all
          ranks.

        Raises:
          ValueError: a shape is not known, or not that of the step before.
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
        # Tensors are others in each step: known by the variables beside them.
        known = [v for v in variables if isinstance(tf_variable(v), tf.Variable)]
        places = self._of_tensors.get(known, dict)
        if index not in places:
            places[index] = make()
        matrix = places[index]
        if matrix is not None and gradient.shape.num_elements() != matrix.rows * matrix.columns:
            raise ValueError(
                f"PowerSGD: the gradient of source {index}, a tensor, had {matrix.rows} x "
                f"{matrix.columns} values in the previous step and now has the shape "
                f"{gradient.shape}; give each list of tensors its own PowerSGD, or use variables."
            )
        return matrix

    def _matrix(self, index: int, gradient: Any) -> _Matrix | None:
        shape = gradient.shape
        if not shape.is_fully_defined():
            raise ValueError(f"PowerSGD needs to know the shapes of gradients; one has {shape}.")
        if shape.rank < 2 or 0 in shape or not gradient.dtype.is_floating:
            return None
        columns = shape[-1]
        rows = shape.num_elements() // columns
        if rows * columns < self.min_ratio * self.rank * (rows + columns):
            return None
        # Half precisions would lose what the error feedback is for.
        dtype = gradient.dtype if gradient.dtype.size >= 4 else tf.float32
        with tf.init_scope():
            # The same on all ranks and in each run.
            basis = tf.random.stateless_normal([columns, self.rank], [index, 0], dtype=dtype)
            return _Matrix(
                rows,
                columns,
                state_variable(tf.zeros([rows, columns], dtype), f"powersgd/error_{index}"),
                state_variable(basis, f"powersgd/basis_{index}"),
            )
