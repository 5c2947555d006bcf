"""The models and optimizers of training programs, for both versions of Keras."""

import keras
import numpy as np
import tensorflow as tf
import tf_keras
from training_data import FEATURES, WORDS

from tf_hvd.keras.sync_batch_norm import synchronized

LIBRARIES = {"keras": keras, "tf_keras": tf_keras}
WIDTH, COLUMNS = 4, 2
RATES = {"SGD": 0.1, "Adagrad": 0.1, "Lion": 0.01}


class Weights:
    """A model that consists of variables and a function, with the methods that loops need.

    The variables come in two halves of equal shapes.

    Args:
      make: makes a variable from an array.
    """

    losses = ()

    def __init__(self, program, seed, make):
        generator = np.random.default_rng(seed)
        table = program.model == "table"
        inner = (WORDS, COLUMNS) if table else (FEATURES, WIDTH)
        outer = (3 * COLUMNS if table else WIDTH, 1)
        if program.model == "linear":
            drawn = [generator.integers(-4, 5, (FEATURES, 1)).astype("float32") for _ in "ab"]
        else:
            drawn = [generator.standard_normal(s) * 0.4 for s in (inner, outer) * 2]
        self.kind = program.model
        self.trainable_variables = [make(array, f"w{i}") for i, array in enumerate(drawn)]
        self.variables = self.trainable_variables
        self.optimizer = None

    def __call__(self, x, training=False):
        w = [tf.convert_to_tensor(v) if self.kind != "table" else v for v in self.variables]
        if self.kind == "linear":
            return x @ w[0] + (x * x) @ w[1]
        if self.kind == "table":
            w = [getattr(v, "value", v) if isinstance(v, keras.Variable) else v for v in w]
            looked_up = [
                tf.reshape(tf.nn.embedding_lookup(v, x), [-1, 3 * COLUMNS]) for v in (w[0], w[2])
            ]
            return tf.tanh(looked_up[0]) @ w[1] + looked_up[1] @ w[3]
        return tf.tanh(x @ w[0]) @ w[1] + tf.sin(x @ w[2]) @ w[3]

    def get_weights(self):
        return [np.asarray(v) for v in self.variables]


def loss_rows(program, made, y):
    """The loss of each row."""
    if program.model == "linear":
        return tf.reduce_sum(made * y, axis=1)
    pairs = zip(made, y, strict=True) if isinstance(y, tuple) else [(made, y)]
    return tf.add_n([tf.reduce_mean(tf.square(tf.cast(m, t.dtype) - t), axis=1) for m, t in pairs])


def make_variable(program):
    """Makes a trainable variable of the program's library."""
    if program.library == "keras":
        return lambda array, name: keras.Variable(array, dtype=array.dtype.name, name=name)
    return lambda array, name: tf.Variable(array, name=name)


def make_model(program, seed, distributed, kind=None):
    """A model with initial weights from a seed, which are the same for each caller.

    Args:
      distributed: whether batch normalization is across all ranks.
      kind: the subclass of Model to create.
    """
    if not program.in_layers:
        return Weights(program, seed, make_variable(program))
    library = LIBRARIES[program.library]
    initial = _initializers(library, seed)
    chain = _chain(program, library, initial, distributed)
    if "late" in program.layers and distributed:
        return library.Sequential(chain)
    if program.model == "embedding":
        inputs = library.Input([3], dtype="int64")
    else:
        inputs = library.Input([FEATURES])
    middle = inputs
    for layer in chain[:-1]:
        middle = layer(middle)
    outputs = chain[-1](middle)
    if "two_outputs" in program.layers:
        second = library.layers.Dense(1, kernel_initializer=next(initial), name="out2")
        outputs = [outputs, second(middle)]
    return (kind or library.Model)(inputs, outputs)


def _initializers(library, seed):
    number = 100 * seed
    while True:
        number += 1
        yield library.initializers.RandomUniform(-0.6, 0.6, seed=number)


