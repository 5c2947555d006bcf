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

# A job whose ranks wait in a collective, until a file is there; an elastic one has committed then.
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
    os.write(1, f"sum {total}\\n".encode())  # in one piece, which no other rank's comes into

if "TF_HVD_ELASTIC_JOB" in os.environ:
    hvd.elastic.run(work)(hvd.elastic.ObjectState(batch=0))
else:
    work(None)
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

# Asks the commit store and the standby of a job for all that they do; without "harmless", also for
# what would do the job harm.
ASKS = """
import json, os, socket, struct, sys

token, command, harmless = sys.argv[1], json.loads(sys.argv[2]), "harmless" in sys.argv
found = {}

def message(what, load=b"", **fields):
    text = json.dumps({"do": what, "round": 0, "bytes": len(load), **fields}).encode()
    return struct.pack("<I", len(text)) + text + load + b"\\n"

def request(of):
    about = {
        "command": of, "files": [], "environ": {}, "folder": "/", "umask": 0, "cores": [0],
        "limits": {}, "ignored": [],
    }
    return json.dumps(about).encode() + b"\\n"

def attempt(name, address, data, pass_socket=False):
    # What the other side says before it closes, or is silent.
    found[name] = "refused"
    ours, its = socket.socketpair()
    with socket.socket(socket.AF_UNIX) as link, ours, its:
        link.settimeout(5)
        ours.settimeout(5)
        try:
            link.connect("\\0" + address + "/" + token)
            if pass_socket:
                socket.send_fds(link, [data[:1]], [its.fileno()])
                its.close()
                data = data[1:]
            link.sendall(data)
            said, files, _, _ = socket.recv_fds(ours if pass_socket else link, 1 << 12, 4)
            if said or files:
                found[name] = f"{said} and {len(files)} files"
        except ConnectionError:
            pass
        except TimeoutError:
            found[name] = "silence"

store, standby = "tf_hvd_elastic", "tf_hvd_standby"
attempt("list parts", store, message("parts"))
attempt("fetch a part", store, message("fetch", rank=0, commit=1))
attempt("map a file", store, message("file", name="notice"))
attempt("fork a rank", standby, request(command), pass_socket=True)
attempt("have a refusal", standby, request(["/bin/sh"]), pass_socket=True)
if not harmless:
    attempt("put a part", store, message("part", b"false", rank=77, commit=1))
    attempt("forget", store, message("forget", after=0, last=1 << 40))
    begin = {"command": command, "environ": {}, "folder": "/", "about": {}}
    attempt("begin a standby", store, message("standby", json.dumps(begin).encode()))
print(json.dumps(found))
"""
NOBODY = 65534


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


def run_script(text, *words, **options):
    """What a script finds, run by another Python, which every user can read."""
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
    """What nobody gets by a script; how many attempts it made."""
    found = run_script(text, *words, user=NOBODY, group=NOBODY, extra_groups=[])
    return {name: got for name, got in found.items() if got != "refused"}, len(found)


def wait_for(job, is_done):
    deadline = time.monotonic() + 120
    while not is_done():
        assert job.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ask_both(token, folder):
    """Asks an elastic job's commit store and standby, as nobody and, for less, as its user."""
    trace = folder / "trace"
    command = json.dumps([sys.executable, "-c", f"open({str(trace)!r}, 'w')"])
    assert gained(ASKS, token, command) == ({}, 8)
    # It was well asked: who may ask is answered.
    answers = run_script(ASKS, token, command, "harmless")
    assert len(answers) == 5
    assert not {"refused", "silence"}.intersection(answers.values()), answers
    assert '"parts": [[' in answers["list parts"]
    assert "[77, " not in answers["list parts"]
    assert not trace.exists()


@pytest.mark.parametrize(
    ("family", "elastic"), [("openmpi", True), ("mpich", False)], ids=["openmpi_elastic", "mpich"]
)
def test_another_user_is_refused(tmp_path, mpi_library, has_standby, family, elastic):
    if os.geteuid() != 0:
        pytest.skip("only root can become another user")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    job = subprocess.Popen(
        [
            *(sys.executable, "-P", "-m", "tf_hvd.launch.main", "run", "-np", "2"),
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
        folder = environ["TF_HVD_LAUNCHER_FOLDER"]
        got, attempts = gained(STRANGER, folder, processes, ",".join(map(str, ports)))
        assert got == {}
        assert attempts > 12
        if elastic:
            token = environ["TF_HVD_ELASTIC_JOB"].partition(":")[0]
            wait_for(job, lambda: has_standby(token))
            ask_both(token, tmp_path)
        (tmp_path / "go").touch()
        output, _ = job.communicate(timeout=120)
        assert job.returncode == 0, output
        assert output.count("sum 2.0") == 2, output
    finally:
        if job.poll() is None:
            job.send_signal(signal.SIGTERM)
            job.communicate(timeout=60)
