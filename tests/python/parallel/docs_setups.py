"""Names that the documentation's Python blocks use, and checks to run after the blocks."""

import contextlib
import os
import pathlib
import tempfile

import data_servers
import keras
import numpy as np
import tensorflow as tf

import tf_hvd as hvd
import tf_hvd.keras

EXAMPLES = 65  # with batches of 64, unevenly sharing ranks have unequal numbers of steps


def _assert_alike(values):
    first, *others = hvd.allgather_object([np.asarray(value).tobytes() for value in values])
    assert first
    assert all(other == first for other in others)


def _names():
    keras.utils.set_random_seed(hvd.rank())
    layers = [keras.layers.Dropout(0.5), keras.layers.Dense(3, activation="softmax")]
    images = np.random.default_rng(0).normal(size=(EXAMPLES, 4)).astype("float32")
    dataset = tf.data.Dataset.from_tensor_slices((images, np.arange(EXAMPLES) % 3))
    return {
        "tf": tf,
        "keras": keras,
        "hvd": hvd,
        "tf_hvd": tf_hvd,
        "model": keras.Sequential(layers),
        "optimizer": keras.optimizers.SGD(),
        "loss_of": keras.losses.SparseCategoricalCrossentropy(),
        "dataset": dataset,
        "this_ranks_share": hvd.shard(dataset).batch(16),
    }


@contextlib.contextmanager
def _plain():
    yield _names()


@contextlib.contextmanager
def _adapted():
    """Ends with a layer that has the same state on all ranks; otherwise the guard would raise."""
    features = np.random.default_rng(0).normal(size=(EXAMPLES, 4)).astype("float32")
    own = {"features": features, "this_ranks_features": features[hvd.rank() :: hvd.size()]}
    names = {**_names(), **own}
    yield names
    _assert_alike([names["layer"](features)])


@contextlib.contextmanager
def _training():
    """Ranks start from different weights, and must end with the same ones."""
    names = _names()
    yield names
    model, optimizer = names["model"], getattr(names["model"], "optimizer", names["optimizer"])
    _assert_alike([*model.weights, *optimizer.variables])
    assert int(optimizer.iterations) > 0
    # A broadcast of all variables gave all ranks the same dropout mask.
    for seed in (v for v in model.variables if "seed" in v.path):
        assert len({str(each) for each in hvd.allgather_object(seed.numpy())}) == hvd.size()


@contextlib.contextmanager
def _mixed_precision():
    """As `_training`; the policy that the block sets ends with it."""
    policy = keras.config.dtype_policy()
    try:
        with _training() as names:
            yield names
    finally:
        keras.config.set_dtype_policy(policy)


@contextlib.contextmanager
def _sparse():
    """As `_training`, with sequences of words."""
    with _training() as names:
        words = np.random.default_rng(hvd.rank()).integers(0, 1000, [EXAMPLES, 5])
        names |= {"words": words, "labels": np.arange(EXAMPLES) % 3}
        yield names


@contextlib.contextmanager
def _trained():
    names = _names()
    names["model"].build([None, 4])
    hvd.broadcast_variables(names["model"].variables, root_rank=0)
    yield names


@contextlib.contextmanager
def _evaluated():
    """Ends with the results and predictions of one process, on all ranks."""
    with _trained() as names:
        model = names["model"]
    features = np.random.default_rng(1).normal(size=(EXAMPLES, 4)).astype("float32")
    optimizer = tf_hvd.keras.DistributedOptimizer(names["optimizer"])
    model.compile(optimizer, names["loss_of"], metrics=["accuracy"])
    share = hvd.shard(names["dataset"], uneven="keep").batch(16)
    names |= {"features": features, "this_ranks_share": share}
    yield names
    whole = model.evaluate(names["dataset"].batch(16), verbose=0, return_dict=True)
    for name, value in whole.items():
        np.testing.assert_allclose(names["results"][name], value, rtol=1e-5)
    np.testing.assert_array_equal(names["predictions"], model.predict(features, verbose=0))


