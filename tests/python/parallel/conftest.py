"""Every rank runs this pytest at once, started by `tf_hvd run -np N`.

- Rank 0 reports as pytest does. The others print one line at the end, or all of their output
  if something failed there.
- After a failure a rank stops and leaves the job, so the others' collectives
  fail immediately with the name of the failed test. Nothing waits for a time-out.
- TF_HVD_CUDA_LIBRARY is the path of tests/gpu's libsoftware_device.so. With it, tests run on a
  simulated GPU (tests/gpu/software_device.cc) where it has kernels. They fail on any forbidden
  access to its memory.
- With TF_HVD_TESTS_DEVICE=/GPU:0 they run on a real GPU (tests/run_gpu.sh). Each rank has its own
  if there are enough, otherwise all use the first.
- pytest-timeout ends a rank that hangs inside the library, and prints its stacks.
"""

import contextlib
import copy
import ctypes
import gc
import io
import os
import re
import sys
import time

# Before init: a lost call is reported after seconds. It becomes an error later, because another
# rank may be busy with local work on a loaded machine.
os.environ.setdefault("HOROVOD_STALL_CHECK_TIME_SECONDS", "10")
os.environ.setdefault("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", "300")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd
from tf_hvd.core import _native
from tf_hvd.core.convention import Convention
from tf_hvd.horovod import names as horovod_names
from tf_hvd.keras import adapted

SOFTWARE_GPU = os.environ.get("TF_HVD_CUDA_LIBRARY")
if SOFTWARE_GPU:
    tf.load_library(SOFTWARE_GPU)
    GPU = ctypes.CDLL(SOFTWARE_GPU)
    GPU.tf_hvd_software_gpu_faults.restype = ctypes.c_char_p
DEVICE = os.environ.get("TF_HVD_TESTS_DEVICE", "/GPU:0" if SOFTWARE_GPU else None)

hvd.init()
if DEVICE and not SOFTWARE_GPU:
    GPUS = tf.config.list_physical_devices("GPU")
    tf.config.set_visible_devices(GPUS[hvd.local_rank() % len(GPUS)], "GPU")
# Read now: they are unavailable once a failure has ended the runtime.
SIZE, RANK = hvd.size(), hvd.rank()
# Four ranks share the cores of a small machine.
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(4)

HIDDEN = io.StringIO()
TIMEOUT = 600
LARGE_GIB = 12
MEMORY_GIB = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
# All ranks must skip the same tests.
ENOUGH_MEMORY = all(hvd.allgather_object(MEMORY_GIB >= LARGE_GIB))


def pytest_report_header():
    large = "" if ENOUGH_MEMORY else f"; large tests need {LARGE_GIB}: skipped"
    return f"rank {RANK} of {SIZE}, {MEMORY_GIB:.0f} GiB of memory{large}"


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    config.addinivalue_line("markers", "ranks(least): needs a job of at least this many ranks")
    config.addinivalue_line("markers", "jobs(*sizes): runs in jobs of these sizes only")
    config.addinivalue_line("markers", "compiled: uses XLA, which has no software GPU")
    config.addinivalue_line("markers", "not_compiled: XLA cannot compile it")
    config.addinivalue_line("markers", "framework: about TensorFlow and Keras, not about MPI")
    config.addinivalue_line("markers", "large: moves gigabytes; in jobs of 2 ranks, in tier 2")
    # Third parties' warnings would change the final line of each rank.
    config.addinivalue_line("filterwarnings", "ignore")
    if not config.option.maxfail and SIZE > 1:
        config.option.maxfail = 1
    writer = config.pluginmanager.get_plugin("terminalreporter")._tw
    if SIZE > 1:
        writer.hasmarkup = False  # the launcher gives its ranks terminals
    if RANK > 0:
        # pytest-timeout asks for a writer when it ends a hanging rank, to show its stacks.
        shown = copy.copy(writer)
        config.get_terminal_writer = lambda: shown
        writer._file = HIDDEN


@pytest.fixture(autouse=bool(DEVICE))
def on_device():
    with tf.device(DEVICE):
        yield
    assert not SOFTWARE_GPU or GPU.tf_hvd_software_gpu_faults().decode() == ""


def pytest_terminal_summary(terminalreporter):
    if SOFTWARE_GPU:
        launches = GPU.tf_hvd_software_gpu_launches()
        terminalreporter.write_line(f"{launches} launches and copies on the software GPU")


def wanted(item):
    ranks = item.get_closest_marker("ranks")
    if ranks is not None and ranks.args[0] > SIZE:
        return False
    jobs = item.get_closest_marker("jobs")
    if jobs is not None and SIZE not in jobs.args:
        return False
    mode = getattr(getattr(item, "callspec", None), "params", {}).get("evaluate")
    if mode == "compiled" and item.get_closest_marker("not_compiled") is not None:
        return False
    if DEVICE and (mode == "compiled" or item.get_closest_marker("compiled") is not None):
        return False
    large = SIZE == 2 and ENOUGH_MEMORY and not SOFTWARE_GPU
    large = large and item.config.getoption("tier", 2) == 2
    return item.get_closest_marker("large") is None or large


