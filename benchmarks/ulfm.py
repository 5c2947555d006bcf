"""Whether ranks could go on without the dead in the same processes, by Open MPI's ULFM.

    sudo .venv/bin/python benchmarks/ulfm.py --jobs 17

Four ranks, in each job three kills, on this machine and on two nodes that are network
namespaces; then a node that is lost (its daemon and ranks are killed) and one that falls silent
(its network is cut). Prints how many jobs went on, and the seconds from a kill to the new
communicator.
"""

import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time

from absl import app, flags

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "tests" / "nodes"))
import cluster  # noqa: E402 - it lies there

_JOBS = flags.DEFINE_integer("jobs", 17, "jobs on each kind of machine, with three kills each")
_LIMIT = flags.DEFINE_integer("limit", 80, "seconds for a job")
BIN = pathlib.Path(sys.prefix) / "bin"
NODES = ("alpha", "beta")
CUT = "for i in $(ls /sys/class/net | grep -v lo); do ip link set $i down; done"
FAULTS = {"lost": ["pkill", "-9", "-f", "prted|ulfm_loop"], "silent": ["sh", "-c", CUT]}


def command(program, hosts, kills, seed, *options):
    # Of its own: nodes have the same process numbers, by which the launcher names its folder.
    folder = tempfile.mkdtemp(dir=program.parent)
    words = ["env", f"TMPDIR={folder}", "timeout", "-k", "5", _LIMIT.value]
    words += [BIN / "mpirun", "--allow-run-as-root"]
    words += ["--oversubscribe", "--with-ft", "ulfm", "-np", "4", *hosts, *options]
    words += ["--mca", "pml", "ob1", "--mca", "btl", "self,sm,tcp", program, kills, seed]
    return [str(word) for word in words]


def killed_ranks(program, where, hosts, started_by):
    went_on, seconds = 0, []
    for seed in range(_JOBS.value):
        words = started_by(command(program, hosts, 3, seed))
        job = subprocess.run(words, capture_output=True, text=True, check=False)
        seconds += [float(text) for text in re.findall(r"after ([\d.]+) s", job.stdout)]
        went_on += "went on" in job.stdout
        if "went on" not in job.stdout:
            print(f"{where}, seed {seed}: code {job.returncode}\n{job.stdout}{job.stderr}")
    print(f"{where}: {went_on} of {_JOBS.value} jobs went on, {len(seconds)} kills", end="")
    print(f", {statistics.median(seconds or [0]):.3f} s, {max(seconds, default=0):.3f} s the worst")


def faulty_node(program, fault, *options):
    output = program.with_name("output")
    with cluster.cluster(NODES) as nodes, output.open("w") as file:
        words = nodes["alpha"].command(command(program, ["-H", "alpha:2,beta:2"], 0, 0, *options))
        # A file: what the launcher leaves running would keep a pipe open.
        job = subprocess.Popen(words, stdout=file, stderr=subprocess.STDOUT)
        while "began" not in output.read_text() and job.poll() is None:
            time.sleep(0.1)
        began = time.monotonic()
        subprocess.run(nodes["beta"].command(FAULTS[fault]), check=False)
        how = f"ended with code {job.wait()}"
        seconds = time.monotonic() - began
    lines = [line for line in output.read_text().splitlines() if line.strip(" -")]
    if "went on" in lines:
        how = "went on"
    print(f"a node is {fault}, {' '.join(options) or 'no options'}: {how} after {seconds:.0f} s")
    print("".join(f"  {line}\n" for line in lines), end="")


def main(argv):
    del argv
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "ulfm_loop"
        source = HERE / "ulfm_loop.c"
        subprocess.run([BIN / "mpicc", "-O2", "-o", program, source], check=True)
        killed_ranks(program, "one machine", [], list)
        with cluster.cluster(NODES) as nodes:
            hosts = ["-H", "alpha:2,beta:2"]
            killed_ranks(program, "two nodes", hosts, nodes["alpha"].command)
        for options in ((), ("--enable-recovery",), ("--continuous",)):
            faulty_node(program, "lost", *options)
        faulty_node(program, "silent", "--mca", "mpi_ft_detector", "true")


if __name__ == "__main__":
    app.run(main)
