"""The calls of Keras' guide to distributed training; `guide_program.py OUT [OPTION...]`.

Data parallelism comes first, then model parallelism. `--one-process` trains with plain Keras, and
`--data FILE.npz` with other images (x_train, y_train, x_test, y_test) than the generated ones.
"""

import argparse
import os

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from keras import layers


def parsed():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--one-process", action="store_true")
    parser.add_argument("--data")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--float", default="float64", choices=["float32", "float64"])
    return parser.parse_args()


def bars():
    """Noisy images of 10 classes: a bright row in each of the first 5, a column in the others."""
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 10, 330)
    images = generator.uniform(0, 0.5, (330, 10, 10, 1))
    for image, label in zip(images, labels, strict=True):
        line = image if label < 5 else image.swapaxes(0, 1)
        line[2 * (label % 5)] += 0.5
    return {
        "x_train": images[:250], "y_train": labels[:250],
        "x_test": images[250:], "y_test": labels[250:],
    }  # fmt: skip


def meshes(devices):
    """The meshes of the guide, for the job's devices."""
    mesh = keras.distribution.DeviceMesh(
        shape=(len(devices) // 2, 2), axis_names=["data", "model"], devices=devices
    )
    keras.distribution.TensorLayout(axes=("model", "data"), device_mesh=mesh)
    keras.distribution.TensorLayout(axes=("data", None, None, None), device_mesh=mesh)
    line = keras.distribution.DeviceMesh(
        shape=(len(devices),), axis_names=["data"], devices=devices
    )
    return mesh, line


def convolutional(shape):
    inputs = layers.Input(shape=shape)
    # A bias before the normalization would have gradients that are only rounding errors.
    y = layers.Conv2D(8, 3, use_bias=False)(inputs)
    y = layers.BatchNormalization()(y)
    y = layers.ReLU()(y)
    y = layers.MaxPooling2D()(y)
    y = layers.Conv2D(16, 3, activation="relu")(y)
    y = layers.Flatten()(y)
    y = layers.Dropout(0.4)(y)
    outputs = layers.Dense(units=10, activation="softmax")(y)
    return keras.Model(inputs=inputs, outputs=outputs)


def batches(x, y):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(64)


def data_parallel(data, epochs):
    images = tf.data.Dataset.from_tensor_slices((data["x_train"], data["y_train"]))
    dataset = images.shuffle(10_000, seed=1).batch(64)
    tests = batches(data["x_test"], data["y_test"])
    model = convolutional(data["x_train"].shape[1:])
    optimizer = keras.optimizers.Adam(0.005)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    found = model.fit(dataset, epochs=epochs, validation_data=tests, verbose=0).history
    found["evaluated"] = model.evaluate(tests, verbose=0)
    found["predicted"] = model.predict(tests, verbose=0)
    found["weights"] = np.concatenate([np.ravel(each) for each in model.get_weights()])
    return found


def model_parallel(mesh, data):
    """Must end with an error, because the layout map shards the first layer."""
    layout_map = keras.distribution.LayoutMap(mesh)
    layout_map["d1/kernel"] = (None, "model")
    layout_map["d1/bias"] = ("model",)
    layout_map["d2/output"] = ("data", None)
    sharded = keras.distribution.ModelParallel(layout_map=layout_map, batch_dim_name="data")
    keras.distribution.set_distribution(sharded)
    inputs = layers.Input(shape=data["x_train"].shape[1:])
    y = layers.Flatten()(inputs)
    y = layers.Dense(units=20, use_bias=False, activation="relu", name="d1")(y)
    y = layers.Dropout(0.4)(y)
    outputs = layers.Dense(units=10, activation="softmax", name="d2")(y)
    model = keras.Model(inputs=inputs, outputs=outputs)
    model.compile(loss="sparse_categorical_crossentropy")
    model.fit(batches(data["x_train"], data["y_train"]), epochs=3)


def main():
    options = parsed()
    keras.config.set_floatx(options.float)
    keras.utils.set_random_seed(7)
    data = np.load(options.data) if options.data else bars()
    data = {name: data[name] for name in ("x_train", "y_train", "x_test", "y_test")}
    if options.one_process:
        np.savez(f"{options.out}.npz", **data_parallel(data, options.epochs))
        return
    keras.distribution.initialize()
    mesh, line = meshes(keras.distribution.list_devices())
    distribution = keras.distribution.DataParallel(device_mesh=line)
    keras.distribution.set_distribution(distribution)
    found = data_parallel(data, options.epochs)
    np.savez(f"{options.out}.{distribution.data_shard_id}.npz", **found)
    model_parallel(mesh, data)


if __name__ == "__main__":
    main()
