"""Each fault in each kind of program, under each MPI: the job ends and names the faulty rank."""

from __future__ import annotations

import dataclasses
import itertools
import re
import time

import jobs
from prove import Table

from tf_hvd.observe import recording

CULPRIT = 1
# `fault()` is rank 1's action in the third step; the recordings must name the line of the call.
LOOP = """
for step in range(6):
    if step == 3 and rank == 1:
        fault()
    CALL  # the call
"""
WAYS = {
    "eager": LOOP.replace("CALL", 'hvd.allreduce(tf.ones([2]), name="g")'),
    "tf.function": """
@tf.function
def train(step):
    value = tf.ones([2])
    if step == 3 and rank == 1:
        with tf.control_dependencies([tf.py_function(fault, [], [])]):
            value = tf.identity(value)
    return hvd.allreduce(value, name="g")  # the call

for step in range(6):
    train(step)  # a graph for each step, with one name
""",
    "v1 session": """
v1 = tf.compat.v1
with tf.Graph().as_default(), v1.Session() as session:
    value = v1.placeholder(tf.float32, [None])
    summed = hvd.allreduce(value, name="g")  # the call
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
data, one_by_one = (np.ones([6, 3]), np.ones([6, 1])), {"batch_size": 1, "verbose": 0}
model.fit(*data, **one_by_one, callbacks=[Step()])  # the call
""",
    "alltoall": LOOP.replace("CALL", 'hvd.alltoall(tf.ones([8]), name="a")'),
    "broadcast": LOOP.replace("CALL", 'hvd.broadcast(tf.ones([2]), 0, name="b")'),
    "group": LOOP.replace("CALL", 'hvd.grouped_allreduce([tf.ones([2]), tf.ones([3])], name="p")'),
    "barrier": LOOP.replace("CALL", "hvd.barrier()"),
}
EVERY = ("eager", "tf.function", "v1 session", "Keras fit")


@dataclasses.dataclass(frozen=True)
class Fault:
    """Rank 1's action before or instead of a call, and the expected report."""

    action: str
    told: str
    """A regular expression for the job's output."""
    ways: tuple[str, ...] = ("eager",)
    by_limit: bool = False
    """Whether only the stall limit ends the job."""


