"""Process sets of one process, and init of parts of a job, in separate processes."""

import os
import pathlib
import sys

import pytest
import tensorflow as tf
from finished import finished

import tf_hvd as hvd
from tf_hvd.core import tensorflow_hooks
from tf_hvd.training import guard, v1_guard

LIMIT = 600
# The ranks' output must consist of whole lines.
PREAMBLE = """
import os, sys
def say(*what):
    sys.stdout.write(" ".join(map(str, what)) + "\\n")
    sys.stdout.flush()
launched = int(next(os.environ[n] for n in ("OMPI_COMM_WORLD_RANK", "PMI_RANK") if n in os.environ))
"""
MPI4PY = "from mpi4py import MPI\nworld = MPI.COMM_WORLD\n"
HVD = """
import tensorflow as tf
import tf_hvd as hvd
def total(value, **arguments):
    return int(hvd.allreduce(tf.constant(value), op=hvd.Sum, name="total", **arguments))
"""


# Steps of each kind that has a counter.
TRAINED = """
import keras
def trained():
    weights = [tf.Variable([1.0], name=name) for name in ("keras", "v1", "eager", "function")]
    keras_optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.0))
    v1_optimizer = hvd.DistributedOptimizer(tf.compat.v1.train.GradientDescentOptimizer(0.0))
    def tape(weight):
        with tf.GradientTape() as plain:
            loss = weight * 2.0
        return hvd.DistributedGradientTape(plain).gradient(loss, weight)
    return [
        lambda: keras_optimizer.apply_gradients([(tf.ones([1]), weights[0])]),
        lambda: v1_optimizer.minimize(lambda: weights[1] * 2.0, var_list=[weights[1]]),
        lambda: tape(weights[2]),
        tf.function(lambda: tape(weights[3]), autograph=False),
    ]
"""


@pytest.fixture(params=["openmpi", "mpich"])
def job(request, tmp_path, run_to_end, mpi_library):
    """Runs a program as a job; returns the exit code and the lines that the ranks printed."""
    library = str(mpi_library(request.param))

    def run(program, ranks, **environment):
        script = tmp_path / "program.py"
        script.write_text(PREAMBLE + program)
        command = [sys.executable, "-P", "-m", "tf_hvd_command", "run", "-np", str(ranks)]
        settings = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_HVD_MPI_LIBRARY": library}
        settings["MPI4PY_LIBMPI"] = library
        code, output = run_to_end(
            [*command, sys.executable, str(script)],
            {**os.environ, **settings, **environment},
            LIMIT,
        )
        return code, sorted(line for line in output.splitlines() if line.startswith("rank "))

    return run


@pytest.fixture
def initialized():
    hvd.init()


def test_a_set_before_registration():
    one = hvd.ProcessSet(range(3, 0, -1))
    assert one.ranks == [1, 2, 3]
    assert (one.process_set_id, one.size(), one.rank(), one.mpi_comm) == (None,) * 4
    assert str(one) == "ProcessSet(process_set_id=None, ranks=[1, 2, 3], mpi_comm=None)"
    assert not hvd.remove_process_set(one)
    with pytest.raises(ValueError, match="not a registered process set; pass it to add"):
        hvd.allreduce(tf.zeros([1]), process_set=one)
    with pytest.raises(ValueError, match=r"not a process set; pass tf_hvd\.global_process_set"):
        hvd.allreduce(tf.zeros([1]), process_set=[0])


@pytest.mark.parametrize("wrong", [[0.5], ["0"], [True], [None]])
def test_ranks_are_integers(wrong):
    with pytest.raises(ValueError, match="is not a rank; pass a list of ints"):
        hvd.ProcessSet(wrong)
    with pytest.raises(ValueError, match="is not a rank; pass a list of ints"):
        hvd.init(comm=wrong)


@pytest.mark.parametrize("wrong", [3, "0", None, object()])
def test_other_arguments_are_refused(wrong):
    with pytest.raises(ValueError, match="pass a list of ranks or an mpi4py communicator"):
        hvd.ProcessSet(wrong)


def test_the_set_of_a_single_process(initialized):
    first = hvd.add_process_set([0])
    assert (first.ranks, first.size(), first.rank(), first.included()) == ([0], 1, 0, True)
    assert float(hvd.allreduce(tf.constant(3.0), process_set=first)) == 3
    assert hvd.remove_process_set(first)
    assert not hvd.remove_process_set(first)
    assert not hvd.remove_process_set(hvd.global_process_set)
    with pytest.raises(ValueError, match="no rank 1; its ranks are 0 to 0"):
        hvd.add_process_set([0, 1])


