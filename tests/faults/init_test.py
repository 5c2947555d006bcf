"""Ranks that do not reach init(), or that have different settings: the resulting errors."""

import re
import subprocess

import pytest

BOTH = pytest.mark.parametrize("family", ["openmpi", "mpich"])

# Finds the rank before any other import, so that rank 1 can act like a broken script.
PLACE = """
import os, pathlib, sys, time
place = int(os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("PMI_RANK")))
"""

INIT = """
import tf_hvd as hvd
hvd.init()
print("joined", hvd.rank(), flush=True)
"""


@BOTH
def test_a_rank_exits_before_init(plain_job, family):
    """Both MPIs wait indefinitely for a rank that exits with code 0 without init()."""
    code, output = plain_job(PLACE + "if place == 1:\n    sys.exit(0)\n" + INIT, family=family)
    assert (
        "tf_hvd run: init() can never finish: rank 1 has ended without calling it. All ranks of "
        "the job must call hvd.init()"
    ) in output
    assert "joined" not in output
    assert code != 0


def test_a_rank_raises_before_init(plain_job):
    """MPICH's launcher lets the other ranks wait; Open MPI's ends them."""
    program = PLACE + "if place == 1:\n    raise ValueError('no data')\n" + INIT
    code, output = plain_job(program, family="mpich")
    assert "rank 1 has ended without calling it" in output
    assert "ValueError: no data" in output
    assert code != 0


@BOTH
def test_rank_never_calls_init(plain_job, family):
    program = PLACE + "while place == 1:\n    time.sleep(1)\n" + INIT
    code, output = plain_job(
        program,
        family=family,
        HOROVOD_STALL_CHECK_TIME_SECONDS="2",
        HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="15",
    )
    who = (
        r"rank 1, process \d+ \(python[\d.]*( -u)? \S*program\.py\), has not called it yet "
        r"\(still importing, or stuck before it\)\. All ranks"
    )
    assert re.search(rf"tf_hvd run: init\(\) has waited 2 s for other ranks; {who}", output), output
    text = r"init\(\) has waited {} s for 1 other rank of 2\. All ranks of the job must call"
    assert re.search(rf"tf_hvd warning, rank 0 \(.*\): {text.format(2)}", output), output
    error = rf"tf_hvd error, rank 0 \(.*\): {text.format(15)} .* This process ends here"
    assert re.search(error, output), output
    assert "joined" not in output
    assert code != 0


def test_late_rank_is_awaited(plain_job, tmp_path):
    """The other ranks wait for it, with a warning."""
    program = f"""
log = pathlib.Path({str(tmp_path / "told")!r})
if place == 0:
    os.dup2(os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND), 2)
while place == 1 and not (log.exists() and "1 other rank of 2" in log.read_text()):
    time.sleep(0.1)
"""
    code, output = plain_job(
        PLACE + program + INIT,
        HOROVOD_STALL_CHECK_TIME_SECONDS="1",
        HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="90",
    )
    assert sorted(re.findall(r"joined (\d)", output)) == ["0", "1"]
    assert code == 0


def test_shutdown_while_init_waits(plain_job, tmp_path):
    """As at the end of a program with an init on another thread that does not return."""
    program = f"""
done = pathlib.Path({str(tmp_path / "done")!r})
while place == 1:
    time.sleep(0.1)
    if done.exists():
        os._exit(0)
import threading
import tf_hvd as hvd
threading.Thread(target=hvd.init, daemon=True).start()
def name_of(task):
    try:
        return (task / "comm").read_text()
    except OSError:  # it has ended
        return ""
names = pathlib.Path("/proc/self/task")
while not any(name_of(task) == "tf_hvd_init\\n" for task in names.iterdir()):
    time.sleep(0.01)
hvd.shutdown()
print("came back; initialized:", hvd.is_initialized(), flush=True)
done.touch()
os._exit(0)
"""
    _, output = plain_job(PLACE + program)
    assert "came back; initialized: False" in output


@BOTH
def test_different_settings_are_an_error(plain_job, family):
    """All ranks get an error. MPI stays initialised by tf_hvd, so a correct init can follow."""
    code, output = plain_job(
        PLACE
        + """
import ctypes
os.environ["TF_HVD_SPARSE"] = "dense" if place == 0 else "rows"
os.environ["HOROVOD_FUSION_THRESHOLD"] = "1" if place == 0 else "2"
os.environ["HOROVOD_LOG_LEVEL"] = "warning" if place == 0 else "info"
import tensorflow as tf
import tf_hvd as hvd
try:
    hvd.init()
except hvd.HorovodInitError as error:
    print("refused:", error, flush=True)
os.environ["TF_HVD_SPARSE"] = "rows"
del os.environ["HOROVOD_FUSION_THRESHOLD"]
hvd.init()
print("sum", int(hvd.allreduce(tf.constant([place + 1]), op=hvd.Sum)[0]), flush=True)
hvd.shutdown()
ended = ctypes.c_int()
ctypes.CDLL(os.environ["TF_HVD_MPI_LIBRARY"]).MPI_Finalized(ctypes.byref(ended))
print("finalized", ended.value, flush=True)
""",
        family=family,
    )
    refused = re.findall("refused: (.*)", output)
    assert len(refused) == 2
    assert refused[0] == refused[1]
    for name, first, second in (
        ("TF_HVD_SPARSE", "dense", "rows"),
        ("HOROVOD_FUSION_THRESHOLD", "1", "2"),
    ):
        text = rf"{name} is '{first}' on rank 0 \(.+?\) and '{second}' on rank 1 \("
        assert re.search(text, refused[0]), output
    assert "HOROVOD_LOG_LEVEL" not in refused[0]
    assert output.count("sum 3") == 2
    assert output.count("finalized 1") == 2
    assert code == 0