def _chain(program, library, initial, distributed):
    """The layers in sequence."""
    layers = library.layers
    regularizer = library.regularizers.L2(0.02) if "l2" in program.layers else None
    adapted = "adapted" in program.layers
    if program.model == "embedding":
        rows = WORDS + adapted  # one row is for words outside the vocabulary
        chain = [
            layers.Embedding(rows, COLUMNS, embeddings_initializer=next(initial), name="first"),
            layers.Flatten(),
        ]
    else:
        # No bias: before a normalization its gradient would be pure noise.
        chain = [
            layers.Dense(WIDTH, use_bias=False, kernel_initializer=next(initial), name="first")
        ]
    if adapted:
        kind = layers.IntegerLookup if program.model == "embedding" else layers.Normalization
        chain.insert(0, kind(name="adapted"))
    if "sync_batch_norm" in program.layers:
        plain = layers.BatchNormalization
        normal = synchronized(plain) if distributed else plain
        chain.append(normal(momentum=0.5, name="norm"))
    if "batch_norm" in program.layers:
        chain.append(layers.BatchNormalization(name="norm", trainable=False))
    chain.append(
        layers.Dense(
            WIDTH,
            activation="tanh",
            kernel_initializer=next(initial),
            kernel_regularizer=regularizer,
            name="hidden",
            trainable="frozen" not in program.layers,
        )
    )
    if "dropout" in program.layers:
        chain.append(layers.Dropout(0.0, name="drop"))
    chain.append(layers.Dense(1, kernel_initializer=next(initial), name="out"))
    return chain


def make_optimizer(program):
    """A plain Keras optimizer."""
    library = LIBRARIES[program.library]
    options = dict(program.options)
    if options.get("use_ema"):
        options.update(ema_momentum=0.5, ema_overwrite_frequency=2)
    rate = 0.5 if program.model == "linear" else RATES.get(program.optimizer, 0.02)
    kind = getattr(library.optimizers, program.optimizer)
    return overriding(program.override, kind)(learning_rate=rate, **options)


def overriding(name, base):
    """A subclass of an optimizer that clips in an overridden method; `base` without a name."""

    def clipped(gradient):
        return None if gradient is None else tf.clip_by_norm(gradient, 0.05)

    class InApply(base):
        def apply(self, grads, trainable_variables=None):
            return super().apply([clipped(g) for g in grads], trainable_variables)

    class InApplyGradients(base):
        def apply_gradients(self, grads_and_vars, *args, **kwargs):
            pairs = [(clipped(g), v) for g, v in grads_and_vars]
            return super().apply_gradients(pairs, *args, **kwargs)

    class OwnUpdate(base):
        def apply(self, grads, trainable_variables=None):
            for gradient, variable in zip(grads, trainable_variables, strict=True):
                if gradient is not None:
                    variable.assign_sub(0.1 * tf.convert_to_tensor(clipped(gradient)))
            self._iterations.assign_add(1)

    kinds = {
        "": base,
        "apply": InApply,
        "apply_gradients": InApplyGradients,
        "own_update": OwnUpdate,
    }
    return kinds[name]


def lists_of(program, model):
    """The lists of variables that are trained one after the other."""
    variables = list(model.trainable_variables)
    if program.lists == "one":
        return [variables]
    half = len(variables) // 2
    return [variables[:half], variables[half:]]


def weights_of(program, model):
    """The arrays of its layers, without metrics."""
    if not program.in_layers:
        return model.get_weights()
    return [array for layer in model.layers for array in layer.get_weights()]


def set_precision(program):
    """Sets the number format of both Keras versions; None: their default."""
    policy = "float32" if program is None or program.model == "linear" else program.policy
    for library in LIBRARIES.values():
        library.backend.set_floatx("float64" if policy == "float64" else "float32")
        library.mixed_precision.set_global_policy(policy)
