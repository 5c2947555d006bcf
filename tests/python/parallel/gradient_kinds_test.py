"""IndexedSlices on one rank and a dense tensor on the other: an error, which was a stall."""

import pytest
import tensorflow as tf

import tf_hvd as hvd

pytestmark = [pytest.mark.framework, pytest.mark.ranks(2)]

TEXTS = {
    "auto": "rank 0 has a dense tensor, rank 1 has IndexedSlices",
    "dense": "rank 0 has a dense tensor, rank 1 has IndexedSlices",
    "rows": "rank 0 has allreduce, rank 1 has allgather",
}


def of_kind(sparse):
    """Two rows of a table: as IndexedSlices, or in a table of zeros."""
    slices = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([1, 3]), tf.constant([2000, 2]))
    return slices if sparse else tf.convert_to_tensor(slices)


def both_modes(call):
    """Eagerly, and in a tf.function."""
    yield call
    yield tf.function(call, autograph=False)


@pytest.mark.parametrize("way", list(TEXTS))
@pytest.mark.parametrize("grouped", [False, True], ids=["single", "group"])
def test_slices_and_a_dense_tensor_under_one_name(rank, size, way, grouped):
    def reduce(sparse):
        value = of_kind(sparse)
        if grouped:
            return hvd.grouped_allreduce([value], op=hvd.Sum, name="kind", sparse=way)[0]
        return hvd.allreduce(value, op=hvd.Sum, name="kind", sparse=way)

    for call in both_modes(lambda: tf.convert_to_tensor(reduce(rank > 0))):
        with pytest.raises(tf.errors.FailedPreconditionError, match=TEXTS[way]):
            call()
    for sparse in (True, False):
        for call in both_modes(lambda sparse=sparse: tf.convert_to_tensor(reduce(sparse))):
            assert float(tf.reduce_sum(call())) == 4.0 * size


def test_slices_and_a_dense_tensor_without_a_name(rank):
    with pytest.raises(tf.errors.FailedPreconditionError, match=TEXTS["auto"]):
        hvd.allreduce(of_kind(rank > 0), sparse="auto")


def reduced(kinds, variables, options):
    """A tape's result for variables with gradients of these kinds."""
    with tf.GradientTape() as tape:
        parts = [tf.zeros([])]
        for variable, kind in zip(variables, kinds, strict=True):
            if kind == "slices":
                parts.append(tf.reduce_sum(tf.gather(variable, [1, 3])))
            else:
                parts.append(tf.reduce_sum(variable))
        loss = tf.add_n(parts)
    return hvd.DistributedGradientTape(tape, **options).gradient(loss, variables)


CASES = {
    "alone": ({"table": "dense"}, {"table": "slices"}, {}, TEXTS["auto"]),
    "in one bucket": (
        {"table": "dense", "w": "dense"},
        {"table": "slices", "w": "dense"},
        {},
        r"rank 0 has 'w' as tensor 0, rank 1 has 'w \(with IndexedSlices of table\)'",
    ),
    "in another bucket": (
        {"table": "dense", "w": "dense"},
        {"table": "slices", "w": "dense"},
        {"groups": 1},
        r"rank 0 has 'table' as tensor 0, rank 1 has 'w \(with IndexedSlices of table\)'",
    ),
    "of two": (
        {"table": "slices", "other": "dense", "w": "dense"},
        {"table": "slices", "other": "slices", "w": "dense"},
        {},
        r"IndexedSlices of table\)' as tensor 0, .*IndexedSlices of table, other\)' as",
    ),
}


@pytest.mark.parametrize("case", list(CASES))
def test_gradients_of_one_variable_of_two_kinds(rank, size, case):
    first, other, options, text = CASES[case]
    variables = [tf.Variable(tf.zeros([2000, 2]), name=name) for name in first]
    mine = first if rank == 0 else other
    for call in both_modes(lambda: reduced(mine.values(), variables, options)):
        with pytest.raises(tf.errors.FailedPreconditionError, match=text):
            call()
    for kinds in (first, other):
        gradients = reduced(kinds.values(), variables, {**options, "op": hvd.Sum})
        for kind, gradient in zip(kinds.values(), gradients, strict=True):
            total = float(tf.reduce_sum(tf.convert_to_tensor(gradient)))
            assert total == size * (4.0 if kind == "slices" else 4000.0)
