"""The same calls give the same bits, whatever their order and other concurrent calls.

The sums of the numbers are rounded, so another order of additions would show. Meanwhile two
programs that only count use up the cores at random moments.
"""

import contextlib
import random
import subprocess
import sys
import threading
import time

import numpy as np
import numpy_collectives as reference
import pytest
import tensorflow as tf

import tf_hvd as hvd

RUNS = 20
DTYPES = ("float32", "float64", "float16", "bfloat16")
LENGTHS = (1, 1000, 30_011)

LOAD = """
import random, time
while True:
    end = time.monotonic() + random.uniform(0.001, 0.02)
    while time.monotonic() < end:
        pass
    time.sleep(random.uniform(0.001, 0.02))
"""


@pytest.fixture
def load(rank):
    """Rank 0 starts more of these programs than there are cores."""
    programs = [subprocess.Popen([sys.executable, "-c", LOAD]) for _ in range(2 * (rank == 0))]
    yield
    for program in programs:
        program.kill()
        program.wait()


def numbers_of(rank, dtype, length):
    given = np.random.default_rng([rank, length]).standard_normal(length)
    return given.astype(reference.numpy_type(dtype))


def expected(dtype, length):
    """Node by node, each in rank order (docs/collectives.md)."""
    ranks = [numbers_of(rank, dtype, length) for rank in range(hvd.size())]
    here = hvd.local_size()
    nodes = [ranks[first : first + here] for first in range(0, len(ranks), here)]
    return reference.allreduce([reference.allreduce(node, "Sum") for node in nodes], "Sum")


def call_in_some_order(cases, choice, results):
    """Each case in a separate thread, in an order that depends on the rank."""

    def call(name, tensor):
        results[name] = hvd.allreduce(tensor, op=hvd.Sum, name=name).numpy()

    with contextlib.ExitStack() as ends:
        for case in choice.sample(cases, len(cases)):
            thread = threading.Thread(target=call, args=case)
            thread.start()
            ends.callback(thread.join)
            time.sleep(choice.choice((0, 0, 0, 0.001)))


@pytest.mark.usefixtures("load")
def test_bits_of_20_runs_under_load(rank):
    wanted = {f"{d}.{n}": expected(d, n) for d in DTYPES for n in LENGTHS}
    tensors = {f"{d}.{n}": tf.constant(numbers_of(rank, d, n)) for d in DTYPES for n in LENGTHS}
    for run in range(RUNS):
        results = {}
        call_in_some_order([*tensors.items()], random.Random(f"{rank} {run}"), results)
        wrong = {
            name: reference.difference(result[:5], wanted[name][:5]) or "further on"
            for name, result in results.items()
            if reference.difference(result, wanted[name])
        }
        assert set(results) == set(wanted)
        assert not wrong, f"run {run}"
