"""hvd.adapt: adapts a layer to the data of all ranks, as one process would."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from adapted_rows import (
    KINDS,
    LIBRARIES,
    ROWS,
    assert_alike,
    batches,
    data_of,
    integers,
    make,
    numbers,
    outputs,
    sentences,
    share,
    words,
)

import tf_hvd as hvd
import tf_hvd.keras

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2, 3)]


@LIBRARIES
@pytest.mark.parametrize(
    ("shape", "axis"), [("array", -1), ("batches", -1), ("batches", None), ("unbatched", -1)]
)
def test_adapt_normalization_is_one_process(library, shape, axis):
    rows = numbers()
    mine = share(rows)
    if shape == "unbatched":
        if library is tf_keras:
            pytest.skip("tf_keras takes batches only")
        mine = tf.data.Dataset.from_tensor_slices(mine)
    else:
        mine = batches(mine) if shape == "batches" else mine
    layer = library.layers.Normalization(axis=axis)
    hvd.adapt(layer, mine)
    over = 0 if axis == -1 else None
    for found, expected in (
        (layer.adapt_mean, rows.astype("f8").mean(over)),
        (layer.adapt_variance, rows.astype("f8").var(over)),
    ):
        np.testing.assert_allclose(np.asarray(found), expected, rtol=1.2e-7)  # a bit of float32
        assert_alike(found)
    assert_alike(outputs(layer, numbers()))


@LIBRARIES
def test_adapt_normalization_in_float64(library, float64):
    rows = numbers().astype("f8") + 1e6
    with float64(library):
        layer = library.layers.Normalization()
        hvd.adapt(layer, batches(share(rows), 2))
        np.testing.assert_allclose(np.ravel(layer.mean), rows.mean(0), rtol=1e-15)
        np.testing.assert_allclose(np.ravel(layer.variance), rows.var(0), rtol=1e-9)


LOOKUPS = {
    "words": ("StringLookup", {}, words),
    "max_tokens": ("StringLookup", {"max_tokens": 5, "num_oov_indices": 2}, words),
    "counts": ("StringLookup", {"output_mode": "count"}, words),
    "integers": ("IntegerLookup", {}, integers),
    "integers masked": ("IntegerLookup", {"mask_token": 0, "max_tokens": 6}, integers),
    "text": ("TextVectorization", {}, sentences),
    "ngrams": ("TextVectorization", {"ngrams": 2, "max_tokens": 12}, sentences),
    "tf_idf": ("TextVectorization", {"output_mode": "tf_idf"}, sentences),
    "tf_idf padded": (
        "TextVectorization",
        {"output_mode": "tf_idf", "max_tokens": 30, "pad_to_max_tokens": True, "ngrams": 2},
        sentences,
    ),
}


@LIBRARIES
@pytest.mark.parametrize("case", list(LOOKUPS))
def test_adapt_vocabulary_is_one_process(library, case):
    kind, options, rows = LOOKUPS[case]
    single, together = (getattr(library.layers, kind)(**options) for _ in range(2))
    single.adapt(batches(rows(), 4))
    together.adapt(share(rows()))  # the second call starts over
    hvd.adapt(together, batches(share(rows()), 3))
    assert together.get_vocabulary() == single.get_vocabulary()
    found = outputs(together, rows())
    np.testing.assert_array_equal(found, outputs(single, rows()))
    assert_alike(found)


@LIBRARIES
def test_adapt_discretization(library):
    rows = numbers()
    exact, single, rough = (
        library.layers.Discretization(num_bins=5, epsilon=epsilon) for epsilon in (1e-3, 1e-3, 0.05)
    )
    single.adapt(batches(rows))
    hvd.adapt(exact, batches(share(rows)))
    np.testing.assert_array_equal(exact.bin_boundaries, single.bin_boundaries)
    hvd.adapt(rough, share(np.repeat(rows, 1, 0)))
    assert_alike(rough.bin_boundaries)
    for place, boundary in enumerate(rough.bin_boundaries):
        assert abs((rows <= boundary).mean() - (place + 1) / 5) < 0.1


@LIBRARIES
@pytest.mark.parametrize(
    ("kind", "known"), [*((k, True) for k in KINDS), ("Discretization", False)]
)
def test_adapt_with_an_empty_share(library, kind, known):
    root = hvd.size() - 1
    single, together = make(library, kind), make(library, kind)
    rows = data_of(kind)
    single.adapt(rows)
    data = batches(rows).take(-1 if hvd.rank() == root else 0)
    hvd.adapt(together, data if known else data.filter(lambda _: True))
    if kind == "Normalization":
        exact = rows.astype("f8").mean(0)  # Keras' own sums in float32 are not exact
        np.testing.assert_allclose(np.ravel(together.mean), exact, rtol=1.2e-7)
    elif kind != "Discretization":  # its summaries depend on the division into batches
        np.testing.assert_array_equal(outputs(together, rows), outputs(single, rows))
    assert_alike(outputs(together, data_of(kind)))


@LIBRARIES
def test_adapt_reads_the_given_number_of_steps(library):
    rows = numbers()
    for layer in (library.layers.Normalization(), library.layers.Discretization(num_bins=2)):
        hvd.adapt(layer, batches(rows, 2).repeat(), steps=3)
        assert_alike(outputs(layer, numbers()))
    layer = library.layers.Normalization()
    hvd.adapt(layer, batches(rows, 2).repeat(), steps=3)
    np.testing.assert_allclose(np.ravel(layer.mean), rows[:6].astype("f8").mean(0), rtol=1e-7)


@pytest.mark.ranks(2)
@LIBRARIES
def test_adapt_fails_on_all_ranks(library):
    def data():
        yield numbers()[:2]
        if hvd.rank() == 1:
            raise OSError("the disk is gone")

    error = {1: (OSError, "disk")}.get(
        hvd.rank(), (RuntimeError, r"rank 1 could not.*disk is gone")
    )
    with pytest.raises(error[0], match=error[1]):
        hvd.adapt(library.layers.Normalization(), data())
    with pytest.raises(ValueError, match=r"different shapes.*\(1, 2\), \(1, 3\)"):
        hvd.adapt(library.layers.Normalization(), numbers()[:, : 2 + (hvd.rank() > 0)])
    with pytest.raises(ValueError, match="no data on any rank"):
        hvd.adapt(library.layers.Normalization(), batches(numbers()).take(0))
    with pytest.raises(ValueError, match=r"(?s)created with mean=|another"):
        hvd.adapt(library.layers.Normalization(mean=1.0, variance=1.0), numbers())
    with pytest.raises(ValueError, match="not Dense"):
        hvd.adapt(library.layers.Dense(1), numbers())


def test_adapt_of_a_feature_space():
    def features():
        found = {"number": numbers()[:, 0], "word": words()[:, 0].astype(str)}
        return found, {name: list(share(rows)) for name, rows in found.items()}

    def make_space():
        return keras.utils.FeatureSpace(
            features={
                "number": keras.utils.FeatureSpace.float_normalized(),
                "word": keras.utils.FeatureSpace.string_categorical(output_mode="one_hot"),
            },
            output_mode="concat",
        )

    everything, mine = features()
    single, together = make_space(), make_space()
    single.adapt(tf.data.Dataset.from_tensor_slices(everything))
    hvd.adapt(together, tf.data.Dataset.from_tensor_slices(mine))
    rows = {name: tf.constant(values) for name, values in everything.items()}
    np.testing.assert_allclose(together(rows), single(rows), atol=1e-3)
    assert_alike(together(rows))
    own = make_space()
    own.adapt(tf.data.Dataset.from_tensor_slices(everything))
    hvd.broadcast_adapted(own)


@LIBRARIES
def test_trained_on_shares_it_is_one_process(library, float64):
    """A model that begins with a layer adapted on shares; another adapted layer maps its data."""
    rows = numbers()[: ROWS // 2 * 2 * hvd.size()]
    labels = rows.sum(1, keepdims=True) / 1000

    def train(outer, layer, x, y, optimizer, batch):
        model = library.Sequential(
            [library.Input([3]), layer, library.layers.Dense(1, kernel_initializer="ones")]
        )
        model.compile(optimizer, "mse")
        data = tf.data.Dataset.from_tensor_slices((x, y)).batch(batch)
        model.fit(data.map(lambda a, b: (outer(a), b)), epochs=2, verbose=0)
        return [np.asarray(v) for v in model.trainable_variables]

    own = slice(hvd.rank(), None, hvd.size())
    with float64(library):
        rows, labels = rows.astype("f8"), labels.astype("f8")
        single, together = ([library.layers.Normalization() for _ in range(2)] for _ in range(2))
        single[0].adapt(rows)
        single[1].adapt(np.asarray(single[0](rows)) * 3 + 1)
        hvd.adapt(together[0], rows[own])
        hvd.adapt(together[1], np.asarray(together[0](rows[own])) * 3 + 1)
        with tf_hvd.unguarded():
            expected = train(*single, rows, labels, library.optimizers.SGD(0.1), 2 * hvd.size())
        optimizer = tf_hvd.DistributedOptimizer(library.optimizers.SGD(0.1))
        del single
        found = train(*together, rows[own], labels[own], optimizer, 2)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)
