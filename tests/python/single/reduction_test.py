"""The division of gradients into requests, and invalid options of optimizers and tapes."""

import dataclasses
import gc
import inspect
import warnings
import weakref

import keras
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import tf_hvd as hvd
from tf_hvd.collectives.options import ReductionOptions
from tf_hvd.core import config
from tf_hvd.core.tensorflow_hooks import verbatim
from tf_hvd.horovod import helpers
from tf_hvd.keras import compat
from tf_hvd.training import buckets, reduction

F, D = "float32", "float64"
MIB = 1 << 20


SEVEN_EIGHTHS = tuple(
    tuple(range(8 * eighth + 7, 8 * eighth - 1, -1)) for eighth in range(7, 0, -1)
)


@pytest.mark.parametrize(
    ("specs", "limit", "plan"),
    [
        ([], 10, ()),
        ([None, None], 10, ()),
        ([(F, 4)], 10, ((0,),)),
        ([(F, 4), (F, 4), (F, 4)], 8, ((2, 1), (0,))),
        ([(F, 4), (F, 40), (F, 4)], 8, ((2, 0), (1,))),
        ([(F, 4), None, (F, 4)], 8, ((2, 0),)),
        ([(F, 4), (D, 8), (F, 4), (D, 8)], 16, ((3, 1), (2, 0))),
        ([(F, 4), (F, None), (F, 4)], 8, ((2, 0), (1,))),
        ([(F, 0)] * 3, 1, ((2, 1, 0),)),
        # Each has an eighth of all gradients, but at least 1 MiB.
        (
            [(F, 2 * MIB)] * 16,
            64 * MIB,
            (*((i, i - 1) for i in range(15, 1, -2)), (1,), (0,)),
        ),
        # The last bucket is cut in halves, down to 1 MiB.
        ([(F, MIB)] * 64, 64 * MIB, (*SEVEN_EIGHTHS, (7, 6, 5, 4), (3, 2), (1,), (0,))),
        ([(F, MIB // 2)] * 4, 64 * MIB, ((3, 2), (1, 0))),
        ([(F, 100), (F, 4 * MIB), (F, 100)], 64 * MIB, ((2, 0), (1,))),
    ],
)
def test_buckets(specs, limit, plan):
    assert buckets.plan_buckets(specs, limit) == plan


SPECS = st.lists(
    st.none() | st.tuples(st.sampled_from([F, D]), st.none() | st.integers(0, 50)), max_size=30
)


@given(SPECS, st.integers(1, 60))
def test_buckets_contain_every_gradient_once(specs, limit):
    plan = buckets.plan_buckets(specs, limit)
    held = sorted(i for bucket in plan for i in bucket)
    assert held == [i for i, spec in enumerate(specs) if spec is not None]
    for bucket in plan:
        assert len({specs[i][0] for i in bucket}) == 1
        assert list(bucket) == sorted(bucket, reverse=True)
        sizes = [limit if specs[i][1] is None else specs[i][1] for i in bucket]
        assert len(bucket) == 1 or sum(sizes) <= limit


@given(SPECS, st.integers(1, 40))
def test_chunks_contain_every_gradient_once(specs, chunks):
    plan = buckets.plan_chunks(specs, chunks)
    held = [i for bucket in plan for i in bucket]
    assert sorted(held) == [i for i, spec in enumerate(specs) if spec is not None]
    assert all(bucket for bucket in plan)


def test_chunks():
    specs = [(F, 4)] * 5
    assert buckets.plan_chunks(specs, 2) == ((0, 1, 2), (3, 4))
    assert buckets.plan_chunks([*specs[:3], (D, 8)], 1) == ((0, 1, 2), (3,))


def test_groups_of_variables():
    a, b, c, d = (tf.Variable([1.0], name="same") for _ in range(4))
    specs = [(F, 4), (F, 4), None, (F, 4)]
    groups = [[d, a], [c]]
    assert buckets.plan_groups(specs, [a, b, c, d], groups) == ((0, 3), (1,))
    with pytest.raises(ValueError, match="two groups"):
        buckets.plan_groups(specs, [a, b, c, d], [[a], [a]])


def test_groups_of_keras_variables():
    a, b = keras.Variable([1.0]), keras.Variable([2.0])
    assert buckets.plan_groups([(F, 4)] * 2, [a, b.value], [[b, a]]) == ((0, 1),)


@pytest.mark.parametrize("groups", [0, -1, True, "x", [1, 2], 1.5])
def test_invalid_groups(groups):
    with pytest.raises(ValueError, match="groups="):
        hvd.DistributedGradientTape(tf.GradientTape(), groups=groups)


def test_num_groups_is_deprecated():
    with pytest.warns(DeprecationWarning, match="groups="):
        hvd.DistributedGradientTape(tf.GradientTape(), num_groups=2)


def test_deprecation_warnings_name_the_programs_line():
    """Not at lines of this package, nor of TensorFlow's wrapper around its functions."""
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        hvd.DistributedGradientTape(tf.GradientTape(), num_groups=2)
        hvd.DistributedOptimizer(optimizer, num_groups=2)
        hvd.DistributedOptimizer(keras.optimizers.SGD(), num_groups=2)
        helpers.handle_average_backwards_compatibility(None, True)
    ours = [each for each in caught if "deprecated" in str(each.message)]
    assert [each.filename for each in ours] == [__file__] * 4


def test_reduction_options_are_checked_once():
    options = ReductionOptions(op=hvd.Sum, groups=[[]])
    assert {options: 1}[ReductionOptions(op=hvd.Sum, groups=3)] == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.op = hvd.Average
    with pytest.raises(ValueError, match="PowerSGD needs op=Average"):
        ReductionOptions(op=hvd.Sum, compression=hvd.PowerSGD())
    with pytest.raises(ValueError, match="optimizer or a tape"):
        hvd.allreduce([1.0], compression=hvd.PowerSGD())
    divided = ReductionOptions.of_gradients(gradient_predivide_factor=4.0)
    assert (divided.prescale_factor, divided.postscale_factor) == (0.25, 4.0)


def test_verbatim_shows_signature_and_defaults():
    """`__defaults__` was None, and getfullargspec saw (*args, **kwargs)."""

    def plain(a, b=2, *, c=3, d):
        """Doc."""
        return a, b, c, d

    wrapped = verbatim(plain)
    assert wrapped is not plain
    assert (wrapped.__defaults__, wrapped.__kwdefaults__) == ((2,), {"c": 3})
    assert (wrapped.__wrapped__, wrapped.__name__, wrapped.__doc__) == (plain, "plain", "Doc.")
    for follow in (True, False):
        signature = inspect.signature(wrapped, follow_wrapped=follow)
        assert str(signature) == "(a, b=2, *, c=3, d)"
    assert inspect.getfullargspec(wrapped) == inspect.getfullargspec(plain)
    # The defaults can be read; a call uses those of the function.
    assert wrapped(1, d=4) == (1, 2, 3, 4)
    assert wrapped(1, 5, c=6, d=4) == (1, 5, 6, 4)
    with pytest.raises(TypeError, match="'d'"):
        wrapped(1)


def test_verbatim_of_a_method():
    signature = inspect.signature(hvd.DistributedGradientTape(tf.GradientTape()).gradient)
    assert [*signature.parameters][:3] == ["target", "sources", "output_gradients"]


def test_public_functions_show_their_defaults():
    names = inspect.signature(hvd.allreduce).parameters
    assert len(hvd.allreduce.__defaults__) == len(names) - 2  # tensor, and sparse by keyword
    assert hvd.allreduce.__kwdefaults__ == {"sparse": None}
    assert hvd.broadcast.__defaults__[:2] == (None, False)


@pytest.mark.parametrize("make", [hvd.DistributedGradientTape, hvd.DistributedOptimizer])
def test_invalid_arguments(make):
    inner = (
        tf.GradientTape()
        if make is hvd.DistributedGradientTape
        else tf.compat.v1.train.GradientDescentOptimizer(0.1)
    )
    with pytest.raises(ValueError, match="op=Average"):
        make(inner, op=hvd.Sum, gradient_predivide_factor=2.0)
    with pytest.raises(ValueError, match="not a reduce op"):
        make(inner, op=9)
    with pytest.raises(ValueError, match=r"sparse='both'.*'auto', 'rows', 'dense'"):
        make(inner, sparse="both")


@pytest.mark.parametrize("optimizer", [keras.optimizers.SGD, keras.optimizers.Adam])
def test_keras_optimizers_are_always_wrapped(optimizer):
    made = optimizer()
    assert hvd.DistributedOptimizer(made) is made
    assert compat.synchronizer_of(made) is not None


def test_other_objects_are_not_optimizers():
    with pytest.raises(ValueError, match="not an optimizer"):
        hvd.DistributedOptimizer(3)


def test_invalid_optimizer_options():
    inner = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    with pytest.raises(ValueError, match="at least 1"):
        hvd.DistributedOptimizer(inner, backward_passes_per_step=0)
    with pytest.raises(ValueError, match="twice"):
        hvd.DistributedOptimizer(hvd.DistributedOptimizer(inner))


def test_bucket_size_from_the_environment(monkeypatch):
    monkeypatch.delenv("TF_HVD_BUCKET_BYTES", raising=False)
    assert config.BUCKET_BYTES.read() == 32 << 20
    monkeypatch.setenv("TF_HVD_BUCKET_BYTES", " 1024 ")
    assert config.BUCKET_BYTES.read() == 1024
    for wrong in ("0", "-5", "1k", "1.5"):
        monkeypatch.setenv("TF_HVD_BUCKET_BYTES", wrong)
        with pytest.raises(ValueError, match=r"TF_HVD_BUCKET_BYTES.*33554432"):
            config.BUCKET_BYTES.read()


def test_sparse_mode_from_the_environment(monkeypatch):
    monkeypatch.delenv("TF_HVD_SPARSE", raising=False)
    assert config.SPARSE.read() == "auto"
    monkeypatch.setenv("TF_HVD_SPARSE", " rows ")
    assert config.SPARSE.read() == "rows"
    monkeypatch.setenv("TF_HVD_SPARSE", "both")
    with pytest.raises(ValueError, match=r"TF_HVD_SPARSE='both'.*auto, rows, dense"):
        config.SPARSE.read()


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("dense/kernel", "dense/kernel"),
        ("dense_3/kernel", "dense/kernel"),
        ("model_1/block2_a_12/bias_0", "block2_a/bias"),
        ("layer2/w3", "layer2/w3"),
    ],
)
def test_compared_names_contain_no_counters(path, name):
    assert reduction.member_name(tf.Variable(1.0, name=path)) == name


def test_compared_names_of_keras_variables_and_tensors():
    layers = [keras.layers.Dense(1), keras.layers.Dense(1)]
    for layer in layers:
        layer.build((None, 2))
    assert {reduction.member_name(layer.kernel) for layer in layers} == {"dense/kernel"}
    assert reduction.member_name(tf.constant(1.0)) == ""


def test_a_single_rank_sends_nothing_and_sums_duplicate_rows():
    hvd.init()
    table, weights = tf.Variable(tf.ones([4, 2])), tf.Variable([1.0])
    slices = tf.IndexedSlices(tf.ones([2, 2]), tf.constant([3, 3]))
    dense = tf.constant([0.1])
    reducer = reduction.GradientReducer("Alone", ReductionOptions(compression=hvd.Compression.fp16))
    sparse, same, none = reducer.reduce([slices, dense, None], [table, weights, weights])
    assert (same is dense, none) == (True, None)
    assert sparse.indices.numpy().tolist() == [3]
    assert sparse.values.numpy().tolist() == [[2, 2]]
    assert sparse.dense_shape.numpy().tolist() == [4, 2]  # the variable's shape
    as_dense = reduction.GradientReducer("Alone", ReductionOptions(sparse_as_dense=True))
    assert as_dense.reduce([slices], [table])[0].numpy().tolist() == [[0, 0]] * 3 + [[2, 2]]
    with tf.Graph().as_default() as graph:
        reducer.reduce([tf.constant([1.0])], [None])
    assert {op.type for op in graph.get_operations()} == {"Const"}


def test_variables_in_groups_are_not_kept(monkeypatch):
    """The cached function that reduces in eager mode kept the first model's variables."""
    hvd.init()
    monkeypatch.setattr(reduction.GradientReducer, "is_alone", lambda self: False)
    variable = tf.Variable([1.0])
    gone = weakref.ref(variable)
    options = ReductionOptions.of_gradients(groups=[[variable]])
    reducer = reduction.GradientReducer("Grouped", options)
    assert reducer.reduce([tf.constant([2.0])], [variable])[0].numpy().tolist() == [2.0]
    del variable, options, reducer
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize(
    ("name", "narrow"), [("none", None), ("fp16", tf.float16), ("bf16", tf.bfloat16)]
)
def test_compressors(name, narrow):
    compressor = getattr(hvd.Compression, name)
    for dtype in (tf.float64, tf.float32, tf.float16, tf.bfloat16, tf.int64):
        tensor = tf.cast([1, 2, 3], dtype)
        sent, context = compressor.compress(tensor)
        wide = dtype in (tf.float32, tf.float64)
        assert sent.dtype == (narrow if wide and narrow else dtype)
        back = compressor.decompress(sent, context)
        assert back.dtype == dtype
        assert tf.reduce_all(back == tensor)