FIRST = "rank 1 was the first to end with an error "
LEFT = "rank 1 reached the end of its program before rank "
FAULTS = {
    "raises": Fault(
        "raise ValueError('sample 17')", rf"{FIRST}\(exit code 1\): .*sample 17", EVERY
    ),
    "exits with 3": Fault("os._exit(3)", rf"{FIRST}\(exit code 3\)", EVERY),
    "exits with 0": Fault(
        "os._exit(0)", "rank 1 ended with exit code 0 without leaving the job", EVERY
    ),
    "kill -9": Fault(
        "os.kill(os.getpid(), signal.SIGKILL)",
        rf"{FIRST}\(signal 9, Killed\)",
        (*EVERY, "alltoall", "broadcast", "group", "barrier"),
    ),
    "segfault": Fault("os.kill(os.getpid(), signal.SIGSEGV)", rf"{FIRST}\(signal 11, ", EVERY),
    "stopped": Fault(
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "no (answer|data) from rank 1 |missing rank 1 ",
        EVERY,
        by_limit=True,
    ),
    "no call": Fault("time.sleep(600)", "missing rank 1 ", EVERY, by_limit=True),
    # Keras chooses the names and shapes of its gradients.
    "other shape": Fault(
        "at_once(lambda: hvd.allreduce(tf.ones([3]), name='g'))",
        r"mismatch in .*rank 1 has float32\[3\]",
        EVERY[:-1],
    ),
    "other dtype": Fault(
        "at_once(lambda: hvd.allreduce(tf.ones([2], tf.float64), name='g'))",
        r"mismatch in .*rank 1 has float64",
        EVERY[:-1],
    ),
    "other operation": Fault(
        "at_once(lambda: hvd.allreduce(tf.ones([2]), op=hvd.Max, name='g'))",
        "mismatch in .*rank 1 has .*Max",
    ),
    "other scale": Fault(
        "at_once(lambda: hvd.allreduce(tf.ones([2]), prescale_factor=2.0, name='g'))",
        "mismatch in .*rank 1 has ",
    ),
    "other compression": Fault(
        "at_once(lambda: hvd.allreduce(tf.ones([2]), compression=hvd.Compression.fp16, name='g'))",
        "mismatch in .*rank 1 has fp16 of float32",
    ),
    "other collective": Fault(
        "at_once(lambda: hvd.allgather(tf.ones([2]), name='g'))",
        "mismatch in .*rank 1 has allgather",
    ),
    "other root": Fault(
        "at_once(lambda: hvd.broadcast(tf.ones([2]), 1, name='b'))",
        "mismatch in .*rank 1 has root",
        ("broadcast",),
    ),
    "other group": Fault(
        "at_once(lambda: hvd.grouped_allreduce([tf.ones([2])], name='p'))",
        "mismatch in .*rank 1 has ",
        ("group",),
    ),
    "wrong splits": Fault(
        "at_once(lambda: hvd.alltoall(tf.ones([8]), splits=[9], name='a'))",
        "rank 1.*splits ",
        ("alltoall",),
    ),
    "other name": Fault(
        "hvd.allreduce(tf.ones([2]), name='h')", "missing rank 1 ", ("eager",), by_limit=True
    ),
    "ends early": Fault("sys.exit(0)", rf"{LEFT}\d did", ("eager", "alltoall", "group", "barrier")),
    "leaves": Fault("hvd.shutdown(); sys.exit(0)", LEFT + r"|rank 1 .*left: shutdown\(\)"),
    "sys.exit(7)": Fault("sys.exit(7)", rf"{FIRST}\(exit code 7\)"),
    "sys.exit(text)": Fault(
        "sys.exit('no data')", rf"({FIRST}\(exit code 1\): |{LEFT}\d did, ).*no data"
    ),
    "SIGTERM": Fault("os.kill(os.getpid(), signal.SIGTERM)", rf"{FIRST}\(signal 15, "),
    "abort": Fault("os.abort()", rf"{FIRST}\(signal 6, "),
    "no memory": Fault(
        "import numpy as np; np.ones([1 << 46])", rf"{FIRST}\(exit code 1\): .*Unable to allocate"
    ),
    "no memory for a tensor": Fault(
        "tf.ones([1 << 20, 1 << 25])", rf"{FIRST}\(exit code 1\): .*OOM|{FIRST}.*allocat"
    ),
    "killed by the kernel for memory": Fault(
        "open(os.environ['PROVE_GROUP'], 'w').write(f'{os.getpid()}'); b'1' * (1 << 29)",
        rf"{FIRST}\(signal 9, Killed\).* memory ran out: the kernel has killed a process",
        EVERY,
    ),
    "disk full": Fault(
        "file = open('/dev/full', 'w'); file.write('x'); file.flush()",
        rf"{FIRST}\(exit code 1\): .*No space left on device",
    ),
    "a thread keeps running": Fault(
        "threading.Thread(target=time.sleep, args=(600,)).start(); raise ValueError('sample 17')",
        "rank 1.*sample 17",
    ),
    "holds the GIL": Fault(
        "re.match('(a+)+$', 'a' * 60 + 'b')", "missing rank 1 ", ("eager",), by_limit=True
    ),
    "becomes another program": Fault(
        "os.execvp('sleep', ['sleep', '600'])", "rank 1 .*(died|without leaving the job|signal 15)"
    ),
}
SHAPES = [("openmpi", 2), ("mpich", 2), ("openmpi", 4), ("mpich", 4)]
# Only for faults that end by them. They also limit init, which waits for ranks that still import.
LIMITS = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "20"}
WHAT = re.compile(r"^  what:  (.*(?:\n {9}.*)*)", re.MULTILINE)
LINE = re.compile(r"program\.py:(\d+)")
OWN_CALL = re.compile(r"hvd\.(all|broadcast|grouped)")  # a call that other ranks do not make
LONGEST = 160


@dataclasses.dataclass(frozen=True)
class End:
    """How a job ended."""

    code: int
    seconds: float
    """Seconds since the fault."""
    said: str
    """The event that `tf_hvd run` reports."""
    named: bool
    """Whether the output matches the expected report."""


def program_of(fault: Fault, way: str) -> str:
    # `at_once` calls eagerly, also in a v1 graph; a file records the time of the fault.
    preamble = f"""{jobs.PREAMBLE}
import re, threading
from tf_hvd.core.tensorflow_hooks import eagerly

def at_once(call):
    with eagerly():
        return call()
"""
    # MPI installs a handler, and only the main thread may remove it.
    crashes = "signal.signal(signal.SIGSEGV, signal.SIG_DFL)\n"
    note = "open(os.path.join(os.environ['TF_HVD_PROVE'], 'fault'), 'w').close()"
    action = f"    {note}\n    {fault.action}  # the fault\n"
    return f"{preamble}{crashes}\ndef fault():\n{action}{WAYS[way]}"


