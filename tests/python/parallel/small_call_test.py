"""The cost of an eager call of 4 bytes: Python functions, cache lines shared by cores, waits."""

import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.core import _native

CALLS = 200
BATCHES = 10
MOST_LINES = 12


@pytest.mark.parametrize("keywords", [{}, {"op": hvd.Sum}, {"op": hvd.Average}])
def test_a_repeated_call_runs_one_python_function(keywords, functions_called):
    tf.compat.v1.get_default_graph()  # many programs have one, and the call then checks it too
    value = tf.constant([1.0])

    def call():
        return hvd.allreduce(value, **keywords)

    for _ in range(2):
        call()
    names = [code.co_name for code in functions_called(call)]
    assert names == ["call", "call"], "one of this test, and one of tf_hvd"


def test_a_different_call_is_not_treated_as_repeated():
    rank, size = hvd.rank(), hvd.size()
    value = tf.constant([rank + 1.0])
    total = size * (size + 1) / 2
    for _ in range(3):
        assert hvd.allreduce(value, op=hvd.Sum).numpy() == total
        assert hvd.allreduce(value).numpy() == tf.constant([total]).numpy() / size
        assert hvd.allreduce(value, op=hvd.Sum, prescale_factor=2.0).numpy() == 2 * total
        assert hvd.allreduce(value, op=hvd.Max, name="largest").numpy() == size
        assert hvd.allreduce(tf.Variable(value), op=hvd.Sum).numpy() == total
        assert hvd.allreduce([rank + 1.0], op=hvd.Sum).numpy() == total
        assert hvd.allreduce(tensor=value, op=hvd.Sum).numpy() == total
        with pytest.raises(ValueError, match="op=17 is not a reduce op"):
            hvd.allreduce(value, op=17)
    traced = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum))
    assert traced(value).numpy() == total


def test_a_repeated_call_has_its_gradient():
    value = tf.constant([3.0])
    for op, expected in ((hvd.Sum, hvd.size()), (hvd.Average, 1.0)):
        for _ in range(3):
            with tf.GradientTape() as tape:
                tape.watch(value)
                reduced = hvd.allreduce(value, op=op)
            assert tape.gradient(reduced, value).numpy() == expected


def test_a_repeated_call_fails_like_the_first():
    texts = []
    for _ in range(3):
        with pytest.raises(tf.errors.InvalidArgumentError) as failure:
            hvd.allreduce(tf.constant(["text"]))
        texts.append(str(failure.value))
    assert len(set(texts)) == 1


@pytest.mark.skipif(
    hvd.size() != 2 or hvd.local_size() != 2, reason="counts those of two ranks on one machine"
)
def test_lines_and_system_calls_of_two_waiting_ranks():
    """In the least disturbed batch: a rank that loses its core is woken again."""
    value = tf.constant([1.0])

    def batch():
        before = _native.counters()
        for _ in range(CALLS):
            hvd.allreduce(value, op=hvd.Sum)
        after = _native.counters()
        written, read, waits, _ = (b - a for a, b in zip(before, after, strict=True))
        return (written + read) / CALLS, waits / CALLS

    batch()
    batches = [batch() for _ in range(BATCHES)]
    assert min(lines for lines, _ in batches) <= MOST_LINES, batches
    assert min(waits for _, waits in batches) <= 1, batches
