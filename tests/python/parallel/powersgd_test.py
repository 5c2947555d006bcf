"""PowerSGD: low-rank compression with error feedback."""

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd

pytestmark = pytest.mark.framework

v1 = tf.compat.v1


def low_rank(rank, number, shape=(24, 32), columns=1):
    """A rank's gradient of low rank, with small integers; the sum over ranks has a higher rank."""
    random = np.random.default_rng([rank, number])
    left = random.integers(-4, 5, (shape[0], columns))
    return (left @ random.integers(-4, 5, (columns, shape[1]))).astype(np.float64)


def reduce_with(compression, gradients, variables):
    """A tape's results for a loss with these gradients."""
    with tf.GradientTape() as tape:
        losses = [tf.reduce_sum(v * g) for v, g in zip(variables, gradients, strict=True)]
        loss = tf.add_n(losses)
    tape = hvd.DistributedGradientTape(tape, compression=compression)
    return tape.gradient(loss, variables)


def mean(size, number, **options):
    return sum(low_rank(rank, number, **options) for rank in range(size)) / size


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
def test_gradients_of_low_rank_are_exact(rank, size, in_function):
    """The mean of `size` matrices of rank 1 has rank `size`, so the approximation is exact."""
    variable = tf.Variable(tf.zeros([24, 32], tf.float64))
    compression = hvd.PowerSGD(rank=size, min_ratio=1.0)

    def call(gradient):
        return reduce_with(compression, [gradient], [variable])[0]

    if in_function:
        call = tf.function(call, autograph=False)
    for number in range(3):
        result = call(tf.constant(low_rank(rank, number))).numpy()
        np.testing.assert_allclose(result, mean(size, number), rtol=0, atol=1e-9)


def test_all_ranks_have_the_same_bits(rank):
    variables = [tf.Variable(tf.zeros(s)) for s in ([64, 48], [3, 3, 16, 32], [48])]
    compression = hvd.PowerSGD(rank=2)
    for step in range(4):
        random = np.random.default_rng([rank, step])
        gradients = [random.normal(size=v.shape).astype(np.float32) for v in variables]
        results = reduce_with(compression, gradients, variables)
        texts = hvd.allgather_object([r.numpy().tobytes() for r in results])
        assert all(text == texts[0] for text in texts)
        exact = hvd.allreduce(tf.constant(gradients[2]), name="exact")
        np.testing.assert_array_equal(results[2], exact)  # a vector is not compressed


@pytest.mark.ranks(2)
def test_approximation_errors_are_added_later(rank, size):
    """Error feedback: the sum of many approximations approaches the sum of the averages."""
    variable = tf.Variable(tf.zeros([24, 32], tf.float64))
    with_feedback = hvd.PowerSGD(rank=1, min_ratio=1.0)
    without = hvd.PowerSGD(rank=1, min_ratio=1.0, error_feedback=False)
    steps = 60
    gradient = low_rank(rank, 0, columns=3)
    target = mean(size, 0, columns=3)
    sums = [np.zeros_like(target), np.zeros_like(target)]
    for _ in range(steps):
        for total, compression in zip(sums, (with_feedback, without), strict=True):
            total += reduce_with(compression, [gradient], [variable])[0].numpy()
    errors = [np.linalg.norm(total / steps - target) / np.linalg.norm(target) for total in sums]
    assert errors[0] < 0.2
    assert errors[1] > 2 * errors[0]


@pytest.mark.ranks(2)
def test_fewer_numbers_are_sent(monkeypatch):
    sent = []
    original = hvd.collectives.collectives.reduce_group

    def record(tensors, *arguments, **options):
        sent.extend(int(np.prod(t.shape)) for t in tensors)
        return original(tensors, *arguments, **options)

    monkeypatch.setattr(hvd.collectives.collectives, "reduce_group", record)
    variable = tf.Variable(tf.zeros([200, 300]))
    reduce_with(hvd.PowerSGD(rank=4), [np.ones((200, 300), np.float32)], [variable])
    assert sorted(sent) == [4 * 200, 4 * 300]


def test_training_ends_where_the_uncompressed_one_does(rank, size):
    """Linear regression with 16 x 16 weights; both reach a loss below a thousandth of the first."""
    random = np.random.default_rng(0)
    x = random.normal(size=(32 * size, 16))
    truth = random.normal(size=(16, 16))
    mine = slice(32 * rank, 32 * (rank + 1))
    x, y = tf.constant(x[mine]), tf.constant((x @ truth)[mine])

    def train(compression):
        weights = tf.Variable(tf.zeros([16, 16], tf.float64))

        @tf.function
        def step():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ weights - y) ** 2)
            tape = hvd.DistributedGradientTape(tape, compression=compression)
            weights.assign_sub(2.0 * tape.gradient(loss, weights))
            return loss

        losses = [float(step()) for _ in range(150)]
        assert len(set(hvd.allgather_object(weights.numpy().tobytes()))) == 1
        return losses

    for compression in (hvd.Compression.none, hvd.PowerSGD(rank=2, min_ratio=1.0)):
        losses = train(compression)
        assert losses[-1] < 1e-3 * losses[0]