def lines_of(program: str, mark: str) -> set[int]:
    """The numbers of the lines that end in this comment."""
    lines = program.splitlines()
    return {number for number, line in enumerate(lines, 1) if line.endswith(f"  # {mark}")}


def commit_fault(name: str, way: str, family: str, ranks: int) -> End:
    """Runs a job in which rank 1 commits the fault; raises AssertionError with any discrepancy.

    MPICH's launcher kills all ranks at once, often before one of them has reported the reason.
    """
    fault = FAULTS[name]
    limits = LIMITS if fault.by_limit else {}
    program = program_of(fault, way)
    with (
        jobs.small_memory() as group,
        jobs.Job(family, ranks, program, {**limits, "PROVE_GROUP": group}) as job,
    ):
        code = job.wait(jobs.STARTS + jobs.ENDS)
        seconds = time.time() - (job.folder / "fault").stat().st_mtime
        output, left = job.output(), job.left()
        told = [job.recorded(), job.recorded(but=CULPRIT)]
    where = f"{name}, {way}, {family}, {ranks} ranks"
    assert code != 0, f"{where}: exit code 0:\n{output}"
    assert not left, f"{where}: left behind: {left}:\n{output}"
    of_others = lines_of(program, "the call")
    of_rank_1 = lines_of(program, "the fault") if OWN_CALL.search(fault.action) else set()
    for failure, right in zip(told, (of_others | of_rank_1, of_others), strict=True):
        lines = {int(number) for number in LINE.findall(failure.sentence)}
        assert "rank 1" in failure.sentence, f"{where}: {failure.sentence}\n{output}"
        assert lines, f"{where}: {failure.sentence}\n{output}"
        assert lines <= right, f"{where}: not line {right}: {failure.sentence}\n{output}"
    named = re.search(fault.told, " ".join(output.split())) is not None  # lines may be wrapped
    assert named or family == "mpich", f"{where}: no match for {fault.told!r}:\n{output}"
    what = WHAT.search(output)
    return End(code, seconds, " ".join(what[1].split()) if what else "", named)


def cell_of(end: End) -> str:
    text = f"{end.code}, {end.seconds:.1f} s"
    return text if end.named else f"({text})"


def shown(text: str) -> str:
    """A message for a table's cell, without process IDs, which differ each time."""
    text = re.sub(r"process \d+", "process N", text).replace("|", "\\|")
    return f"`{text}`" if len(text) <= LONGEST else f"`{text[: LONGEST - 4]} ...`"


def prove(short: bool) -> Table:
    table = Table(
        "Rank 1 causes a fault in the third step of each kind of program, with each MPI library. "
        "Jobs with 4 ranks simulate two nodes. Each cell shows the job's exit code and the seconds "
        "from the fault to the end of the launcher. The stall limit is "
        f"{LIMITS['HOROVOD_STALL_SHUTDOWN_TIME_SECONDS']} s. The message is from the job with Open "
        "MPI and 2 ranks. The output of each job names rank 1 and its fault, except where a cell "
        "is in parentheses. In these jobs MPICH's launcher killed all ranks as soon as rank 1 "
        "ended, before rank 1 or another rank had reported the fault. No job left a process, "
        "shared memory or a file behind. In every job, the explanation from the recordings names "
        "rank 1 and the line of the missing or wrong call. It does so even without the recording "
        "from rank 1.",
        ["rank 1", "program", *(f"{family} {ranks}" for family, ranks in SHAPES), "message"],
    )
    if short:  # each of the first faults once, alternating the kind of program and the MPI
        ways, shapes = itertools.cycle(EVERY), itertools.cycle(SHAPES[:3])
        for name, fault in itertools.islice(FAULTS.items(), 4):
            way, shape = next(ways), next(shapes)
            if way not in fault.ways:
                way = next(ways)
            end = commit_fault(name, way, *shape)
            cells = [cell_of(end) if each == shape else "" for each in SHAPES]
            table.add(name, way, *cells, shown(end.said))
        return table
    failures = []
    with jobs.small_memory() as group:
        left_out = [] if group else [name for name in FAULTS if "for memory" in name]
    for name, fault in FAULTS.items():
        if name in left_out:
            print(f"skipped, insufficient permissions: {name}", flush=True)
            continue
        for way in fault.ways:
            try:
                ends = [commit_fault(name, way, *shape) for shape in SHAPES]
            except (AssertionError, recording.RecordingError) as error:
                failures.append(f"{name}, {way}: {error}")
                print(failures[-1], flush=True)
                continue
            table.add(name, way, *map(cell_of, ends), shown(ends[0].said))
    assert not failures, "\n\n".join(failures)
    return table