def pytest_collection_modifyitems(items):
    items[:] = [item for item in items if wanted(item)]
    for item in items:
        item.add_marker(pytest.mark.timeout(TIMEOUT, method="thread"))  # unless it has one


@pytest.fixture(autouse=True)
def own_garbage():
    """Free a test's garbage, and exclude the rest from Python's later collections.

    After a failed fit, tf.data's objects take as long to end as they have existed, up to a minute.
    (TensorFlow 2.21: the thread that tunes a dataset is not woken.) So they are ended early.
    """
    yield
    gc.collect()
    gc.freeze()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item):
    outcome = yield
    report = outcome.get_result()
    if report.failed and item.config.option.maxfail == 1:
        _native.shutdown(
            f"test {item.nodeid} failed ({report.when}): {report.longrepr!s:.300}", False
        )


def pytest_unconfigure():
    if RANK > 0:
        text = HIDDEN.getvalue()
        closing = text.strip().split("\n")[-1]
        good = re.search(r"^\d+ passed(, \d+ deselected)? in ", closing)
        shown = closing if good else text
        sys.__stdout__.write(f"[rank {RANK}] {shown.strip()}\n")
        sys.__stdout__.flush()


def _numpy(value):
    return value.numpy() if hasattr(value, "numpy") else value


def run_eagerly(function, *arrays):
    """Call `function` on eager tensors; returns its results as arrays."""
    return tf.nest.map_structure(_numpy, function(*[tf.constant(a) for a in arrays]))


def run_in_function(function, *arrays, jit=None):
    """The same, as a tf.function."""
    return run_eagerly(tf.function(function, autograph=False, jit_compile=jit), *arrays)


def run_compiled(function, *arrays):
    """The same, compiled by XLA."""
    return run_in_function(function, *arrays, jit=True)


def run_in_session(function, *arrays):
    """The same, as a v1 graph in a Session."""
    arrays = [np.asarray(a) for a in arrays]
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        inputs = [tf.compat.v1.placeholder(a.dtype, a.shape) for a in arrays]
        outputs = function(*inputs)
        session.run(tf.compat.v1.global_variables_initializer())
        return session.run(outputs, dict(zip(inputs, arrays, strict=True)))


MODES = {
    "eager": run_eagerly,
    "function": run_in_function,
    "compiled": run_compiled,
    "session": run_in_session,
}


# The effect of a mode does not depend on other ranks, so programs_test.py has each in every job.
# Nor does it depend on the route between software GPUs: NCCL's job has the modes.
OTHER_WAY = SOFTWARE_GPU and os.environ.get("TF_HVD_NCCL") == "0"
MODES_HERE = (
    list(MODES)
    if SIZE == 2 and "MPICH" not in _native.mpi_version() and not OTHER_WAY
    else ["eager"]
)


@pytest.fixture(params=MODES_HERE)
def evaluate(request):
    """Runs a function of tensors on arrays, in TensorFlow's modes; see MODES_HERE."""
    return MODES[request.param]


@pytest.fixture
def modes():
    return MODES_HERE


@pytest.fixture
def functions_called():
    """The code of each Python function that begins within a call, in order."""

    def called(call):
        codes = []

        def note(frame, event, _):
            if event == "call":
                codes.append(frame.f_code)

        sys.setprofile(note)
        try:
            call()
        finally:
            sys.setprofile(None)
        return codes

    return called


@pytest.fixture
def after():
    """Returns a value in a graph after a delay: (seconds, value) -> tensor."""

    def later(seconds, value):
        def wait(value):
            time.sleep(seconds)
            return value

        # Stateless, so that nothing else in the graph waits for it.
        waited = tf.numpy_function(wait, [value], value.dtype, stateful=False)
        return tf.ensure_shape(waited, value.shape)

    return later


@pytest.fixture
def one_machine():
    """For bits that are guaranteed within a machine: across machines, each machine sums first."""
    if hvd.cross_size() > 1:
        pytest.skip("on several machines")


@pytest.fixture
def rank():
    return hvd.rank()


@pytest.fixture
def size():
    return hvd.size()


@pytest.fixture
def folder(tmp_path):
    """Rank 0's temporary folder, on all ranks."""
    return hvd.broadcast_object(str(tmp_path), 0)


@pytest.fixture
def horovod(monkeypatch):
    """`import horovod.tensorflow` works and gives tf_hvd, in this test only.

    Horovod's names are permanent in a process. The fixture removes them, because the other
    tests of a job use tf_hvd under its own names.
    """
    monkeypatch.setattr(Convention, "name", "tf_hvd")
    monkeypatch.setattr(Convention, "asked", False)
    hvd.install_as_horovod()
    yield
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, horovod_names._Finder)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "horovod"]:
        del sys.modules[name]


@contextlib.contextmanager
def _float64(library):
    """A context in which layers compute in float64."""

    def put(precision):
        library.backend.set_floatx(precision)
        library.mixed_precision.set_global_policy(precision)

    put("float64")
    try:
        yield
    finally:
        put("float32")


@pytest.fixture
def float64():
    """Call it with a Keras library: a context in which its layers compute in float64."""
    return _float64


@pytest.fixture(autouse=True)
def no_adapted_layers_are_left():
    """The next test does not compare the layers of this one, whatever still refers to them."""
    yield
    adapted._layers.clear()
