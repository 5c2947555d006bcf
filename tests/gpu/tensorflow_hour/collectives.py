"""Our collectives on TensorFlow's CUDA device, with the driver of software_driver.cc.

TensorFlow's own kernels do nothing there, so tensors come from the host and return to it.
"""

import os

os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")

import numpy as np
import tensorflow as tf

import tf_hvd as hvd

LENGTH = 70_001
checks = 0


def on_gpu(values):
    return tf.identity(tf.constant(values))


def same(result, expected):
    global checks
    assert "GPU" in result.device, result.device
    np.testing.assert_array_equal(result.numpy(), expected)
    checks += 1


def collectives(rank, size, values):
    mine = on_gpu(values(rank))
    total = sum(values(one) for one in range(size))
    same(hvd.allreduce(mine, op=hvd.Sum), total)
    same(hvd.allreduce(mine, op=hvd.Average), total / size)
    same(hvd.allreduce(mine, op=hvd.Sum, prescale_factor=0.5), total / 2)
    same(hvd.allreduce(mine, op=hvd.Max), values(size - 1))
    for result in hvd.grouped_allreduce([mine, on_gpu(values(rank)[:7])], op=hvd.Sum):
        same(result, total[: len(result)])
    same(hvd.broadcast(mine, root_rank=size - 1), values(size - 1))
    same(hvd.allgather(mine), np.concatenate([*map(values, range(size))]))
    whole = LENGTH // size * size
    part = whole // size
    cut = on_gpu(values(rank)[:whole])
    same(hvd.reducescatter(cut, op=hvd.Sum), total[:whole][rank * part :][:part])
    received, _ = hvd.alltoall(cut, splits=[part] * size)
    same(received, np.concatenate([values(one)[rank * part :][:part] for one in range(size)]))


def main():
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    gpus = tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices(gpus[rank % len(gpus)], "GPU")
    with tf.device("/GPU:0"):
        for dtype in (np.float32, np.float64, np.float16):
            collectives(rank, size, lambda one, dtype=dtype: rows(one, dtype))
        step = tf.function(lambda x: hvd.allreduce(x, op=hvd.Sum, name="step"), jit_compile=True)
        total = sum(rows(one, np.float32) for one in range(size))
        for _ in range(3):
            same(step(on_gpu(rows(rank, np.float32))), total)
    way = "NCCL" if hvd.nccl_built() else "no NCCL"
    print(f"rank {rank} of {size}, {way}: {checks} results exact")


def rows(rank, dtype):
    return ((np.arange(LENGTH) % 64) * (rank + 1)).astype(dtype)


if __name__ == "__main__":
    main()
