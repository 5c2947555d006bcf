"""The small functions of Horovod's helper modules."""

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.collectives import compression
from tf_hvd.horovod import helpers


def test_op_and_average():
    resolve = helpers.handle_average_backwards_compatibility
    assert (resolve(None, None), resolve(hvd.Max, None)) == (hvd.Average, hvd.Max)
    with pytest.warns(DeprecationWarning, match="op="):
        assert (resolve(None, True), resolve(None, False)) == (hvd.Average, hvd.Sum)
    with pytest.raises(ValueError, match="both passed"):
        resolve(hvd.Sum, True)


def test_a_reduce_op_passed_as_average():
    """Average is 0 and Sum is 1: as truth values each would mean the other."""
    for op, name in ((hvd.Average, "Average"), (hvd.Sum, "Sum")):
        with pytest.raises(ValueError, match=f"average=.* is neither .*op=hvd.{name}"):
            helpers.handle_average_backwards_compatibility(None, op)


def test_powers_of_two():
    found = [n for n in range(-2, 20) if helpers.check_num_rank_power_of_2(n)]
    assert found == [1, 2, 4, 8, 16]


def test_lists_are_cut_into_even_runs():
    assert helpers.split_list(list(range(7)), 3) == [[0, 1, 2], [3, 4], [5, 6]]
    assert helpers.split_list([1], 2) == [[1], []]
    with pytest.raises(ValueError, match="n=0"):
        helpers.split_list([1], 0)


def test_references_of_variables():
    a, b, c = (tf.Variable(float(i)) for i in range(3))
    nested = helpers.vars_to_refs([a, [b, c]])
    assert hash(nested) == hash(helpers.vars_to_refs((a, (b, c))))
    back = helpers.refs_to_vars(nested)
    assert back[0] is a
    assert back[1][1] is c


def test_installation_queries():
    assert helpers.gpu_available("tensorflow") == bool(tf.config.list_physical_devices("GPU"))
    assert (
        helpers.check_extension("horovod.tensorflow", "HOROVOD_WITH_TENSORFLOW", "x", "y") is None
    )
    assert helpers._executing_eagerly()
    with tf.Graph().as_default():
        assert not helpers._executing_eagerly()


class Halving(hvd.Compressor):
    """A user-defined compressor that keeps the dtype but returns another tensor."""

    @staticmethod
    def compress(tensor):
        return tensor / 2, None

    @staticmethod
    def decompress(tensor, ctx):
        return tensor * 2


@pytest.mark.parametrize(
    ("kind", "dtype", "words"),
    [
        (hvd.Compression.none, tf.float32, ""),
        (hvd.Compression.fp16, tf.float32, "fp16 of float32"),
        (hvd.Compression.bf16, tf.float64, "bf16 of float64"),
        (hvd.Compression.fp16, tf.bfloat16, ""),
        (hvd.Compression.fp16, tf.int64, ""),
        (hvd.Compression.fp16, tf.int32, "int32 averaged as int64"),
        (Halving, tf.float32, "Halving of float32"),
        (Halving(), tf.float32, "Halving of float32"),
    ],
)
def test_compression_is_sent_for_comparison(kind, dtype, words):
    """As an attribute of each reducing op; unchanged tensors need no text."""
    hvd.init()

    @tf.function(autograph=False)
    def function(x):
        return (
            hvd.allreduce(x, compression=kind),
            hvd.grouped_allreduce([x], compression=kind),
            hvd.reducescatter(x, compression=kind),
            hvd.grouped_reducescatter([x], compression=kind),
        )

    x = tf.ones([2], dtype)
    operations = function.get_concrete_function(x).graph.get_operations()
    found = [op.get_attr("compression").decode() for op in operations if "Horovod" in op.type]
    assert found == [words] * 4
    for result in tf.nest.flatten(function(x)):
        np.testing.assert_array_equal(result, x)


def test_words_for_a_group():
    assert compression.describe_all(["", ""]) == ""
    assert compression.describe_all(["", "fp16 of float32", ""]) == "none, fp16 of float32"