def test_v1_graph_and_its_checkpoint(rank, size):
    with tf.Graph().as_default(), v1.Session() as session:
        variable = v1.get_variable("w", initializer=tf.zeros([24, 32], tf.float64))
        given = v1.placeholder(tf.float64, [24, 32])
        optimizer = hvd.DistributedOptimizer(
            v1.train.GradientDescentOptimizer(1.0),
            compression=hvd.PowerSGD(rank=size, min_ratio=1.0),
        )
        train = optimizer.minimize(tf.reduce_sum(variable * given))
        session.run([v1.global_variables_initializer(), v1.local_variables_initializer()])
        session.run(train, {given: low_rank(rank, 0)})
        np.testing.assert_allclose(session.run(variable), -mean(size, 0), rtol=0, atol=1e-9)
        assert not [v for v in v1.global_variables() if "powersgd" in v.op.name]


def test_embeddings_are_reduced_as_usual(rank, size):
    table = tf.Variable(tf.zeros([6, 2]))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(tf.nn.embedding_lookup(table, [rank, rank + 1]))
    tape = hvd.DistributedGradientTape(tape, compression=hvd.PowerSGD(), op=hvd.Average)
    gradient = tf.convert_to_tensor(tape.gradient(loss, table)).numpy()
    expected = np.zeros((6, 2), np.float32)
    for other in range(size):
        expected[[other, other + 1]] += np.float32(1)
    np.testing.assert_array_equal(gradient, expected / np.float32(size))


@pytest.mark.ranks(2)
def test_invalid_arguments_of_powersgd():
    with pytest.raises(ValueError, match="at least 1"):
        hvd.PowerSGD(rank=0)
    for options in ({"op": hvd.Sum}, {"gradient_predivide_factor": 2.0}):
        with pytest.raises(ValueError, match="PowerSGD"):
            hvd.DistributedGradientTape(tf.GradientTape(), compression=hvd.PowerSGD(), **options)
    compression = hvd.PowerSGD(rank=1, min_ratio=1.0)
    unknown = tf.function(lambda g: compression.average([g], [g], None))
    with pytest.raises(ValueError, match="needs gradients with known shapes"):
        unknown.get_concrete_function(tf.TensorSpec([None, 8]))


@pytest.mark.parametrize("in_function", [False, True], ids=["eager", "function"])
def test_each_variable_has_a_separate_state(rank, in_function):
    """Two lists of equal shapes used alternately, and a list that shrinks, as if separate."""
    lists = [[tf.Variable(tf.zeros([24, 32], tf.float64)) for _ in range(2)] for _ in range(2)]
    shared = hvd.PowerSGD(rank=1, min_ratio=1.0)
    single = [hvd.PowerSGD(rank=1, min_ratio=1.0) for _ in lists]

    def reduce_by(compression, variables):
        def call(*gradients):
            return reduce_with(compression, gradients, variables)

        return tf.function(call, autograph=False) if in_function else call

    calls = [
        (reduce_by(shared, variables), reduce_by(own, variables))
        for variables, own in zip(lists, single, strict=True)
    ]
    for number in range(4):
        for which, (together, apart) in enumerate(calls):
            gradients = [tf.constant(low_rank(rank, 10 * number + 2 * which + i)) for i in (0, 1)]
            for one, other in zip(together(*gradients), apart(*gradients), strict=True):
                np.testing.assert_array_equal(one, other)
    # Only the second variable continues, as when a layer is frozen.
    last = tf.constant(low_rank(rank, 99))
    both = reduce_by(single[0], lists[0])(last, last)[1]
    np.testing.assert_array_equal(reduce_by(shared, lists[0][1:])(last)[0], both)


def test_states_of_tensors_depend_on_position(rank):
    """A source that is not a variable is another object in each step."""
    compression = hvd.PowerSGD(rank=1, min_ratio=1.0)
    variable = tf.Variable(tf.zeros([24, 32], tf.float64))
    others = [hvd.PowerSGD(rank=1, min_ratio=1.0), hvd.PowerSGD(rank=1, min_ratio=1.0)]

    def reduce_tensor(compression, gradient, beside):
        x = tf.zeros([24, 32], tf.float64)
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(x * gradient) + sum(tf.reduce_sum(v * gradient) for v in beside)
        tape = hvd.DistributedGradientTape(tape, compression=compression)
        return tape.gradient(loss, [x, *beside])[0]

    for number in range(3):
        for beside, own in zip(([], [variable]), others, strict=True):
            gradient = low_rank(rank, 2 * number + len(beside))
            np.testing.assert_array_equal(
                reduce_tensor(compression, gradient, beside), reduce_tensor(own, gradient, beside)
            )
