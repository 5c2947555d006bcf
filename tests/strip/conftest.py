"""A process with one rank, and fixtures that the tests of strip-ops share."""

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd import strip
from tf_hvd.core import _native

v1 = tf.compat.v1


@pytest.fixture(scope="session", autouse=True)
def one_rank():
    """A job of one rank, in which the ops run; stripped graphs are compared with it."""
    hvd.init()


@pytest.fixture
def ops():
    """The ops as TensorFlow generates their Python functions."""
    return _native.ops


def _evaluate(graph_def, names, feeds=None):
    """The values of tensors of a GraphDef, by name."""
    with tf.Graph().as_default() as graph:
        tf.graph_util.import_graph_def(graph_def, name="")
        with v1.Session(graph=graph) as session:
            return session.run(list(names), feeds or {})


@pytest.fixture
def evaluate_graph():
    return _evaluate


def ours(graph_def):
    """The ops of tf_hvd anywhere in a GraphDef."""
    bodies = [function.node_def for function in graph_def.library.function]
    return [node.op for body in [graph_def.node, *bodies] for node in body if "Horovod" in node.op]


@pytest.fixture
def find_ours():
    return ours


def _same_bits(left, right):
    left, right = np.asarray(left), np.asarray(right)
    assert (left.dtype, left.shape) == (right.dtype, right.shape)
    # All NaNs count as equal, because processors may produce different ones.
    if left.dtype.kind in "fc" or left.dtype.name == "bfloat16":
        wide = [x.astype(np.complex128) for x in (left, right)]
        for part in (np.real, np.imag):
            a, b = part(wide[0]), part(wide[1])
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(np.signbit(a)[~np.isnan(a)], np.signbit(b)[~np.isnan(b)])
    else:
        np.testing.assert_array_equal(left, right)


@pytest.fixture
def same_bits():
    return _same_bits


@pytest.fixture
def check_stripped(same_bits):
    """Strip the graph of `build`, which returns tensors, and compare both graphs' values."""

    def check(build, feeds=None, **options):
        with tf.Graph().as_default() as graph:
            names = [tensor.name for tensor in build()]
            original = graph.as_graph_def()
        assert ours(original)
        stripped = strip.strip_ops(original, **{"assume_single_process": True, **options})
        assert not ours(stripped)
        for a, b in zip(
            _evaluate(original, names, feeds), _evaluate(stripped, names, feeds), strict=True
        ):
            _same_bits(a, b)
        return stripped

    return check
