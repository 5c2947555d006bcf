"""Layers that are adapted to data: compared in `fit` and `broadcast_variables`, and repaired."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from adapted_rows import (
    EACH_KIND,
    LIBRARIES,
    ROWS,
    assert_alike,
    broadcast,
    data_of,
    fit,
    make,
    numbers,
    outputs,
    row_counts,
    sentences,
    share,
    words,
)

import tf_hvd as hvd
import tf_hvd.keras

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]

GuardError = tf_hvd.GuardError

# Differences that were silent.


@pytest.mark.ranks(2)
@LIBRARIES
@EACH_KIND
def test_layers_adapted_on_shares_stop_fit_and_broadcast_variables(library, kind):
    layer = make(library, kind, name="mine")
    layer.adapt(share(data_of(kind)))
    with pytest.raises(
        GuardError, match=rf"(?s)hvd\.broadcast_adapt.*{kind} layer 'mine'.*on rank 0"
    ):
        fit(library)
    with pytest.raises(GuardError, match=rf"(?s)hvd\.adapt\(.*{kind} layer 'mine'"):
        broadcast()
    hvd.broadcast_adapted(layer)
    broadcast()


@pytest.mark.ranks(2)
def test_layers_adapted_on_shares_stop_broadcast_variables_in_place():
    layer = keras.layers.Normalization(name="mine")
    layer.adapt(share(numbers()))
    with pytest.raises(GuardError, match="'mine'"):
        hvd.broadcast_variables([tf.Variable(1.0)], 0, inplace=True)


@pytest.mark.ranks(2)
@LIBRARIES
def test_a_state_given_to_the_constructor_is_compared(library):
    mine = share(numbers())
    layer = library.layers.Normalization(mean=mine.mean(0), variance=mine.var(0), name="given")
    with pytest.raises(GuardError, match="Normalization layer 'given'"):
        fit(library)
    del layer
    tokens = [f"w{hvd.rank()}", "both"]
    layer = library.layers.StringLookup(vocabulary=tokens, name="given")
    with pytest.raises(GuardError, match=r"StringLookup layer 'given'.*2 tokens, digest "):
        fit(library)
    assert layer.get_vocabulary()[-2:] == tokens


@pytest.mark.ranks(2)
@LIBRARIES
def test_a_layer_adapted_on_rank_0_only(library):
    layer = library.layers.StringLookup()
    if hvd.rank() == 0:
        layer.adapt(words())
    with pytest.raises(GuardError, match=r"tokens on rank 0 and not adapted on rank 1"):
        fit(library)


@pytest.mark.ranks(2)
@LIBRARIES
def test_layers_with_different_counted_names_are_matched(library):
    with tf_hvd.unguarded():
        own = [library.layers.Normalization() for _ in range(hvd.rank())]
    layer = library.layers.Normalization()
    layer.adapt(share(numbers()))
    with pytest.raises(GuardError, match=r"mean .* on rank 0 and mean .* \('.*_\d+'\) on rank 1"):
        fit(library)
    hvd.broadcast_adapted(layer)
    fit(library)
    assert len(own) == hvd.rank()


@pytest.mark.ranks(2)
@LIBRARIES
def test_state_set_in_other_ways_is_compared(library, tmp_path):
    layer = library.layers.StringLookup(name="mine")
    layer.adapt(words())
    broadcast()
    layer.set_vocabulary(["a", f"b{hvd.rank()}"])
    with pytest.raises(GuardError, match="'mine'"):
        broadcast()
    del layer
    with tf_hvd.unguarded():
        saved = library.layers.Normalization(name="mine")
    saved.adapt(share(numbers()))
    path = tmp_path / "own.keras"
    library.Sequential([library.Input([3]), saved]).save(path)
    loaded = library.models.load_model(path)
    with pytest.raises(GuardError, match="'mine'"):
        broadcast()
    hvd.broadcast_adapted(loaded)
    broadcast()


# Cases that must pass.


@LIBRARIES
@EACH_KIND
def test_layers_adapted_to_the_same_data_pass(library, kind):
    layer, unadapted = make(library, kind), make(library, kind)
    layer.adapt(data_of(kind))
    fit(library)
    broadcast()
    del unadapted


@LIBRARIES
def test_ranks_that_train_by_themselves(library, monkeypatch):
    layer = library.layers.Normalization()
    layer.adapt(share(numbers()))
    with tf_hvd.unguarded():
        fit(library)
        broadcast()
        own = library.layers.Discretization(num_bins=3)
    del layer
    own.adapt(share(numbers()))
    fit(library)
    layer = library.layers.Normalization()
    layer.adapt(share(numbers()))
    monkeypatch.setenv("TF_HVD_GUARD", "off")
    fit(library)
    broadcast()


@LIBRARIES
def test_a_layer_on_only_one_rank_is_not_a_fault(library):
    layer = library.layers.Normalization()
    layer.adapt(numbers())
    if hvd.rank() == 0:
        own = library.layers.Normalization()
        own.adapt(share(numbers()) * 2)
        lookup = library.layers.StringLookup(vocabulary=["a"])
    fit(library)
    if hvd.rank() == 0:
        assert own.built
        assert lookup.vocabulary_size() == 2


@LIBRARIES
def test_a_dropped_layer_is_not_a_fault(library):
    gc.disable()
    try:
        first = library.layers.Normalization()
        first.adapt(share(numbers()))
        if hvd.rank() == 0:
            held = [first]  # unreachable, but present until garbage is collected
            held.append(held)
            del held
        del first
        layer = library.layers.Normalization()
        layer.adapt(numbers())
        broadcast()
        fit(library)
    finally:
        gc.enable()


@pytest.mark.ranks(2)
@LIBRARIES
def test_each_process_set_has_its_own_layers(library):
    half = hvd.size() // 2
    groups = [list(range(half)), list(range(half, hvd.size()))]
    sets = [hvd.add_process_set(group) for group in groups]
    mine = sets[hvd.rank() >= half]
    try:
        layer = library.layers.Normalization()
        layer.adapt(numbers() + sets.index(mine))
        hvd.broadcast_variables([tf.Variable(1.0)], mine.ranks[0], process_set=mine)
        with pytest.raises(GuardError, match="Normalization"):
            broadcast()
        hvd.adapt(layer, share(numbers()), process_set=mine)
        ends = np.cumsum([0, *row_counts()])
        of_set = numbers()[ends[mine.ranks[0]] : ends[mine.ranks[-1] + 1]].astype("f8")
        np.testing.assert_allclose(np.ravel(layer.mean), of_set.mean(0), rtol=1e-7)
        hvd.broadcast_adapted(layer, root_rank=mine.ranks[-1], process_set=mine)
    finally:
        for each in sets:
            hvd.remove_process_set(each)


# The repair.


@LIBRARIES
def test_broadcast_variables_copies_a_normalization(library):
    """As where only rank 0 adapts or loads weights: `call` uses constants made of the variables."""
    layer = library.layers.Normalization()
    layer.build((None, 3))
    inputs = library.Input([3])
    model = library.Model(inputs, layer(inputs))
    rows = tf.constant(numbers())
    model.predict(rows, verbose=0)
    if hvd.rank() == 0:
        layer.adapt(numbers())
    hvd.broadcast_variables(model.variables, 0)
    single = library.layers.Normalization()
    single.adapt(numbers())
    np.testing.assert_array_equal(outputs(layer, rows), outputs(single, rows))
    if hvd.rank() > 0:  # on rank 0 Keras' own adapt does not recompile
        np.testing.assert_array_equal(model.predict(rows, verbose=0), outputs(single, rows))
    fit(library)


@LIBRARIES
def test_a_callbacks_broadcast_copies_a_normalization_within_fit(library):
    layer = library.layers.Normalization()
    layer.adapt(numbers())
    dense = library.layers.Dense(1, trainable=False)
    model = library.Sequential([library.Input([3]), layer, dense])
    layer.adapt_mean.assign(numbers()[0])  # like set_weights, which does not affect `call`
    optimizer = tf_hvd.DistributedOptimizer(library.optimizers.SGD(0.0))
    model.compile(optimizer, "mse")
    broadcast = tf_hvd.keras.callbacks.of(library).BroadcastGlobalVariablesCallback(0)
    model.fit(numbers()[:2], np.ones([2, 1]), verbose=0, callbacks=[broadcast])
    np.testing.assert_array_equal(np.ravel(layer.mean), numbers()[0])


@LIBRARIES
@EACH_KIND
def test_broadcast_adapted_copies_the_state_of_one_rank(library, kind):
    root, rows = hvd.size() - 1, data_of(kind)
    layer, elsewhere = make(library, kind), make(library, kind)
    if hvd.rank() == root:
        layer.adapt(rows)
        elsewhere.adapt(rows)
    else:  # the first layer is not adapted on that rank
        elsewhere.adapt(share(rows))
    before = outputs(elsewhere, rows)
    hvd.broadcast_adapted([layer, elsewhere], root_rank=root)
    assert_alike(outputs(layer, rows))
    np.testing.assert_array_equal(outputs(elsewhere, rows), outputs(layer, rows))
    if hvd.rank() == root:
        np.testing.assert_array_equal(outputs(layer, rows), before)
    broadcast()


@LIBRARIES
@pytest.mark.parametrize("mode", ["multi_hot", "tf_idf"])
def test_broadcast_adapted_of_another_vocabulary_size(library, mode):
    layer = library.layers.TextVectorization(output_mode=mode)
    layer.adapt(share(sentences()))
    hvd.broadcast_adapted(layer)
    assert_alike(outputs(layer, sentences()))
    fit(library)


@LIBRARIES
def test_broadcast_adapted_copies_constructor_arguments(library, tmp_path):
    mine = share(numbers())
    normal = library.layers.Normalization(mean=mine.mean(0), variance=mine.var(0))
    normal.build((None, 3))
    lookup = library.layers.StringLookup(vocabulary=[f"w{hvd.rank()}", "both"])
    bins = library.layers.Discretization(bin_boundaries=[0.0, 1.0 + hvd.rank()])
    hvd.broadcast_adapted([normal, lookup, bins])
    first = numbers()[:ROWS]
    np.testing.assert_array_equal(np.ravel(normal.mean), first.mean(0))
    assert lookup.get_vocabulary()[-2:] == ["w0", "both"]
    assert list(bins.bin_boundaries) == [0.0, 1.0]
    fit(library)
    # The saved state is the same.
    inputs = library.Input([1], dtype="string")
    path = tmp_path / "model.keras"
    library.Model(inputs, lookup(inputs)).save(path)
    saved = library.models.load_model(path).layers[-1]
    assert saved.get_vocabulary()[-2:] == ["w0", "both"]


@LIBRARIES
def test_broadcast_adapted_recompiles(library):
    layer, text = library.layers.Normalization(), library.layers.StringLookup()
    layer.adapt(share(numbers()))
    text.adapt(share(words()))
    models = []
    for each, shape, dtype in ((layer, [3], "float32"), (text, [1], "string")):
        inputs = library.Input(shape, dtype=dtype)
        models.append(library.Model(inputs, each(inputs)))
    data = tf.constant(numbers()), tf.constant(words())
    before = [m.predict(x, verbose=0) for m, x in zip(models, data, strict=True)]
    hvd.broadcast_adapted(models)
    for model in models:  # models of tf_keras contain the vocabulary
        hvd.broadcast_variables(model.variables, 0)
    after = [m.predict(x, verbose=0) for m, x in zip(models, data, strict=True)]
    for values in after:
        assert_alike(values)
    same = [np.array_equal(a, b) for a, b in zip(before, after, strict=True)]
    assert same == [hvd.rank() == 0] * 2
    hvd.adapt(layer, share(numbers()) * 2)
    np.testing.assert_array_equal(models[0].predict(data[0], verbose=0), layer(data[0]))


@pytest.mark.ranks(2)
@LIBRARIES
def test_broadcast_adapted_reports_mismatches(library):
    layer, other = library.layers.Normalization(name="one"), library.layers.StringLookup()
    with pytest.raises(ValueError, match="neither an adaptable layer"):
        hvd.broadcast_adapted(7)
    with pytest.raises(ValueError, match="is not in the process set"):
        hvd.broadcast_adapted(layer, root_rank=hvd.size())
    with pytest.raises(ValueError, match=r"rank 0 passed 1 layers, rank 1 passed 2"):
        hvd.broadcast_adapted([layer, other][: 1 + (hvd.rank() > 0)])
    with pytest.raises(ValueError, match=r"'one'.*are incompatible: Normalization and StringLook"):
        hvd.broadcast_adapted([layer, other][hvd.rank() > 0])
    if hvd.rank() > 0:
        layer.adapt(numbers())
    with pytest.raises(
        ValueError, match=r"'one' is not adapted on rank 0, but layer .* on rank 1 is"
    ):
        hvd.broadcast_adapted(layer)
    layer.adapt(numbers()[:, : 2 + (hvd.rank() > 0)]) if hvd.rank() == 0 else None
    with pytest.raises(
        ValueError, match=r"are incompatible: .* of shape \(2,\) and .* of shape \(3,\)"
    ):
        hvd.broadcast_adapted(layer)
    hvd.broadcast_adapted(library.layers.Normalization())  # nothing to copy