@BOTH
def test_mpi_with_too_low_thread_level(plain_job, family):
    """Threads of tf_hvd and of the script would call MPI at the same time."""
    code, output = plain_job(
        """
import mpi4py
mpi4py.rc.thread_level = "serialized"
from mpi4py import MPI
import tf_hvd as hvd
try:
    hvd.init()
except hvd.HorovodInitError as error:
    print("refused:", error, flush=True)
""",
        family=family,
    )
    refused = re.findall("refused: (.*)", output)
    assert len(refused) == 2
    for text in refused:
        for part in ("MPI_THREAD_SERIALIZED", 'mpi4py.rc.thread_level = "multiple"', "hvd.init()"):
            assert part in text
    assert code == 0


@BOTH
def test_mpi4py_after_init_on_other_threads(job, family):
    """MPI calls of the script during tf_hvd's: MPI must run with MPI_THREAD_MULTIPLE."""
    code, output = job(
        """
import threading
from mpi4py import MPI
assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
assert hvd.mpi_threads_supported()
wrong = []

def theirs(comm):
    for i in range(50):
        if comm.allreduce(i + rank) != 2 * i + 1:
            wrong.append(i)

threads = [threading.Thread(target=theirs, args=(MPI.COMM_WORLD.Dup(),)) for _ in range(2)]
for thread in threads:
    thread.start()
for i in range(40):
    n = 1 + i * 997 % 30000
    if not (hvd.allreduce(tf.fill([n], i + rank), op=hvd.Sum, name="g").numpy() == 2 * i + 1).all():
        wrong.append(("hvd", i))
for thread in threads:
    thread.join()
say("wrong:", wrong)
""",
        family=family,
    )
    assert output.count("wrong: []") == 2
    assert code == 0


@pytest.mark.parametrize("node_data", ["shm", "mpi"])
def test_too_little_shared_memory(plain_job, node_data):
    """A container's /dev/shm may be small: the error says how much is needed, and a way around."""
    mount = 'mount -t tmpfs -o size=7m tmpfs /dev/shm && exec "$@"'
    within = ["unshare", "--mount", "sh", "-c", mount, "sh"]
    if subprocess.run([*within, "true"], capture_output=True).returncode != 0:
        pytest.skip("cannot mount a separate /dev/shm")
    program = INIT + "print('sum', float(hvd.allreduce(1.0 + hvd.rank(), op=hvd.Sum)))\n"
    code, output = plain_job(program, within=within, TF_HVD_NODE_DATA=node_data)
    if node_data == "mpi":
        assert (code, output.count("sum 3.0")) == (0, 2), output
        return
    assert code != 0
    assert re.search(
        r"posix_fallocate failed: No space left on device\. /dev/shm has no room for \d{7} bytes: "
        r"remove old files there, .* or set TF_HVD_NODE_DATA=mpi",
        output,
    ), output


def test_ranks_run_different_versions_of_a_program(plain_job, tmp_path):
    """A copy that was not updated: rank 0 warns once, and the job continues."""
    texts = [tmp_path / str(number) / "train.py" for number in range(2)]
    for text in texts:
        text.parent.mkdir()
        text.write_text(f"# {text}")
    code, output = plain_job(
        f"""{PLACE}
__import__("__main__").__file__ = {[str(text) for text in texts]!r}[place]
module = type(sys)("package_of_this_test")
module.__version__ = f"1.{{place}}"
sys.modules["package_of_this_test"] = module
{INIT}
"""
    )
    assert code == 0, output
    (warning,) = (line for line in output.splitlines() if "the text of train.py" in line)
    assert re.search(
        r"warning, rank 0 \(.*\): the text of train\.py \(its SHA-256\) is '\w{12}' on rank 0 "
        r"\(.*\) and '\w{12}' on rank 1 \(.*\); the version of package_of_this_test is '1\.0' on "
        r"rank 0 \(.*\) and '1\.1' on rank 1 \(.*\)\. Ranks that run different code ",
        warning,
    )