@contextlib.contextmanager
def _uneven():
    """A loop with a custom step; `variables` are the same on all ranks at its end."""
    calls = []
    variables = [tf.Variable(1.0 + hvd.rank())]
    yield {**_names(), "step": lambda *batch: calls.append(batch), "variables": variables}
    assert calls
    if hvd.rank() == 0:
        assert len(calls) == 1


@contextlib.contextmanager
def _masked():
    """Rank r has 1 + 3 r tokens in a batch of 7; the ranks' mean is that of all tokens."""
    rank, size = hvd.rank(), hvd.size()
    batches = [(np.arange(7.0) + 10 * r, np.arange(7) < 1 + 3 * r) for r in range(size)]
    losses, mask = batches[rank]
    names = {**_names(), "losses": tf.constant(losses), "mask": tf.cast(mask, tf.float64)}
    yield names
    expected = np.concatenate([values[kept] for values, kept in batches]).mean()
    np.testing.assert_allclose(hvd.allreduce(names["loss"]), expected, rtol=1e-12)


@contextlib.contextmanager
def _graph():
    """A v1 graph with a loss that differs between ranks."""
    rank = hvd.rank()
    with tf.Graph().as_default():
        start = tf.constant_initializer(rank + 1.0)
        weight = tf.compat.v1.get_variable("w", [], initializer=start)
        yield {"tf": tf, "hvd": hvd, "loss": weight * (rank + 1.0)}
        assert [
            op for op in tf.compat.v1.get_default_graph().get_operations() if "Horovod" in op.type
        ]


@contextlib.contextmanager
def _v1_optimizer():
    """A v1 optimizer in a graph."""
    with tf.Graph().as_default():
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
        names = {"tf": tf, "hvd": hvd, "optimizer": optimizer}
        yield names
        weight = tf.compat.v1.get_variable("w", [4, 4])
        names["optimizer"].minimize(tf.reduce_sum(weight))


@contextlib.contextmanager
def _gradients():
    variables, steps = [tf.Variable(1.0)], []
    with tf.GradientTape() as tape:
        loss = variables[0] * 3.0
    names = {"hvd": hvd, "plain_tape": tape, "loss": loss, "variables": variables}
    yield {**names, "apply": lambda: steps.append(1)}
    assert not steps  # after one of four passes


@contextlib.contextmanager
def _local_layer():
    head = keras.layers.Dense(3)
    head.build([None, 4])
    names = {**_names(), "head": head, "inputs": tf.ones([1, 4]) * (hvd.rank() + 1.0)}
    yield names
    kernel, bias = (gradient.numpy() for gradient in names["gradients"])
    # This rank's gradient, divided by the number of ranks; and the average of all.
    assert np.all(kernel == (hvd.rank() + 1.0) / hvd.size())
    assert np.all(bias == 1.0)


class _Module(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([])])
    def __call__(self, x):
        return hvd.broadcast(x, root_rank=0)


@contextlib.contextmanager
def _saved_graph():
    """`saved_model` in the current folder, and a GraphDef, each with a broadcast."""
    module = _Module()
    function = module.__call__.get_concrete_function()
    before = pathlib.Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        tf.saved_model.save(module, f"{folder}/saved_model", signatures=function)
        os.chdir(folder)
        try:
            names = {"tf_hvd": tf_hvd, "graph_def": function.graph.as_graph_def()}
            yield names
            assert 'op: "HorovodBroadcast"' in str(names["graph_def"])
            assert 'op: "HorovodBroadcast"' not in str(names["stripped"])
            assert tf.saved_model.load("stripped").signatures
        finally:
            os.chdir(before)


@contextlib.contextmanager
def _in_folder():
    """A folder that is the current folder of all ranks."""
    before = pathlib.Path.cwd()
    with tempfile.TemporaryDirectory() as mine:
        os.chdir(hvd.broadcast_object(mine))
        try:
            yield
            hvd.barrier()
        finally:
            os.chdir(before)


