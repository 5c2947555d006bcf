"""The same program gives the same bits, whatever else the machine does meanwhile."""

import re
import subprocess
import sys

import pytest

# The delays come before what the ranks do together, so that who is late, and in
# which order gradients are ready, differs from step to step and from run to run.
PROGRAM = """
import hashlib, random
import numpy as np

random.seed(f"{os.environ['DELAYS']} {rank}")
generator = np.random.default_rng(5)
variables = [
    tf.Variable(generator.normal(size=shape).astype(dtype))
    for dtype in ("float32", "float64")
    for shape in [(31, 17), (17,), (17, 29), (29,), (29, 3)]
]
data = np.random.default_rng(rank).normal(size=(8, 8, 31))
optimizer_state = [tf.Variable(tf.zeros_like(v)) for v in variables]

def forward(x, part):
    a, b, c, d, e = part
    return tf.tanh(tf.tanh(x @ a + b) @ c + d) @ e

def sleep():
    time.sleep(random.choice([0, 0, 0.001, 0.02]))
    return np.int32(0)

@tf.function
def step(x):
    with tf.GradientTape() as tape:
        narrow = forward(tf.cast(x, tf.float32), variables[:5])
        wide = forward(x, variables[5:])
        loss = tf.reduce_sum(wide ** 2) + tf.cast(tf.reduce_sum(narrow ** 2), tf.float64)
    gradients = tape.gradient(loss, variables)
    delayed = []
    for gradient in gradients:
        wait = tf.py_function(sleep, [], tf.int32)
        with tf.control_dependencies([wait]):
            delayed.append(tf.identity(gradient))
    reduced = hvd.grouped_allreduce(delayed[::2], name="even") + [
        hvd.allreduce(g, name=f"odd_{i}") for i, g in enumerate(delayed[1::2])
    ]
    order = list(range(0, len(variables), 2)) + list(range(1, len(variables), 2))
    for i, gradient in zip(order, reduced):
        optimizer_state[i].assign(0.9 * optimizer_state[i] + gradient)
        variables[i].assign_sub(0.01 * optimizer_state[i])

@tf.function
def taped_step(x):
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.reduce_sum(forward(x, variables[5:]) ** 2)
    for variable, gradient in zip(variables[5:], tape.gradient(loss, variables[5:])):
        variable.assign_sub(0.01 * gradient)

for x in data:
    step(tf.constant(x))
    sleep()
    taped_step(tf.constant(x))
digest = hashlib.sha256(b"".join(v.numpy().tobytes() for v in variables)).hexdigest()
assert all(np.isfinite(v.numpy()).all() for v in variables)
say("weights", digest)
"""


@pytest.fixture
def busy_machine():
    """Two processes that compute for as long as the test runs."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2)]
    yield
    for process in busy:
        process.kill()
        process.wait()


def test_two_runs_give_the_same_weights(job, busy_machine):
    digests = []
    for delays in ("first", "second"):
        # Three ranks: the sum of two does not depend on the order. Small buckets: more
        # requests that could travel in another order.
        code, output = job(PROGRAM, ranks=3, DELAYS=delays, TF_HVD_BUCKET_BYTES="4096")
        assert code == 0
        found = re.findall(r"weights ([0-9a-f]{64})", output)
        assert len(found) == 3, output
        digests += found
    assert len(set(digests)) == 1
