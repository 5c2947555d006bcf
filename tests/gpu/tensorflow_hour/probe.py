"""Tests TensorFlow on this GPU, in one rank: `probe.py gpu`, `products` or `compiled`.

The last line is the result for the report; an exception is a failure.
"""

import os
import re
import sys

os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import numpy as np
import tensorflow as tf

import tf_hvd as hvd

LENGTH = 100_003  # not a multiple of a block's threads


def opened():
    """The open CUDA libraries of this process, by file name."""
    with open("/proc/self/maps") as maps:
        paths = set(re.findall(r"/\S*/(lib(?:cu|nvidia|nccl)[\w-]*\.so[\w.]*)", maps.read()))
    return ", ".join(sorted(paths))


def same(name, function, *arguments, tolerance=0.0):
    """Compare the results on both devices; `tolerance`: maximum difference."""
    with tf.device("/GPU:0"):
        on_gpu = function(*(tf.identity(one) for one in arguments))
    assert on_gpu.device.endswith("GPU:0"), f"{name} was placed on {on_gpu.device}"
    with tf.device("/CPU:0"):
        on_cpu = function(*(tf.identity(one) for one in arguments))
    np.testing.assert_allclose(on_gpu.numpy(), on_cpu.numpy(), tolerance, tolerance, err_msg=name)


def gpu():
    """Test the operations of the op tests besides our own calls."""
    values = tf.range(LENGTH, dtype=tf.float32) - LENGTH // 2
    same("addition", lambda x: x + x / 2, values)
    same("a cast", lambda x: tf.cast(x, tf.float16), values / LENGTH)
    same("a comparison", lambda x: x > 7, values)
    same("a sum of integers", tf.reduce_sum, tf.range(LENGTH) % 1000)
    same("concat", lambda x: tf.concat([x, x[:5]], 0), values)
    same("gather", lambda x: tf.gather(x, [0, 5, LENGTH - 1]), values)
    with tf.device("/GPU:0"):
        average = hvd.allreduce(tf.identity(values), op=hvd.Average)
    assert average.device.endswith("GPU:0")
    np.testing.assert_array_equal(average.numpy(), values.numpy())
    return "ops and hvd.allreduce are exact"


def products():
    """Test cuBLAS and cuDNN, in full float32."""
    tf.config.experimental.enable_tensor_float_32_execution(False)
    random = np.random.default_rng(1)
    left, right = (tf.constant(random.normal(size=(96, 96)), tf.float32) for _ in range(2))
    same("a matrix product", tf.matmul, left, right, tolerance=1e-4)
    images = tf.constant(random.normal(size=(4, 28, 28, 3)), tf.float32)
    kernel = tf.constant(random.normal(size=(3, 3, 3, 8)), tf.float32)
    same("pooling", lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), images)
    for padding in ("SAME", "VALID"):
        same(
            "a convolution",
            lambda x, k, padding=padding: tf.nn.conv2d(x, k, 1, padding),
            images,
            kernel,
            tolerance=1e-4,
        )
    return "matrix products, convolutions and pooling agree with the CPU's"


def compiled():
    """Test a step that XLA compiles, with a collective in it."""

    @tf.function(jit_compile=True)
    def step(x):
        return hvd.allreduce(x * 2 + 1, op=hvd.Sum, name="compiled") - 1

    values = tf.range(LENGTH, dtype=tf.float32)
    with tf.device("/GPU:0"):
        results = [step(values + n) for n in range(3)]
    for n, result in enumerate(results):
        np.testing.assert_array_equal(result.numpy(), (values.numpy() + n) * 2)
    return "a step with a collective is exact"


def main():
    gpus = tf.config.list_physical_devices("GPU")
    assert gpus, "TensorFlow sees no GPU"
    hvd.init()
    result = {"gpu": gpu, "products": products, "compiled": compiled}[sys.argv[1]]()
    details = tf.config.experimental.get_device_details(gpus[0])
    capability = ".".join(map(str, details.get("compute_capability", ())))
    print(f"{details.get('device_name')}, {capability}: {result}; with {opened()}")


if __name__ == "__main__":
    main()
