"""Programs with predictions, callbacks and files."""

import keras
import numpy as np
import tensorflow as tf
from common import (
    BATCH,
    EVEN,
    FOLDER,
    SGD,
    UNEVEN,
    batches,
    compiled,
    dense,
    layers,
    numbers,
    program,
    results,
    shared,
    trained,
)


@program
def predictions():
    x, _ = numbers(UNEVEN)
    model = compiled(dense())
    found = model.predict(batches(x), verbose=0)
    return {"dataset": found, "arrays": model.predict(x, batch_size=7, verbose=0)}


@program
def predictions_of_several_steps():
    x, _ = numbers(UNEVEN)
    model = compiled(dense(), steps_per_execution=2)
    return {"predicted": model.predict(x, batch_size=BATCH, verbose=0)}


@program
def compiled_predictions():
    x, y = numbers(UNEVEN)
    model = compiled(dense(), jit_compile=True)
    return {
        "predicted": model.predict(x, batch_size=BATCH, verbose=0),
        "evaluated": model.evaluate(x, y, batch_size=BATCH, verbose=0),
    }


@program
def evaluation_only():
    model = compiled(dense(), metrics=["mae", keras.metrics.R2Score()])
    x, y = numbers(UNEVEN)
    return model.evaluate(x, y, batch_size=BATCH, verbose=0, return_dict=True)


@program
def stopping_callbacks():
    model = compiled(dense(), optimizer=SGD(0.05))
    path = FOLDER / "best.weights.h5"
    chosen = [
        keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau(patience=0, factor=0.5),
        keras.callbacks.TerminateOnNaN(),
        keras.callbacks.ModelCheckpoint(path, save_best_only=True, save_weights_only=True),
        keras.callbacks.CSVLogger(FOLDER / "log.csv"),
    ]
    x, y = numbers(UNEVEN)
    history = trained(
        model, x, y, batch_size=BATCH, epochs=6, callbacks=chosen,
        validation_data=numbers(21, seed=3),
    )  # fmt: skip
    return results(model, history, epochs=[len(history["loss"])])


class _Reading(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_epoch_end(self, epoch, logs=None):
        self.seen.append(logs["loss"])
        self.model.optimizer.learning_rate = 0.01 / (1 + logs["loss"])


@program
def callback_that_reads_logs():
    model, reading = compiled(dense()), _Reading()
    history = trained(model, *numbers(UNEVEN), batch_size=BATCH, callbacks=[reading], epochs=3)
    return results(model, history, seen=reading.seen)


@program
def swapped_averages():
    optimizer = SGD(0.05, use_ema=True, ema_momentum=0.8)
    model = compiled(dense(), optimizer=optimizer)
    x, y = numbers(UNEVEN)
    chosen = [keras.callbacks.SwapEMAWeights(swap_on_epoch=True)]
    return results(
        model, trained(model, x, y, batch_size=BATCH, callbacks=chosen, validation_data=(x, y))
    )


@program
def saved_and_loaded():
    model = compiled(dense(layers.BatchNormalization()))
    x, y = numbers(UNEVEN)
    trained(model, x, y, batch_size=BATCH)
    path = FOLDER / "model.keras"
    model.save(path)
    again = keras.models.load_model(path)
    return results(again, trained(again, x, y, batch_size=BATCH))


@program
def model_from_before():
    """A model that was made and trained before; its functions are made again."""
    model = compiled(dense())
    x, y = numbers(UNEVEN)
    trained(model, x, y, batch_size=BATCH)
    return results(model, trained(model, batches(x, y), epochs=1))


@program
def stateful_rnn():
    x = np.random.default_rng(0).normal(size=(EVEN, 3, 2))
    model = keras.Sequential([keras.Input([3, 2]), layers.SimpleRNN(3), layers.Dense(1)])
    return results(model, trained(compiled(model), batches(x, numbers()[1])))


@program
def learning_rates():
    """Both callbacks decide from the logs; the rates are in the history."""
    chosen = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.ReduceLROnPlateau(
            monitor="mae", patience=0, factor=0.5, min_delta=0.05, cooldown=1
        ),
    ]
    model = compiled(dense(), optimizer=SGD(0.05), metrics=["mae"])
    x, y = numbers(UNEVEN)
    history = trained(model, x, y, batch_size=BATCH, epochs=6, callbacks=chosen)
    assert len(set(history["learning_rate"])) > 2
    return results(model, history)


class _InterruptedError(Exception):
    pass


class _Interrupting(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if self.model.optimizer.iterations == 6:
            raise _InterruptedError


@program
def interrupted_and_continued():
    """Training stops in the second epoch; a new model continues from the backup."""
    x, y = numbers(UNEVEN)

    def train(*more):
        model = compiled(dense(layers.BatchNormalization()), metrics=["mae"])
        backup = keras.callbacks.BackupAndRestore(shared("backup"))
        options = {"batch_size": BATCH, "shuffle": False, "callbacks": [backup, *more]}
        return model, trained(model, x, y, epochs=3, **options)

    try:
        train(_Interrupting())
    except _InterruptedError:
        model, history = train()
    assert len(history["loss"]) == 2
    return results(model, history)


@program
def tensorboard():
    """The numbers that TensorBoard shows; one rank writes them."""
    folder = shared("events")
    model = compiled(dense(layers.Dropout(0.2)), metrics=["mae"])
    x, y = numbers(UNEVEN)
    chosen = [keras.callbacks.TensorBoard(folder, write_graph=False, histogram_freq=1)]
    trained(model, x, y, batch_size=BATCH, callbacks=chosen, validation_data=(x, y))
    model.predict(x, verbose=0)  # all ranks wait for the writer here
    found = {}
    for file in sorted(folder.glob("*/events*.v2")):
        for record in tf.data.TFRecordDataset(str(file)).as_numpy_iterator():
            event = tf.compat.v1.Event.FromString(record)
            for value in event.summary.value:
                name = f"{file.parent.name}_{value.tag}".replace("/", "_")
                numbers_of = tf.make_ndarray(value.tensor)
                if numbers_of.dtype.kind == "f":
                    found.setdefault(name, []).append(np.ravel(numbers_of))
    assert len(found) >= 8
    return {name: np.concatenate(each) for name, each in found.items()}
