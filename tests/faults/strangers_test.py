"""Another user of the same machine has no access to a job's resources."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

# A job with ranks that wait in a collective until a file exists. An elastic job has committed then.
PROGRAM = """
import os, pathlib, sys, time
import tensorflow as tf
import tf_hvd as hvd
hvd.init()

def work(state):
    hvd.allreduce(tf.ones([3]), name="secret_name")
    if state:
        state.commit()
    pathlib.Path(sys.argv[1], f"here.{hvd.rank()}").write_text(str(os.getpid()))
    while hvd.rank() and not pathlib.Path(sys.argv[1], "go").exists():
        time.sleep(0.05)
    total = float(hvd.allreduce(1.0, op=hvd.Sum, name="last"))
    os.write(1, f"sum {total}\\n".encode())  # in one write, which other ranks cannot split

if "TF_HVD_ELASTIC_START" in os.environ:
    hvd.elastic.run(work)(hvd.elastic.ObjectState(batch=0))
else:
    work(None)
"""

# The attempts of another user, each with its result: "refused", or the data that it got.
STRANGER = """
import glob, json, os, socket, struct, sys, tempfile

job, processes, ports = sys.argv[1], sys.argv[2].split(","), sys.argv[3].split(",")
found = {}

def attempt(name, what):
    try:
        found[name] = what()
    except OSError as error:
        found[name] = "refused"

def reported():
    with socket.socket(socket.AF_UNIX) as link:
        link.connect("\\0tf_hvd/" + job)
        said = json.dumps({"do": "begins", "rank": 0, "bytes": 0}).encode()
        link.sendall(struct.pack("<I", len(said)) + said + b"\\n")
        return repr(link.recv(64)) if link.recv(1) else "refused"

def spoken(port):
    # Any user can reach ports on loopback, but messages there are not accepted.
    with socket.create_connection(("127.0.0.1", int(port)), timeout=2) as link:
        link.sendall(b"\\x00\\xff" * 4096)
        link.settimeout(2)
        try:
            return repr(link.recv(64))
        except TimeoutError:
            return "silence"

attempt("report as a rank", reported)
for folder in glob.glob(tempfile.gettempdir() + "/tf_hvd-*"):
    attempt(f"list {folder}", lambda: os.listdir(folder))
    attempt(f"write to {folder}", lambda: open(folder + "/x", "w").write("x"))
for process in processes:
    attempt(f"environment of {process}", lambda: open(f"/proc/{process}/environ").read(1))
    attempt(f"files of {process}", lambda: os.listdir(f"/proc/{process}/fd"))
    attempt(f"memory of {process}", lambda: open(f"/proc/{process}/mem", "rb").read(1))
    attempt(f"signal to {process}", lambda: os.kill(int(process), 15))
for path in glob.glob("/dev/shm/*"):
    if os.stat(path).st_uid != os.getuid():
        attempt(f"read {path}", lambda: open(path, "rb").read(1) and "read")
        attempt(f"write {path}", lambda: open(path, "r+b") and "opened")
        attempt(f"remove {path}", lambda: os.unlink(path))
for port in filter(None, ports):
    try:
        spoken(port)
    except OSError:
        pass
print(json.dumps(found))
"""

# Makes all requests of ranks to a job's agent; with "harmless", only those that do not harm the
# job.
ASKS = """
import json, socket, struct, sys

job, harmless = sys.argv[1], "harmless" in sys.argv
found = {}

def message(what, load=b"", **fields):
    text = json.dumps({"do": what, "round": 0, "bytes": len(load), **fields}).encode()
    return struct.pack("<I", len(text)) + text + load + b"\\n"

def attempt(name, data):
    # The answer of the other side, until it closes or is silent.
    found[name] = "refused"
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(5)
        try:
            link.connect("\\0tf_hvd/" + job)
            link.sendall(data)
            said, files, _, _ = socket.recv_fds(link, 1 << 12, 4)
            if said or files:
                found[name] = f"{said} and {len(files)} files"
        except ConnectionError:
            pass
        except TimeoutError:
            found[name] = "silence"

attempt("list parts", message("parts"))
attempt("fetch a part", message("fetch", rank=0, commit=1))
attempt("map a file", message("file", name="notice"))
if not harmless:
    attempt("put a part", message("part", b"false", rank=77, commit=1))
    attempt("forget", message("forget", after=0, last=1 << 40))
print(json.dumps(found))
"""
UNPRIVILEGED = 65534


def below(process):
    """A process and its descendants."""
    import psutil

    one = psutil.Process(process)
    return [one, *one.children(recursive=True)]


def listened_at(processes):
    """The loopback ports on which these processes listen."""
    ports = set()
    for process in processes:
        for one in process.net_connections(kind="tcp"):
            if one.status == "LISTEN":
                ports.add(one.laddr.port)
    return sorted(ports)


def run_script(text, *words, **options):
    """The results of a script, run by another Python that every user can read."""
    done = subprocess.run(
        [shutil.which("python3", path=os.defpath), "-I", "-", *words],
        input=text,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def gained(text, *words):
    """The successful attempts of a script as an unprivileged user, and the number of attempts."""
    found = run_script(text, *words, user=UNPRIVILEGED, group=UNPRIVILEGED, extra_groups=[])
    return {name: got for name, got in found.items() if got != "refused"}, len(found)


def wait_for(job, is_done):
    deadline = time.monotonic() + 120
    while not is_done():
        assert job.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ask_agent(name):
    """Asks an elastic job's agent, as an unprivileged user and, without harm, as its user."""
    assert gained(ASKS, name) == ({}, 5)
    # The requests are valid: the job's user gets answers.
    answers = run_script(ASKS, name, "harmless")
    assert len(answers) == 3
    assert not {"refused", "silence"}.intersection(answers.values()), answers
    assert '"parts": [[' in answers["list parts"]
    assert "[77, " not in answers["list parts"]


@pytest.mark.parametrize(
    ("family", "elastic"), [("openmpi", True), ("mpich", False)], ids=["openmpi_elastic", "mpich"]
)
def test_another_user_is_refused(tmp_path, mpi_library, family, elastic):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    job = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "tf_hvd_command", "run", "-np", "2"),
            *(("--min-np", "2") if elastic else ()),
            *(sys.executable, str(program), str(tmp_path)),
        ],
        env={**os.environ, "TF_HVD_MPI_LIBRARY": str(mpi_library(family))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_for(job, lambda: len(list(tmp_path.glob("here.*"))) == 2)
        ranks = [(tmp_path / f"here.{rank}").read_text() for rank in range(2)]
        lines = pathlib.Path("/proc", ranks[0], "environ").read_text().split("\0")
        environ = dict(line.partition("=")[::2] for line in lines)
        ports = listened_at(below(job.pid))
        processes = ",".join([*ranks, str(job.pid)])
        name = environ["TF_HVD_JOB"]
        got, attempts = gained(STRANGER, name, processes, ",".join(map(str, ports)))
        assert got == {}
        assert attempts > 12
        if elastic:
            ask_agent(name)
        (tmp_path / "go").touch()
        output, _ = job.communicate(timeout=120)
        assert job.returncode == 0, output
        assert output.count("sum 2.0") == 2, output
    finally:
        if job.poll() is None:
            job.send_signal(signal.SIGTERM)
            job.communicate(timeout=60)
