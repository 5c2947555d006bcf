"""Ranks that tests start are forked from a process that has loaded TensorFlow already.

To load it takes seconds of a core for each of the many hundred ranks. So a rank that begins in a
run of the tests (tests_start.pth) goes on in a standby, the one of elastic jobs
(tf_hvd/elastic/standby.py), of which a run of the tests has one for each environment that loading
may read. The first rank with an environment starts it. tests/conftest.py says which tests do
without, as they are about how processes begin and end.

Until the standby is there, this knows the standard library alone.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import socket
import subprocess
import sys
import tempfile
import time

RUN = "TF_HVD_TESTS_STANDBY"
"""By this a rank knows the process whose tests it is of."""
MOST = 10
"""Standbys of a run: each takes a few hundred MiB."""
_ADDRESS = "\0tf_hvd_standby/"  # as in tf_hvd/elastic/standby.py
RANK = "TF_HVD_LAUNCHED_RANK"
_JOB = "TF_HVD_LAUNCHER_FOLDER"
# The job of which this is a rank: what a rank starts knows by it that it is none. As all that
# begins so, it is each start's own.
_RANK_OF = "TF_HVD_LAUNCHER_TESTED"
# What is read as TensorFlow is loaded, or Python begins.
_READ = ("TF_", "KERAS_", "OMP_", "MKL_", "OPENBLAS_", "XLA_", "CUDA_", "LD_", "PYTHON")
_READ += ("MALLOC_", "GLIBC_", "LANG", "LC_", "HOME", "TMPDIR")
_NOT_READ = ("TF_HVD_", "CUDA_VISIBLE_DEVICES")
_TESTS_OWN = ("TF_HVD_TESTS_GC", "TF_HVD_TESTS_MARK")
_LIBRARIES = "LD_LIBRARY_PATH"
_LIMIT = 120  # seconds until a standby is there
_START = """
import json
with open(0, closefd=False) as file:
    about = json.loads(file.readline())
import tests_standby
tests_standby.become(about)
from tf_hvd.elastic import standby
standby.run_program()
"""


def hand_over():
    """Goes on in a standby, if this process can; returns where it cannot."""
    run, job = os.environ[RUN], os.environ.get(_JOB, "")
    rank_of, os.environ[_RANK_OF] = os.environ.get(_RANK_OF), job
    package = importlib.util.find_spec("tf_hvd")
    if rank_of == job or package is None or not _may(run):  # a rank has started this process
        return
    folder = os.path.join(package.submodule_search_locations[0], "launch")
    before = set(sys.modules)
    sys.path.append(folder)  # as rank.py has it
    try:
        import keeper
        import rank
        import stand_in

        def begins(process):
            keeper.call_oneself(f"{keeper.STANDS_IN}{process}")
            if job:
                rank.report_moved(job, int(os.environ[RANK]), process)

        token = _token(run)
        if _is_there(token) or _start(run, token):
            code = stand_in.run([sys.executable, *sys.orig_argv[1:]], token, begins)
            if code is not None:
                keeper.end_as(code)
    finally:
        sys.path.remove(folder)
        for name in set(sys.modules) - before:
            del sys.modules[name]


def _may(run):
    """Whether this process is on the tests' machine, as it seems to it, and has files like them."""
    own_files = "/pytest-of-" in os.environ.get("PYTHONPATH", "")  # pytest's tmp_path
    if own_files or "LD_PRELOAD" in os.environ:
        return False
    try:
        for kind in ("net", "pid", "mnt", "user", "ipc", "uts"):
            if os.readlink(f"/proc/self/ns/{kind}") != os.readlink(f"/proc/{run}/ns/{kind}"):
                return False
        with open("/proc/self/cgroup") as own, open(f"/proc/{run}/cgroup") as theirs:
            return own.read() == theirs.read()
    except OSError:
        return False


def _options():
    """Python's own, as `-P`."""
    words = sys.orig_argv[1 : len(sys.orig_argv) - len(sys.argv) + 1]
    return words[:-2] if sys.argv[0] in ("-c", "-m") else words[:-1]


def _environ():
    """What a standby must have in common with its ranks."""
    read = {
        name: value
        for name, value in os.environ.items()
        if name in _TESTS_OWN or (name.startswith(_READ) and not name.startswith(_NOT_READ))
    }
    if _LIBRARIES in read:  # a launcher within a job adds what is there
        read[_LIBRARIES] = ":".join(dict.fromkeys(read[_LIBRARIES].split(":")))
    return read


def _token(run):
    told = [sorted(_environ().items()), _options(), os.geteuid(), sys.executable]
    return f"tests.{run}.{hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16]}"


def _is_there(token):
    with socket.socket(socket.AF_UNIX) as link, contextlib.suppress(OSError):
        link.connect(_ADDRESS + token)
        return True
    return False


def _start(run, token):
    """Has a standby started; False if there can be none."""
    with open(os.path.join(tempfile.gettempdir(), f"tf_hvd_lanes.{run}.standbys"), "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if _is_there(token):
            return True
        file.seek(0)
        started = file.read().split()
        if token in started or len(started) >= MOST:
            return False
        file.write(f"{token}\n")
        file.flush()
        process = subprocess.Popen(
            [sys.executable, *_options(), "-c", _START],
            env=_environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
        about = {"run": int(run), "token": token, "options": _options()}
        process.stdin.write(json.dumps(about).encode() + b"\n")
        process.stdin.close()
        deadline = time.monotonic() + _LIMIT
        while time.monotonic() < deadline and process.poll() is None:
            if _is_there(token):
                return True
            time.sleep(0.05)
        return False


def become(about):
    """Is a standby until the tests end; returns in a forked rank alone."""
    from tf_hvd.elastic import standby

    # It ends when something can be read there.
    tests = os.pidfd_open(about["run"])
    os.dup2(tests, 0)
    os.close(tests)
    common = standby.common
    standby.common = lambda environ: {}  # its name says what it has in common with its ranks
    legacy = ["tf_keras"] if os.environ.get("TF_USE_LEGACY_KERAS") else []
    standby.main(
        {
            "token": about["token"],
            "options": about["options"],
            "modules": ["numpy", "tensorflow", "keras", *legacy],
            "given": {},
            "cores": sorted(os.sched_getaffinity(0)),
        }
    )
    standby.common = common