def test_kernels_are_freed_after_every_32_removed_sets(monkeypatch):
    """Kernels were freed only for a set with a number divisible by 32."""
    freed = []
    monkeypatch.setattr(tensorflow_hooks, "free_eager_kernels", lambda: freed.append(1))
    for _ in range(2):
        hvd.shutdown()
        hvd.init()
        for _ in range(31):
            assert hvd.remove_process_set(hvd.add_process_set([0]))
    assert freed


def test_the_v1_guard_restarts_its_count_in_each_job(monkeypatch, initialized):
    """After more steps in the previous job, correct updates were reported as "not reduced"."""
    monkeypatch.setattr(guard, "watches", lambda: True)
    check, variable = v1_guard.GradientCheck(), tf.Variable(1.0)

    def update():
        check.before_update("SGD", [(tf.constant(1.0), variable)], only_added=False)

    for _ in range(5):
        hvd.allreduce(tf.constant(1.0))
        update()
    hvd.shutdown()
    hvd.init()
    hvd.allreduce(tf.constant(1.0))
    update()
    with pytest.raises(guard.GuardError, match="not reduced"):
        update()


INIT = """
import tf_hvd as hvd

def refused(text, **arguments):
    try:
        hvd.init(**arguments)
    except ValueError as error:
        assert text in str(error), error
        assert not hvd.is_initialized()
    else:
        raise AssertionError(f"{arguments} was taken")

try:
    hvd.add_process_set([0])
except ValueError as error:
    assert "call hvd.init() first" in str(error), error
refused("the only valid string is 'dynamic'", process_sets="static")
refused("the job has no rank 1", process_sets=[[0], [1]])
refused("[0] is the only valid list", comm=[0, 1])
refused("the list is empty", comm=[])
refused("pass None, a list of ranks", comm="all")
first, second = hvd.ProcessSet([0]), hvd.ProcessSet([0])
try:
    hvd.init(comm=[0], process_sets=[first, second])
except ValueError as error:  # Horovod's tests continue after this
    assert "entry 1, ProcessSet(process_set_id=None, ranks=[0]" in str(error), error
    assert "process set 1 has the same ranks" in str(error), error
assert (hvd.is_initialized(), hvd.size(), second.process_set_id) == (True, 1, None)
assert (first.process_set_id, first.size(), first.rank()) == (1, 1, 0)
hvd.init(process_sets=[second])
assert second.process_set_id == 1
hvd.shutdown()
assert str(first) == "ProcessSet(process_set_id=None, ranks=[0], mpi_comm=None)"
assert (first.size(), second.size(), first.included()) == (None, None, None)
hvd.init(process_sets="DYNAMIC")
assert hvd.add_process_set(first).process_set_id == 1
print("all well")
"""


def test_init_with_sets():
    result = finished([sys.executable, "-P", "-c", INIT])
    assert (result.returncode, result.stdout) == (0, "all well\n"), result.stderr


def test_lists_of_ranks_make_separate_jobs(job):
    """Two jobs at the same time, one with its ranks reversed and with a process set."""
    code, said = job(
        HVD
        + """
lists = {0: [2, 0], 1: [1]}
hvd.init(comm=lists[launched % 2], process_sets=[[0]])
say("rank", launched, "is", hvd.rank(), "of", hvd.size(), hvd.local_rank(), hvd.local_size(),
    total(10 + launched))
""",
        3,
    )
    assert code == 0
    assert said == ["rank 0 is 1 of 2 1 2 22", "rank 1 is 0 of 1 0 1 11", "rank 2 is 0 of 2 0 2 22"]


def test_a_process_outside_of_the_list(job):
    """It gets an error, may continue, and its exit does not end the others."""
    code, said = job(
        HVD
        + """
try:
    hvd.init(comm=[0, 1])
except hvd.HorovodInitError as error:
    say("rank", launched, error)
else:
    say("rank", launched, "has", total(1))
""",
        3,
    )
    assert code == 0
    assert said[:2] == ["rank 0 has 2", "rank 1 has 2"]
    assert said[2].startswith(
        "rank 2 init(comm=[0, 1]) was called by rank 2 of MPI_COMM_WORLD, which is not in the list"
    )


def test_sets_of_init_must_agree(job):
    code, said = job(
        HVD
        + """
try:
    hvd.init(process_sets=[[0, 1], [1]] if launched == 0 else None)
except ValueError as error:
    say("rank", launched, hvd.is_initialized(), error)
""",
        2,
    )
    assert code == 0
    text = (
        "False mismatch in barrier 'init': rank 0 has process sets [0, 1], [1], rank 1 has no "
        "process sets; process sets must be the same on all ranks"
    )
    assert said == [f"rank 0 {text}", f"rank 1 {text}"]