@contextlib.contextmanager
def _records():
    """Files of 100, 60 and 5 records; each record is seen, in equally many steps on all ranks."""
    calls = []
    with _in_folder():
        if hvd.rank() == 0:
            pathlib.Path("data").mkdir()
            for name, begin, end in (("a", 0, 100), ("b", 100, 160), ("c", 160, 165)):
                with tf.io.TFRecordWriter(f"data/train-{name}.tfrecord") as writer:
                    for number in range(begin, end):
                        writer.write(str(number))
        hvd.barrier()
        yield {"tf": tf, "hvd": hvd, "parse": tf.strings.to_number, "step": calls.append}
    everybody = hvd.allgather_object(np.array(calls))
    assert {batches.shape for batches in everybody} == {(2, 64)}
    assert set(np.concatenate(everybody).flat) == set(range(165))


@contextlib.contextmanager
def _images():
    """Ten images of two kinds; each is in the share of one rank."""
    with _in_folder():
        if hvd.rank() == 0:
            for number in range(10):
                folder = pathlib.Path("images", ("cats", "dogs")[number % 2])
                folder.mkdir(parents=True, exist_ok=True)
                image = tf.io.encode_png(np.full([8, 8, 3], number, np.uint8))
                (folder / f"{number}.png").write_bytes(image.numpy())
        hvd.barrier()
        names = _names()
        yield names
        for kind in ("from_files", "from_list", "from_folders"):
            mine = []
            for images, labels in names[kind]:
                mine += [int(number) for number in images[:, 0, 0, 0]]
                assert [number % 2 for number in mine[-len(labels) :]] == labels.numpy().tolist()
            first, second = hvd.allgather_object(mine)
            assert sorted(first + second) == list(range(10))


@contextlib.contextmanager
def _arrays():
    """Mapped files of 200 rows; each row is seen."""
    calls = []
    with _in_folder():
        if hvd.rank() == 0:
            np.save("images.npy", np.zeros([200, 2, 2], np.float32))
            np.save("labels.npy", np.arange(200))
        hvd.barrier()
        yield {"np": np, "hvd": hvd, "step": lambda *batch: calls.append(batch[1])}
    everybody = hvd.allgather_object(np.concatenate(calls).tolist())
    assert sorted(everybody[0] + everybody[1]) == list(range(200))


@contextlib.contextmanager
def _service():
    with data_servers.running() as target, _training() as names:
        model = names["model"]
        optimizer = hvd.DistributedOptimizer(names["optimizer"])
        model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy")
        yield {**names, "target": target, "examples": EXAMPLES}
        assert int(model.optimizer.iterations) > 0


def _with_folder(setup):
    @contextlib.contextmanager
    def entered():
        with tempfile.TemporaryDirectory() as mine:
            folder = hvd.broadcast_object(mine, root_rank=0)
            with setup() as names:
                names["folder"] = folder
                yield names
            hvd.barrier()
            assert any(pathlib.Path(folder).iterdir())
            hvd.barrier()

    return entered


SETUPS = {
    "names": _plain,
    "names with a folder": _with_folder(_plain),
    "job": _plain,
    "adapted": _adapted,
    "training": _training,
    "compiled": _training,
    "mixed precision": _mixed_precision,
    "sparse": _sparse,
    "trained": _trained,
    "evaluated": _evaluated,
    "training with a folder": _with_folder(_training),
    "uneven": _uneven,
    "masked": _masked,
    "graph": _graph,
    "graph with a folder": _with_folder(_graph),
    "v1 optimizer": _v1_optimizer,
    "gradients": _gradients,
    "local layer": _local_layer,
    "saved graph": _saved_graph,
    "records": _records,
    "images": _images,
    "arrays": _arrays,
    "tf.data service": _service,
}
