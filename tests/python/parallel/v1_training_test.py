"""v1 graphs: R ranks with a share of each batch have the weights of one with all of it."""

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd

pytestmark = pytest.mark.framework

v1 = tf.compat.v1
STEPS, BATCH, FEATURES, WORDS, PASSES = 4, 24, 4, 6, 4

OPTIMIZERS = {
    "sgd": lambda: v1.train.MomentumOptimizer(0.1, momentum=0.9),
    "adam": lambda: v1.train.AdamOptimizer(0.02),
    "rmsprop": lambda: v1.train.RMSPropOptimizer(0.02, momentum=0.5),
}


def data(case):
    """Features and labels of each update: lists of arrays with the whole batch."""
    generator = np.random.default_rng(3)
    rows = BATCH * (PASSES if case == "accumulation" else 1)
    if case == "sparse":
        features = generator.integers(0, WORDS, (STEPS, rows, FEATURES))
        return features, features.sum(axis=2, keepdims=True) / 10.0
    features = generator.standard_normal((STEPS, rows, FEATURES))
    return features, np.sin(features.sum(axis=2, keepdims=True))


def parts(array, case, distributed):
    """What one worker computes in each pass of an update."""
    if not distributed:
        return [array]
    passes = np.split(array, PASSES) if case == "accumulation" else [array]
    rows = BATCH // hvd.size()
    return [p[hvd.rank() * rows : (hvd.rank() + 1) * rows] for p in passes]


def build(case):
    """The graph's inputs and its loss."""
    generator = np.random.default_rng(7)

    def weight(name, shape):
        initial = generator.standard_normal(shape) * 0.3
        return v1.get_variable(name, initializer=initial, use_resource=True)

    y = v1.placeholder(tf.float64, [None, 1])
    if case == "sparse":
        x = v1.placeholder(tf.int64, [None, FEATURES])
        looked_up = tf.nn.embedding_lookup(weight("table", (WORDS, 2)), x)
        hidden = tf.reshape(looked_up, [-1, 2 * FEATURES])
    else:
        x = v1.placeholder(tf.float64, [None, FEATURES])
        hidden = tf.tanh(x @ weight("hidden", (FEATURES, 2 * FEATURES)))
    made = hidden @ weight("out", (2 * FEATURES, 1))
    return x, y, tf.reduce_mean(tf.square(made - y))


def train(name, case, distributed):
    """The weights at the end, and the number of updates."""
    with tf.Graph().as_default(), v1.Session() as session:
        x, y, loss = build(case)
        optimizer = OPTIMIZERS[name]()
        if distributed:
            passes = PASSES if case == "accumulation" else 1
            optimizer = hvd.DistributedOptimizer(
                optimizer, backward_passes_per_step=passes, average_aggregated_gradients=True
            )
        pairs = optimizer.compute_gradients(loss)
        if case == "clipnorm":
            clipped, _ = tf.clip_by_global_norm([g for g, _ in pairs], 0.01)
            pairs = [(g, v) for g, (_, v) in zip(clipped, pairs, strict=True)]
        step = v1.train.get_or_create_global_step()
        update = optimizer.apply_gradients(pairs, global_step=step)
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        for features, labels in zip(*data(case), strict=True):
            both = (parts(array, case, distributed) for array in (features, labels))
            for part_x, part_y in zip(*both, strict=True):
                session.run(update, {x: part_x, y: part_y})
        return session.run([v1.trainable_variables(), step])


@pytest.mark.parametrize("case", ["plain", "accumulation", "clipnorm", "sparse"])
@pytest.mark.parametrize("name", list(OPTIMIZERS))
def test_ranks_train_as_one_worker(name, case):
    expected, steps = train(name, case, distributed=False)
    weights, updates = train(name, case, distributed=True)
    assert updates == steps == STEPS
    for weight, value in zip(weights, expected, strict=True):
        np.testing.assert_allclose(weight, value, rtol=0, atol=1e-9)
    everybody = hvd.allgather_object([weight.tobytes() for weight in weights])
    assert all(other == everybody[0] for other in everybody)


def test_a_meta_graph_with_passes_can_be_imported(tmp_path):
    """Its collection of train ops named one in the branch that applies the sums."""
    file = str(tmp_path / "model.meta")
    with tf.Graph().as_default():
        _, _, loss = build("dense")
        optimizer = v1.train.AdagradOptimizer(0.1)
        train = hvd.DistributedOptimizer(optimizer, backward_passes_per_step=2).minimize(loss)
        v1.train.export_meta_graph(file)
    with tf.Graph().as_default() as graph:
        v1.train.import_meta_graph(file)
        assert v1.get_collection(v1.GraphKeys.TRAIN_OP) == [
            graph.get_operation_by_name(train.op.name)
        ]
