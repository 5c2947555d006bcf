"""Trains a small dense network with only elementwise ops and sums, without cuBLAS or cuDNN.

Each rank has its own images. After some steps, all weights must be the same on all ranks, and match
those of one process on the CPU with all images.
"""

import os

os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import numpy as np
import tensorflow as tf

import tf_hvd as hvd

STEPS, IMAGES, RATE = 20, 64, 0.1
SHAPES = ((16, 32), (32, 4))
DEVICE = os.environ.get("TF_HVD_TESTS_DEVICE", "/GPU:0")


def times(x, weights):
    """A matrix product."""
    return tf.reduce_sum(x[:, :, None] * weights[None], axis=1)


def loss_of(weights, images, answers):
    hidden = tf.tanh(times(images, weights[0]))
    return tf.reduce_mean((times(hidden, weights[1]) - answers) ** 2)


def initial(seed):
    random = np.random.default_rng(seed)
    return [tf.Variable(random.normal(size=shape) / 4, dtype=tf.float32) for shape in SHAPES]


def data(rank):
    random = np.random.default_rng(100 + rank)
    images = random.normal(size=(IMAGES, SHAPES[0][0])).astype("float32")
    return images, np.sin(images[:, :4])


def train(weights, images, answers, distributed):
    for _ in range(STEPS):
        with tf.GradientTape() as tape:
            loss = loss_of(weights, images, answers)
        if distributed:
            tape = hvd.DistributedGradientTape(tape)
        for weight, gradient in zip(weights, tape.gradient(loss, weights), strict=True):
            weight.assign_sub(RATE * gradient)
    return float(loss_of(weights, images, answers))


def main():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    with tf.device(DEVICE):
        weights = initial(rank)
        hvd.broadcast_variables(weights, root_rank=0)
        train(weights, *map(tf.constant, data(rank)), distributed=True)
    assert weights[0].device.endswith(DEVICE.strip("/")), weights[0].device
    together = [np.concatenate(parts) for parts in zip(*map(data, range(size)), strict=True)]
    with tf.device("/CPU:0"):
        single = initial(0)
        before = float(loss_of(single, *together))
        after = train(single, *map(tf.constant, together), distributed=False)
    ours = [weight.numpy() for weight in weights]
    for other in hvd.allgather_object(ours):
        for one, two in zip(ours, other, strict=True):
            np.testing.assert_array_equal(one, two)
    apart = max(np.abs(one - two.numpy()).max() for one, two in zip(ours, single, strict=True))
    assert apart < 1e-4, f"differs from the CPU's result by {apart}"
    assert after < before
    if rank == 0:
        print(f"loss {before:.3f} to {after:.3f}, weights equal on {size} and as on the CPU")


if __name__ == "__main__":
    main()