def test_communicators_of_mpi4py(job):
    """A job of a part of MPI_COMM_WORLD, and process sets of communicators, split and whole."""
    code, said = job(
        MPI4PY
        + HVD
        + """
part = world.Split(0 if launched < 3 else 1, key=-launched)
pairs = part.Split(part.rank // 2)
by_parts = hvd.ProcessSet(pairs)
assert by_parts.ranks is None and by_parts.included() is None
try:
    hvd.init(comm=part, process_sets=[by_parts, hvd.ProcessSet(pairs.Dup())])
except ValueError as error:
    assert "entry 1" in str(error) and "has the same ranks" in str(error), error
else:
    raise AssertionError("two sets of the same ranks were taken")
assert hvd.global_process_set.mpi_comm is part
assert (hvd.rank(), hvd.size()) == (part.rank, part.size)
say("rank", launched, "is", hvd.rank(), "of", hvd.size(), by_parts.process_set_id, by_parts.ranks,
    total(1 + launched), total(1 + launched, process_set=by_parts))
again = hvd.ProcessSet(pairs)
hvd.init(process_sets=[again])
assert again.process_set_id == by_parts.process_set_id
assert hvd.remove_process_set(by_parts) and again.process_set_id is None
first = part.Create(part.Get_group().Incl([0]))
added = hvd.add_process_set(first)
assert added.ranks == [0] and added.included() == (hvd.rank() == 0)
try:
    hvd.add_process_set(world)
except ValueError as error:
    assert "a process outside of the job" in str(error), error
else:
    raise AssertionError("a foreign process was taken")
""",
        4,
    )
    assert code == 0
    assert said == [
        "rank 0 is 2 of 3 2 [2] 6 1",
        "rank 1 is 1 of 3 1 [0, 1] 6 5",
        "rank 2 is 0 of 3 1 [0, 1] 6 5",
        "rank 3 is 0 of 1 1 [0] 4 4",
    ]


def test_init_again_under_mpi4py(job):
    """MPI stays initialised, so that jobs of different processes may follow each other.

    Optimizers and tapes restart their counts in each job: ranks from several jobs disagreed.
    """
    code, said = job(
        MPI4PY
        + HVD
        + TRAINED
        + """
hvd.init(comm=world)
first = total(1)
steps = [trained() for _ in range(2)]
for step in steps[0]:
    for _ in range(3):
        step()
hvd.shutdown()
hvd.init(comm=[1, 0])
for step in steps[launched]:  # rank 1 continues with other ranks
    for _ in range(12):
        step()
say("rank", launched, first, hvd.rank(), total(1))
try:
    hvd.init(comm=world.Dup())
except ValueError as error:
    assert "names the ranks [0, 1] of MPI_COMM_WORLD" in str(error), error
else:
    raise AssertionError("other ranks were taken")
""",
        2,
    )
    assert code == 0
    assert said == ["rank 0 2 1 2", "rank 1 2 0 2"]


def test_invalid_communicators(job):
    code, said = job(
        MPI4PY
        + HVD
        + """
def refused(text, function, argument):
    try:
        function(argument)
    except ValueError as error:
        assert text in str(error), error
    else:
        raise AssertionError(text)

inter = world.Split(launched).Create_intercomm(0, world, 1 - launched)
refused("intercommunicator", hvd.init, inter)
refused("this process is not in the communicator", hvd.init, MPI.COMM_NULL)
hvd.init()
refused("which is ambiguous", hvd.add_process_set, MPI.COMM_NULL)
say("rank", launched, total(1))
""",
        2,
    )
    assert code == 0
    assert said == ["rank 0 2", "rank 1 2"]


def test_a_communicator_of_another_mpi(job, mpi_library, tmp_path):
    """An object that only looks like mpi4py: MPI is not running, so its handle is invalid."""
    fake = pathlib.Path(tmp_path) / "mpi4py"
    fake.mkdir()
    (fake / "__init__.py").write_text("")
    (fake / "MPI.py").write_text(
        "class Group:\n"
        "    def Get_size(self): return 2\n"
        "    @staticmethod\n"
        "    def Translate_ranks(group, ranks, other): return ranks\n"
        "class Comm:\n"
        "    def Is_inter(self): return False\n"
        "    def Get_group(self): return Group()\n"
        "    def py2f(self): return 0\n"
        "COMM_WORLD, COMM_NULL, UNDEFINED = Comm(), Comm(), -1\n"
    )
    code, said = job(
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
        + MPI4PY
        + HVD
        + """
try:
    hvd.init(comm=world)
except hvd.HorovodInitError as error:
    say("rank", launched, error)
""",
        2,
    )
    assert code == 0
    assert len(said) == 2
    for line in said:
        assert "is not the one that runs in this process; set TF_HVD_MPI_LIBRARY" in line
