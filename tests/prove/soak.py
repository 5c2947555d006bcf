"""Ten minutes of all kinds of calls, each checked: no resource usage grows."""

from __future__ import annotations

import json

import jobs
from prove import Table

PROGRAM = """
import ctypes, json, keras, psutil
import numpy as np

# Memory that malloc has given out. Resident memory also depends on when malloc returns it.
class Given(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]
mallinfo = ctypes.CDLL(None).mallinfo2
mallinfo.restype = Given

def own_memory():
    given = mallinfo()
    return given.uordblks + given.hblkhd

process = psutil.Process()
generator = np.random.default_rng(3)
kinds = {
    "small": np.float32([1.0, 2.0]),
    "large": np.ones([1 << 20], "float32"),
    "half": np.ones([1000], "float16"),
    "integers": np.arange(100_000),
}

@tf.function
def step(value):
    return [hvd.allreduce(value, op=hvd.Sum, name=f"loop_{i}") for i in range(10)]

model = keras.Sequential([keras.Input([8]), keras.layers.Dense(4), keras.layers.Dense(1)])
hvd.broadcast_variables(model.variables, 0)
model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3)), "mse")
features = generator.normal(size=[8, 8]).astype("float32")
data = tf.data.Dataset.from_tensor_slices((features, features[:, :1])).batch(4)

def fit():
    model.fit(data, verbose=0)
    weights = np.concatenate([value.ravel() for value in model.get_weights()])
    assert np.isfinite(weights).all()
    assert (hvd.broadcast(weights, 0, name="weights").numpy() == weights).all()

def round_of_calls():
    size, calls = hvd.size(), 0
    for name, value in kinds.items():
        total = sum(range(1, size + 1))
        mine = tf.constant(value * value.dtype.type(rank + 1))
        assert (hvd.allreduce(mine, op=hvd.Sum, name=name).numpy() == value * total).all(), name
        rows = hvd.allgather(mine[: 10 + rank], name=f"rows of {name}")
        assert rows.shape[0] == sum(min(10 + r, len(value)) for r in range(size)), name
        assert (hvd.broadcast(mine, 0, name=f"first of {name}").numpy() == value).all(), name
        calls += 3
    for result in step(tf.constant([rank + 1.0])):
        assert result.numpy()[0] == total
    part = hvd.add_process_set([0, size - 1])
    if part.included():
        assert hvd.allreduce(tf.ones([3]), op=hvd.Sum, name="of a part", process_set=part)[0] == 2
    hvd.remove_process_set(part)
    hvd.broadcast_object({"number": calls}, 0)
    fit()
    return calls + 16

for _ in range(20):  # objects that are created once exist after this
    round_of_calls()
here()
started, calls, samples = time.monotonic(), 0, []
minutes, parts = float(os.environ["SOAK_MINUTES"]), int(os.environ["SOAK_SAMPLES"])
while len(samples) < parts:
    calls += round_of_calls()
    passed = hvd.broadcast_object(time.monotonic() - started, 0)
    if passed > (len(samples) + 1) * minutes * 60 / parts:
        samples.append([calls, own_memory(), process.num_fds(), process.num_threads()])
everybody = hvd.allgather_object(samples)
if rank == 0:
    with open(os.path.join(os.environ["TF_HVD_PROVE"], "samples"), "w") as file:
        json.dump(everybody, file)
"""
MOST = 32 << 20  # maximum growth of a rank, in bytes, by Python and TensorFlow


def prove(short: bool) -> Table:
    minutes, samples = (0.3, 3) if short else (10, 10)
    settings = {"SOAK_MINUTES": str(minutes), "SOAK_SAMPLES": str(samples)}
    settings["PYTHONMALLOC"] = "malloc"  # includes Python's own memory
    with jobs.Job("openmpi", 3, jobs.PREAMBLE + PROGRAM, settings) as job:
        code = job.wait(jobs.STARTS + minutes * 60 + jobs.ENDS)
        assert code == 0, job.output()
        everybody = json.loads((job.folder / "samples").read_text())
        left = job.left()
    assert not left, left
    table = Table(
        "Three ranks make all kinds of calls, including Keras' `fit`, and check each result. The "
        "table shows the highest value on any rank:",
        ["calls per rank", "private memory, MiB", "open files", "threads"],
    )
    for ranks in zip(*everybody, strict=True):
        calls, memory, files, threads = (max(values) for values in zip(*ranks, strict=True))
        table.add(calls, f"{memory / 2**20:.0f}", files, threads)
    for first, *_, last in everybody:
        assert last[1] < first[1] + MOST, f"memory grew from {first[1]} to {last[1]} bytes"
        assert last[2] <= first[2], f"open files grew from {first[2]} to {last[2]}"
        # The thread that fires completions starts when it first has work.
        assert last[3] <= first[3] + 1, f"threads grew from {first[3]} to {last[3]}"
    return table
