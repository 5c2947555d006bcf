"""The rows of a global batch that belong to one rank: rank r of R has [r*N//R, (r+1)*N//R) of N."""

from typing import Any, NamedTuple

import tensorflow as tf

_READ = 512
_PRIME = 0x9E3779B1


class Rows(NamedTuple):
    """A rank's rows, as an element of a dataset."""

    data: Any
    total: Any
    """A tensor without elements, of shape [N, 0]. XLA knows shapes when it compiles a step."""
    digest: Any
    """An int64 scalar that depends on the whole batch."""


def _is_of_unknown_rank(tensor: Any) -> bool:
    return getattr(tensor.shape, "rank", 0) is None


def _has_rows(each: Any) -> bool:
    """Whether it is a tensor or an array, and not a scalar. An unknown rank is taken as rows."""
    if getattr(each, "shape", None) is None:
        return False
    return _is_of_unknown_rank(each) or len(each.shape) > 0


def length(structure: Any) -> Any:
    """The number of rows of the first tensor that has any: an int if it is known, or a tensor."""
    for each in filter(_has_rows, tf.nest.flatten(structure)):
        known = None if _is_of_unknown_rank(each) else each.shape[0]
        if known is not None:
            return int(known)
        if isinstance(each, tf.RaggedTensor):
            return tf.cast(each.nrows(), tf.int32)
        if isinstance(each, tf.SparseTensor):
            return tf.cast(each.dense_shape[0], tf.int32)
        return tf.shape(each)[0]
    raise ValueError(
        "keras.distribution: the data contain no tensor with a batch dimension. Batch the dataset, "
        "for example with dataset.batch(64), or set auto_shard_dataset=False."
    )


def bounds(total: Any, rank: int, ranks: int) -> tuple[Any, Any]:
    """The first row of a rank, and the first row after its last."""
    return rank * total // ranks, (rank + 1) * total // ranks


def _part(each: Any, begin: Any, end: Any) -> Any:
    if isinstance(each, tf.SparseTensor):
        width = each.dense_shape[1:]
        first = tf.concat([[begin], tf.zeros_like(width)], axis=0)
        size = tf.concat([[end - begin], width], axis=0)
        return tf.sparse.slice(each, tf.cast(first, tf.int64), tf.cast(size, tf.int64))
    return each[begin:end] if _has_rows(each) else each


def of(structure: Any, rank: int, ranks: int) -> Any:
    """A rank's rows of each tensor; scalars stay as they are."""
    begin, end = bounds(length(structure), rank, ranks)
    return tf.nest.map_structure(lambda each: _part(each, begin, end), structure)


def _bits(values: Any) -> Any:
    """A vector as int64, one number per element or per word of an element."""
    if values.dtype == tf.string:
        return tf.strings.to_hash_bucket_fast(values, 2**31 - 1)
    if values.dtype == tf.bool or values.dtype.is_integer:
        return tf.cast(values, tf.int64)
    if values.dtype.is_floating or values.dtype.is_complex:
        words = {2: tf.int16, 4: tf.int32}.get(values.dtype.size, tf.int32)
        return tf.reshape(tf.cast(tf.bitcast(values, words), tf.int64), [-1])
    return tf.zeros([0], tf.int64)


def digest(structure: Any) -> Any:
    """A number that differs if two batches differ in one of the elements that it reads.

    It reads up to 512 elements of each tensor, spread over all rows.
    """
    found = tf.constant(0, tf.int64)
    for number, each in enumerate(tf.nest.flatten(structure)):
        if isinstance(each, tf.SparseTensor):
            each = each.values
        while isinstance(each, tf.RaggedTensor):
            each = each.values
        if not (tf.is_tensor(each) and _has_rows(each)):
            continue
        # An odd stride, so that the elements are not all in the same column.
        bits = _bits(tf.reshape(each, [-1])[:: tf.size(each) // _READ * 2 + 1])
        places = tf.range(1, tf.size(bits, tf.int64) + 1, dtype=tf.int64)
        found += tf.reduce_sum(bits * (places * _PRIME + number))
    return found


def distributed(dataset: tf.data.Dataset, rank: int, ranks: int) -> tf.data.Dataset:
    """A dataset of Rows, made from one of global batches."""

    def rows(*batch: Any) -> Rows:
        # tf.data passes a tuple's elements one by one.
        whole = tf.nest.pack_sequence_as(dataset.element_spec, tf.nest.flatten(batch))
        total = tf.zeros([length(whole), 0], tf.bool)
        return Rows(of(whole, rank, ranks), total, digest(whole))

    return dataset.map(rows)
