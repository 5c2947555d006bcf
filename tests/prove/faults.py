"""Each fault in each kind of program, under each MPI: the job ends and names whose fault it was."""

from __future__ import annotations

import dataclasses
import itertools
import re

import jobs
from prove import Table

CULPRIT = 1


@dataclasses.dataclass(frozen=True)
class Fault:
    """What rank 1 does in place of a call, or beside it, and what is said of it."""

    action: str
    told: str
    """A regular expression of what the job prints."""


FIRST = "rank 1 was the first to end with an error "
FAULTS = {
    "raises": Fault("raise ValueError('sample 17')", rf"{FIRST}\(exit code 1\): .*sample 17"),
    "exits with 3": Fault("os._exit(3)", rf"{FIRST}\(exit code 3\)"),
    "exits with 0": Fault("os._exit(0)", "rank 1 ended with exit code 0 without leaving the job"),
    "kill -9": Fault("os.kill(os.getpid(), signal.SIGKILL)", rf"{FIRST}\(signal 9, Killed\)"),
    "segfault": Fault("os.kill(os.getpid(), signal.SIGSEGV)", rf"{FIRST}\(signal 11, "),
    "stopped": Fault("os.kill(os.getpid(), signal.SIGSTOP)", "no (answer|data) from rank 1 "),
    "no call": Fault("time.sleep(600)", "missing rank 1 "),
    "other shape": Fault("wrong()", r"mismatch in .*rank 1 has float32\[3\]"),
}
# `fault()` is what rank 1 does in the third step.
WAYS = {
    "eager": """
for step in range(6):
    if step == 3 and rank == 1:
        fault()
    hvd.allreduce(tf.ones([2]), name="g")
""",
    "tf.function": """
@tf.function
def train(step):
    value = tf.ones([2])
    if step == 3 and rank == 1:
        with tf.control_dependencies([tf.py_function(fault, [], [])]):
            value = tf.identity(value)
    return hvd.allreduce(value, name="g")

for step in range(6):
    train(step)  # a graph for each step, with one name
""",
    "v1 session": """
v1 = tf.compat.v1
with tf.Graph().as_default(), v1.Session() as session:
    value = v1.placeholder(tf.float32, [None])
    summed = hvd.allreduce(value, name="g")
    for step in range(6):
        if step == 3 and rank == 1:
            fault()
        session.run(summed, {value: [1.0, 1.0]})
""",
    "Keras fit": """
import keras, numpy as np

class Step(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 3 and rank == 1:
            fault()

model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
hvd.broadcast_variables(model.variables, 0)
model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
model.fit(np.ones([6, 3]), np.ones([6, 1]), batch_size=1, verbose=0, callbacks=[Step()])
""",
}
SHAPES = [("openmpi", 2), ("mpich", 2), ("openmpi", 4)]
# Only for what ends by them: they are init's limits too, which waits for who still imports.
LIMITS = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "10", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "40"}
BY_LIMIT = ("stopped", "no call")


def program_of(fault: Fault, way: str) -> str:
    # At once, also in a v1 graph.
    wrong = (
        "from tf_hvd.core.tensorflow_hooks import eagerly\n"
        "def wrong():\n    with eagerly():\n        hvd.allreduce(tf.ones([3]), name='g')\n"
    )
    # With Keras the name is its optimizer's own; a call beside it is missing on the others.
    # MPI has a handler, and only the main thread may take it away.
    crashes = "signal.signal(signal.SIGSEGV, signal.SIG_DFL)\n"
    return f"{jobs.PREAMBLE}{crashes}{wrong}\ndef fault():\n    {fault.action}\n{WAYS[way]}"


def makes_sense(name: str, way: str) -> bool:
    """Keras' gradients have names and shapes of Keras' own."""
    return not (name == "other shape" and way == "Keras fit")


def commit_fault(name: str, way: str, family: str, ranks: int) -> bool:
    """Whether rank 1 was named; an AssertionError says what was not as it should be.

    MPICH's launcher ends all at once, and often what would have told how a rank ended.
    """
    fault = FAULTS[name]
    limits = LIMITS if name in BY_LIMIT else {}
    with jobs.Job(family, ranks, program_of(fault, way), limits) as job:
        code = job.wait(jobs.STARTS + jobs.ENDS)
        output, left = job.output(), job.left()
        told = [job.recorded(), job.recorded(but=CULPRIT)]
    said = " ".join(output.split())  # launchers cut long lines
    where = f"{name}, {way}, {family}, {ranks} ranks"
    assert code != 0, f"{where}: exit code 0:\n{output}"
    assert not left, f"{where}: left behind {left}:\n{output}"
    for failure in told:
        assert "rank 1" in failure.sentence, f"{where}: {failure.sentence}\n{output}"
        assert "program.py:" in failure.sentence, f"{where}: {failure.sentence}\n{output}"
    named = re.search(fault.told, said) is not None
    assert named or family == "mpich", f"{where}: not told {fault.told!r}:\n{output}"
    return named


def cell_of(name: str, way: str, family: str, ranks: int) -> str:
    return f"{family} {ranks}" if commit_fault(name, way, family, ranks) else f"({family} {ranks})"


def prove(short: bool) -> Table:
    table = Table(
        "What rank 1 does in the third step, in each kind of program and under each MPI; 4 ranks "
        "are two nodes. Each job ended with an error and left nothing. It named rank 1 and what it "
        "did, but for the jobs in parentheses. The sentence of its recordings names rank 1 and a "
        "line of the program in all of them, also without what rank 1 has recorded.",
        ["rank 1", *WAYS, "jobs"],
    )
    if short:  # each fault once, in each kind of program and under each MPI in turn
        ways, shapes = itertools.cycle(WAYS), itertools.cycle(SHAPES)
        for name in FAULTS:
            way, (family, ranks) = next(ways), next(shapes)
            if not makes_sense(name, way):
                way = next(ways)
            cell = cell_of(name, way, family, ranks)
            table.add(name, *(cell if each == way else "" for each in WAYS), 1)
        return table
    for name in FAULTS:
        cells = []
        for way in WAYS:
            tried = SHAPES if makes_sense(name, way) else []
            cells.append(", ".join(cell_of(name, way, *shape) for shape in tried) or "-")
        table.add(name, *cells, sum(cell.count(",") + 1 for cell in cells if cell != "-"))
    return table
