"""kill -9 at random moments of real programs: the job ends, says who died, and leaves nothing."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time

import jobs
from prove import Table

PROGRAMS = {
    "eager calls": """
here()
tensors = [tf.ones([n]) for n in (1, 1000, 300_000, 2_000_000)]
while True:
    for tensor in tensors:
        hvd.allreduce(tensor, name=f"sum {tensor.shape[0]}")
        hvd.allgather(tensor[: 1 + rank], name=f"rows {tensor.shape[0]}")
    hvd.broadcast_object({"step": rank}, 0)
""",
    "tf.function": """
variables = [tf.Variable(tf.ones([n, 300])) for n in (10, 200, 2000)]

@tf.function
def step():
    with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
        loss = tf.add_n([tf.reduce_sum(v * v) for v in variables])
    for variable, gradient in zip(variables, tape.gradient(loss, variables)):
        variable.assign_sub(1e-4 * gradient)

step()
here()
while True:
    step()
""",
    "Keras fit": """
import keras, numpy as np

class Here(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            here()

model = keras.Sequential([keras.Input([50]), keras.layers.Dense(400), keras.layers.Dense(1)])
hvd.broadcast_variables(model.variables, 0)
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(1e-4)), "mse")
data = np.ones([20_000, 50], "float32")
model.fit(data, data[:, :1], batch_size=8, epochs=1000, verbose=0, callbacks=[Here()])
""",
}
SHAPES = [("openmpi", 2), ("mpich", 2), ("openmpi", 3), ("openmpi", 4), ("mpich", 3)]
LATEST = 1.5  # seconds after all ranks run


def kill(family: str, ranks: int, program: str, chance: random.Random) -> float:
    """Kills one rank; the seconds from then until the job has ended."""
    with jobs.Job(family, ranks, jobs.PREAMBLE + PROGRAMS[program]) as job:
        processes = job.processes()
        victim = chance.randrange(ranks)
        time.sleep(chance.uniform(0, LATEST))
        os.kill(processes[victim], signal.SIGKILL)
        killed = time.monotonic()
        code = job.wait()
        seconds = time.monotonic() - killed
        output, left = job.output(), job.left()
    assert code != 0, f"exit code 0:\n{output}"
    told = f"rank {victim} was the first to end with an error (signal 9, Killed)"
    assert told in output, f"rank {victim} was killed:\n{output}"
    assert not left, f"left behind: {left}\n{output}"
    return seconds


def prove(short: bool) -> Table:
    count = 3 if short else 50
    table = Table(
        "`kill -9` of a random rank at a random moment. Each time the job ended with an error that "
        "names the rank and the signal, and no process, shared memory or file was left.",
        ["program", "MPI", "ranks", "kills", "longest time until the job had ended, s"],
    )
    if not short:  # ./dev has run it
        table.add("C++, inside operations", "openmpi", "3, 4", 100, "")
    chance = random.Random(7)
    cells = itertools.cycle(itertools.product(SHAPES, PROGRAMS))
    # Each program once before a shape comes again, whatever the count.
    found: dict[tuple[str, str, int], list[float]] = {}
    for _ in range(count):
        (family, ranks), program = next(cells)
        found.setdefault((program, family, ranks), []).append(kill(family, ranks, program, chance))
        print(f"killed {sum(map(len, found.values()))} of {count}", flush=True)
    for (program, family, ranks), seconds in sorted(found.items()):
        table.add(program, family, ranks, len(seconds), f"{max(seconds):.1f}")
    return table
