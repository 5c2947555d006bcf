"""Programs with all kinds of losses and steps."""

import keras
import numpy as np
import tensorflow as tf
from common import (
    BATCH,
    SGD,
    UNEVEN,
    batches,
    compiled,
    dense,
    fitted,
    layers,
    numbers,
    program,
    results,
    trained,
)


def _reduced(reduction):
    return keras.losses.MeanSquaredError(reduction=reduction)


@program
def sum_of_losses():
    return fitted(compiled(dense(), _reduced("sum"), SGD(0.001)))


@program
def uneven_sum_of_losses():
    hidden = layers.Dense(4, kernel_regularizer="l2")
    return fitted(compiled(dense(hidden), _reduced("sum"), SGD(0.001)), UNEVEN)


@program
def mean_with_sample_weight():
    x, y = numbers(UNEVEN)
    model = compiled(dense(), _reduced("mean_with_sample_weight"))
    weights = np.linspace(0.0, 2.0, UNEVEN)
    return results(model, trained(model, x, y, batch_size=BATCH, sample_weight=weights))


@program
def regularizers():
    more = layers.Dense(4, kernel_regularizer="l2", activity_regularizer="l1")
    return fitted(compiled(dense(more)), UNEVEN)


@program
def loss_function():
    def loss(y, predicted):
        return keras.ops.mean(keras.ops.abs(y - predicted) ** 1.5, axis=-1)

    return fitted(compiled(dense(), loss), UNEVEN)


class Variational(keras.Model):
    def __init__(self):
        super().__init__()
        self.mean, self.spread = layers.Dense(2), layers.Dense(2)
        self.back = layers.Dense(6)

    def call(self, x):
        mean, spread = self.mean(x), self.spread(x)
        draws = keras.random.normal(keras.ops.shape(mean))
        divergence = keras.ops.square(mean) + keras.ops.exp(spread) - spread - 1
        self.add_loss(0.01 * keras.ops.mean(keras.ops.sum(divergence, axis=-1)))
        return self.back(mean + keras.ops.exp(spread / 2) * draws)


@program
def variational_autoencoder():
    x, _ = numbers(UNEVEN)
    model = compiled(Variational())
    return results(model, trained(model, batches(x, x)))


class OwnStep(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden, self.head = layers.Dense(5, activation="tanh"), layers.Dense(1)
        self.mean = keras.metrics.Mean(name="mean_loss")

    def call(self, x):
        return self.head(self.hidden(x))

    @property
    def metrics(self):
        return [self.mean]

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = keras.ops.mean(keras.ops.square(y - self(x)))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        self.mean.update_state(loss)
        return {"mean_loss": self.mean.result()}


@program
def own_train_step():
    model = OwnStep()
    model.compile(SGD(0.05))
    return fitted(model, UNEVEN)


class OwnLogs(OwnStep):
    def train_step(self, data):
        found = super().train_step(data)
        x, y = data
        return {**found, "last": keras.ops.mean(keras.ops.abs(y - self(x)))}


@program
def own_logs():
    model = OwnLogs()
    model.compile(SGD(0.05))
    return fitted(model, UNEVEN)


class OwnLoss(OwnStep):
    metrics = keras.Model.metrics
    train_step = keras.Model.train_step

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.abs(y - y_pred))


@program
def own_loss():
    return fitted(compiled(OwnLoss(), None), UNEVEN)


class Adversarial(keras.Model):
    def __init__(self):
        super().__init__()
        self.maker = keras.Sequential([keras.Input([3]), layers.Dense(6)])
        self.judge = keras.Sequential([keras.Input([6]), layers.Dense(4), layers.Dense(1)])
        self.cost = keras.losses.BinaryCrossentropy(from_logits=True)

    def compile(self, first, second):
        super().compile()
        self.first, self.second = first, second

    def train_step(self, x):
        rows = keras.ops.shape(x)[0]
        seeds = keras.random.normal((rows, 3))
        both = keras.ops.concatenate([x, self.maker(seeds)])
        labels = keras.ops.concatenate([keras.ops.ones((rows, 1)), keras.ops.zeros((rows, 1))])
        with tf.GradientTape() as tape:
            judged = self.cost(labels, self.judge(both))
        weights = self.judge.trainable_weights
        self.second.apply_gradients(zip(tape.gradient(judged, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            made = self.cost(keras.ops.ones((rows, 1)), self.judge(self.maker(seeds)))
        weights = self.maker.trainable_weights
        self.first.apply_gradients(zip(tape.gradient(made, weights), weights, strict=True))
        return {"judged": judged, "made": made}


@program
def adversarial_networks():
    model = Adversarial()
    model.compile(keras.optimizers.Adam(0.01), keras.optimizers.Adam(0.02))
    return results(model, trained(model, batches(numbers(UNEVEN)[0]).map(lambda x: x)))


@program
def gradient_accumulation():
    optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=2, global_clipnorm=0.5)
    return fitted(compiled(dense(), optimizer=optimizer))


@program
def uneven_gradient_accumulation():
    optimizer = SGD(0.05, gradient_accumulation_steps=2, global_clipnorm=0.5)
    return fitted(compiled(dense(), optimizer=optimizer), UNEVEN)


@program
def averaged_weights():
    optimizer = SGD(
        keras.optimizers.schedules.CosineDecay(0.1, 8), momentum=0.9, nesterov=True,
        weight_decay=0.01, use_ema=True, ema_momentum=0.9,
    )  # fmt: skip
    return fitted(compiled(dense(), optimizer=optimizer), UNEVEN)


@program
def run_eagerly():
    model = dense(layers.BatchNormalization(), layers.Dropout(0.3))
    return fitted(compiled(model, run_eagerly=True, metrics=["mae"]), UNEVEN)


@program
def steps_per_execution():
    model = dense(layers.BatchNormalization(), layers.Dropout(0.3))
    return fitted(compiled(model, steps_per_execution=3, metrics=["mae"]), UNEVEN)


@program
def xla():
    model = dense(layers.BatchNormalization(), layers.Dropout(0.3))
    return fitted(compiled(model, jit_compile=True))


@program
def uneven_xla():
    model = dense(layers.BatchNormalization(), layers.Dropout(0.3))
    return fitted(compiled(model, jit_compile=True), UNEVEN)


@program
def train_on_batch():
    model = compiled(dense(layers.Dropout(0.2)), metrics=["mae"])
    x, y = numbers(UNEVEN)
    logs = []
    for begin in range(0, UNEVEN, BATCH):
        logs.append(model.train_on_batch(x[begin : begin + BATCH], y[begin : begin + BATCH]))
    tested = model.test_on_batch(x[:5], y[:5], return_dict=True)
    predicted = model.predict_on_batch(x[:7])
    return results(model, predicted=predicted, logs=logs, **tested)


def _under(policy, **options):
    keras.config.set_dtype_policy(policy)
    try:
        return fitted(compiled(dense(), **options), UNEVEN)
    finally:
        keras.config.set_dtype_policy("float64")


@program
def mixed_float16():
    return _under("mixed_float16")


@program
def mixed_bfloat16():
    return _under("mixed_bfloat16")
