"""Serialization of plain values."""

import numpy as np
import pytest
import tensorflow as tf

from tf_hvd.keras import plain_values

VALUES = [
    None,
    True,
    3,
    2**80,
    0.1,
    float("inf"),
    "text\nof two lines",
    b"bytes",
    [1, (2, {3}), {"a": [None], 4: b""}],
    (3, tuple(range(625)), None),
]
ARRAYS = [
    np.arange(6, dtype="int64").reshape(2, 3),
    np.float32(0.1),
    np.array(2.5),
    np.zeros((0, 3)),
    np.array([1 + 2j]),
    np.array([True, False]),
    tf.constant([0.1, 3.0], tf.bfloat16).numpy(),
]


@pytest.mark.parametrize("value", VALUES)
def test_values_round_trip(value):
    assert plain_values.loads(plain_values.dumps(value)) == value


@pytest.mark.parametrize("array", ARRAYS)
def test_arrays_round_trip(array):
    other = plain_values.loads(plain_values.dumps({"x": [array, array]}))["x"][1]
    assert type(other) is type(array)
    assert other.dtype == array.dtype
    np.testing.assert_array_equal(other, array)


def test_tensor_becomes_an_array():
    np.testing.assert_array_equal(
        plain_values.loads(plain_values.dumps(tf.constant([1, 2]))), [1, 2]
    )


@pytest.mark.parametrize("value", [object(), [lambda: 0], {"a": np.array(["text"])}, print])
def test_other_values_are_refused(value):
    with pytest.raises(TypeError, match="not supported"):
        plain_values.dumps(value)


OTHER = plain_values.dumps([1]).replace(b"list", b"tsil")
OLDER = b'{"dict": [["updates", 3]]}\n'


@pytest.mark.parametrize("data", [b"", b"PK", b"PK\x03\x04", OTHER, OLDER])
def test_other_data_is_refused(data):
    with pytest.raises(ValueError, match="not written by this version of tf_hvd"):
        plain_values.loads(data)


def test_equal_values_have_equal_bytes(monkeypatch):
    """Ranks compare the bytes."""
    before = plain_values.dumps({"x": ARRAYS})
    monkeypatch.setattr("time.time", lambda: 1e9)
    assert plain_values.dumps({"x": ARRAYS}) == before
