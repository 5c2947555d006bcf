"""Another user of the same machine: what is a job's is closed to it."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest

# A job whose ranks wait in a collective, until a file is there.
PROGRAM = """
import os, pathlib, sys, time
import tensorflow as tf
import tf_hvd as hvd
hvd.init()
hvd.allreduce(tf.ones([3]), name="secret_name")
pathlib.Path(sys.argv[1], f"here.{hvd.rank()}").write_text(str(os.getpid()))
while hvd.rank() and not pathlib.Path(sys.argv[1], "go").exists():
    time.sleep(0.05)
total = float(hvd.allreduce(1.0, op=hvd.Sum, name="last"))
os.write(1, f"sum {total}\\n".encode())  # in one piece, which no other rank's comes into
"""

# What a stranger tries: each line is an attempt and what came of it, "refused" or what it got.
STRANGER = """
import glob, json, os, pathlib, socket, sys

folder, processes, ports = sys.argv[1], sys.argv[2].split(","), sys.argv[3].split(",")
found = {}

def attempt(name, what):
    try:
        found[name] = what()
    except OSError as error:
        found[name] = "refused"

def connected(path):
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(path)
        link.sendall(b"7 1\\n")
        return "connected"

def spoken(port):
    # What is listened at on loopback anybody may reach; nobody believes what is said there.
    with socket.create_connection(("127.0.0.1", int(port)), timeout=2) as link:
        link.sendall(b"\\x00\\xff" * 4096)
        link.settimeout(2)
        try:
            return repr(link.recv(64))
        except TimeoutError:
            return "silence"

attempt("list the launcher's folder", lambda: os.listdir(folder))
attempt("report as a rank", lambda: connected(folder + "/ranks"))
attempt("write to the folder", lambda: open(folder + "/exception.1", "w").write("x"))
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


def below(process):
    """A process and all below it."""
    import psutil

    one = psutil.Process(process)
    return [one, *one.children(recursive=True)]


def listened_at(processes):
    """The ports on loopback that these processes listen at."""
    ports = set()
    for process in processes:
        for one in process.net_connections(kind="tcp"):
            if one.status == "LISTEN":
                ports.add(one.laddr.port)
    return sorted(ports)


@pytest.mark.parametrize("family", ["openmpi", "mpich"])
def test_another_user_is_refused(tmp_path, mpi_library, family):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    nobody = 65534
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    job = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "tf_hvd.launch.main", "run", "-np", "2"),
            *(sys.executable, str(program), str(tmp_path)),
        ],
        env={**os.environ, "TF_HVD_MPI_LIBRARY": str(mpi_library(family))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        deadline = time.monotonic() + 120
        while len(list(tmp_path.glob("here.*"))) < 2:
            assert job.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        ranks = [(tmp_path / f"here.{rank}").read_text() for rank in range(2)]
        environ = pathlib.Path("/proc", ranks[0], "environ").read_text().split("\0")
        (folder,) = (
            line.partition("=")[2] for line in environ if line.startswith("TF_HVD_LAUNCHER_FOLDER=")
        )
        ports = listened_at(below(job.pid))
        words = [folder, ",".join([*ranks, str(job.pid)]), ",".join(map(str, ports))]
        done = subprocess.run(
            [shutil.which("python3", path=os.defpath), "-I", "-", *words],
            input=STRANGER,
            user=nobody,
            group=nobody,
            extra_groups=[],
            cwd="/",
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert len(found) > 12
        assert {name: got for name, got in found.items() if got != "refused"} == {}
        (tmp_path / "go").touch()
        output, _ = job.communicate(timeout=120)
        assert job.returncode == 0, output
        assert output.count("sum 2.0") == 2, output
    finally:
        if job.poll() is None:
            job.send_signal(signal.SIGTERM)
            job.communicate(timeout=60)
