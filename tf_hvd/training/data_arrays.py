"""Divide NumPy arrays into blocks of neighbouring rows, one view for each rank.

From a memory-mapped file, a rank reads only the pages of its block, and only once it uses their
rows. If each rank got every n-th row, every rank would read every page.
"""

from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd.training.element_order import Order


def leaves_of(data: Any) -> list[np.ndarray]:
    """Return the arrays in a nested structure; empty if it contains any other object."""
    leaves = tf.nest.flatten(data)
    return leaves if all(isinstance(leaf, np.ndarray) for leaf in leaves) else []


def other_in(data: Any) -> str:
    """Return the type name of the first object in a nested structure that is not an array."""
    kinds = (type(leaf) for leaf in tf.nest.flatten(data) if not isinstance(leaf, np.ndarray))
    return next(kinds, type(data)).__name__


def order_of(data: Any, uneven: str) -> Order:
    """Return the properties of arrays that the ranks compare: structure, types and shapes."""
    leaves = leaves_of(data)
    if not all(leaf.ndim for leaf in leaves):
        raise ValueError(
            "shard: an array without dimensions has no rows to share. Pass arrays with at least "
            "one dimension."
        )
    lengths = sorted({len(leaf) for leaf in leaves})
    if len(lengths) > 1:
        raise ValueError(
            f"shard: the arrays have different numbers of rows: {', '.join(map(str, lengths))}. "
            "Pass arrays with equal first dimensions."
        )
    shapes = tf.nest.map_structure(lambda each: f"{each.dtype}{list(each.shape[1:])}", data)
    if isinstance(shapes, dict):  # tf.nest sorts the keys, so keys are sorted in the shares too
        shapes = dict(sorted(shapes.items()))
    return Order(lengths[0], uneven, given=f"arrays with rows of {shapes}")


def block(rows: int, count: int, place: int, uneven: str) -> slice:
    """Return the rows for the rank with index `place` among `count` ranks."""
    if uneven == "drop":
        size = rows // count
        return slice(place * size, (place + 1) * size)
    if uneven == "keep":
        size, more = divmod(rows, count)
        begin = place * size + min(place, more)
        return slice(begin, begin + size + (place < more))
    size = -(-rows // count)
    # Neighbours overlap by at most one row, so that no row is used three times.
    begin = place * (rows - size) // max(count - 1, 1)
    return slice(begin, begin + size)


def part(data: Any, rows: slice) -> Any:
    """Return the slice `rows` of each array in a nested structure, as views."""
    return tf.nest.map_structure(lambda each: each[rows], data)
