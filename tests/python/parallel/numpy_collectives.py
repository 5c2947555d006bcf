"""The results of each collective, in NumPy, and numbers to call them with.

`inputs` is a list of the arrays of all members of a process set, in rank order. The arithmetic is
that of docs/collectives.md, in the same order, so that results can be compared bit by bit.
"""

import numpy as np
import tensorflow as tf


def _product(a, b):
    """Complex numbers by their parts, because NumPy rounds once less if the machine can."""
    if not np.iscomplexobj(a):
        return np.multiply(a, b)
    result = np.empty_like(a)
    result.real = a.real * b.real - a.imag * b.imag
    result.imag = a.real * b.imag + a.imag * b.real
    return result


REDUCTIONS = {
    "Average": np.add,
    "Sum": np.add,
    "Min": np.minimum,
    "Max": np.maximum,
    "Product": _product,
}
OF_BOOL = {
    "Sum": np.logical_or,
    "Min": np.logical_and,
    "Max": np.logical_or,
    "Product": np.logical_and,
}


def numpy_type(dtype):
    return np.dtype(tf.as_dtype(dtype).as_numpy_dtype)


def numbers(dtype, shape, salt):
    """Small whole numbers with exact sums, different for each `salt`."""
    wide = np.arange(np.prod(shape, dtype=int)).reshape(shape) * 5 + 3 * salt
    kind = tf.as_dtype(dtype)
    if kind == tf.bool:
        return wide % 2 == 0
    if kind.is_complex:
        return (wide % 7 - 3 + 1j * ((wide + salt) % 5 - 2)).astype(numpy_type(dtype))
    return (wide % 8 - (0 if kind.is_unsigned else 3)).astype(numpy_type(dtype))


def _truncated(values, dtype):
    """Toward zero; values outside of the type's range are clamped to it."""
    ends = np.iinfo(dtype)
    above, below = values >= float(ends.max), values <= float(ends.min)
    result = np.where(above | below, 0, np.trunc(values)).astype(dtype)
    result[above], result[below] = ends.max, ends.min
    return result


def _scaled(values, scale, divisor=1):
    """In the type itself; for integers in float64."""
    if scale == divisor == 1 or values.dtype == np.dtype(bool):
        return values
    if np.iscomplexobj(values):
        parts = values.view(values.real.dtype)
        return _scaled(parts, scale, divisor).view(values.dtype)
    if np.issubdtype(values.dtype, np.integer):
        return _truncated(values.astype(np.float64) * scale / divisor, values.dtype)
    return values * values.dtype.type(scale) / values.dtype.type(divisor)


def allreduce(inputs, op, prescale=1.0, postscale=1.0):
    """The result on each rank.

    Half-precision values are accumulated in float32, and averages of integers in int64.
    """
    dtype, shape = inputs[0].dtype, inputs[0].shape
    small = dtype in (numpy_type("float16"), numpy_type("bfloat16"))
    accumulated = np.dtype(np.float32) if small else dtype
    wide = op == "Average" and np.issubdtype(dtype, np.integer) and dtype.itemsize < 8
    accumulated = np.dtype(np.int64) if wide else accumulated
    function = (OF_BOOL if dtype == np.dtype(bool) else REDUCTIONS)[op]
    with np.errstate(all="ignore"):
        parts = [_scaled(x.reshape(-1).astype(accumulated), prescale) for x in inputs]
        total = parts[0]
        for part in parts[1:]:
            total = function(total, part).astype(accumulated)
        divisor = len(inputs) if op == "Average" else 1
        result = _scaled(total, postscale, divisor)
        if wide:
            result = np.clip(result, np.iinfo(dtype).min, np.iinfo(dtype).max)
        return result.astype(dtype).reshape(shape)


def allgather(inputs):
    return np.concatenate(inputs)


def alltoall(inputs, splits, place):
    """Rows, and the number from each rank, for index `place`; splits[i] is member i's argument."""
    parts = []
    for rows, given in zip(inputs, splits, strict=True):
        start = sum(given[:place])
        parts.append(rows[start : start + given[place]])
    return np.concatenate(parts), np.array([given[place] for given in splits], np.int32)


def reducescatter(inputs, op, place, prescale=1.0, postscale=1.0):
    """The rows of the rank with index `place`: the first ranks have one more for the remainder."""
    whole = allreduce(inputs, op, prescale, postscale)
    least, over = divmod(len(whole), len(inputs))
    start = place * least + min(place, over)
    return whole[start : start + least + (place < over)]


def difference(actual, expected):
    """Empty if both have the same type, shape and bits (all NaNs are equal); else a text."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    if (actual.dtype, actual.shape) != (expected.dtype, expected.shape):
        return f"{actual.dtype}{actual.shape}, not {expected.dtype}{expected.shape}"
    if actual.tobytes() == expected.tobytes():
        return ""
    same = (actual == expected) | ((actual != actual) & (expected != expected))
    return "" if same.all() else f"{actual.tolist()}, not {expected.tolist()}"
