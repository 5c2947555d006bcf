"""Jobs on several machines: their environment, their traffic, and failures.

The machines are namespaces of this one (cluster.py). If they cannot be created, the tests are
skipped with the reason.
"""

import contextlib
import importlib.metadata
import os
import pathlib
import re
import subprocess
import sys
import threading
import time

import cluster as machines
import pytest

from tf_hvd.observe import step_report, trace_reader

HERE = pathlib.Path(__file__).resolve().parent
PARALLEL = HERE.parent / "python" / "parallel"

LIMIT = 600

PREAMBLE = """
import os, socket, sys, time
import tensorflow as tf
import tf_hvd as hvd

# Short limits apply to init as well, and imports take long.
if meeting := os.environ.get("MEETING"):
    os.makedirs(f"{meeting}/{socket.gethostname()}.{os.getpid()}")
    while len(os.listdir(meeting)) < 4:
        time.sleep(0.01)

def say(*words):
    sys.stdout.write(f"<{hvd.rank()}> " + " ".join(map(str, words)) + chr(10))
    sys.stdout.flush()

def sent():
    with open("/proc/net/dev") as counters:
        return int(counters.read().split("eth0:")[1].split()[8])

exec(os.environ.get("BEFORE_INIT", ""))
hvd.init()
"""


@pytest.fixture(scope="module")
def available():
    reason = machines.why_not()
    if reason:
        pytest.skip(f"no nodes on this machine: {reason}")


@pytest.fixture(scope="module")
def three_nodes(available):
    with machines.cluster(["alpha", "beta", "gamma"], rate="4gbit") as nodes:
        yield nodes


@pytest.fixture
def job(tmp_path, run_to_end, mpi_library):
    """Runs a program, after PREAMBLE, on these hosts: (nodes, hosts, program) -> (code, output)."""

    def run(nodes, hosts, program, family="openmpi", options=(), arguments=(), **environment):
        if isinstance(program, str):
            script = tmp_path / "program.py"
            script.write_text(PREAMBLE + program)
        else:
            script = program
        ranks = sum(int(host.split(":")[1]) for host in hosts.split(","))
        command = [sys.executable, "-P", "-m", "tf_hvd_command", "run"]
        command += ["-np", str(ranks), "-H", hosts, *options]
        command += [sys.executable, str(script), *arguments]
        library = {"TF_HVD_MPI_LIBRARY": str(mpi_library(family)), "TF_CPP_MIN_LOG_LEVEL": "2"}
        inside = next(iter(nodes.values())).command(command)
        # In that mode programs_run.py would not find the modules in its folder.
        ours = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
        return run_to_end(inside, {**ours, **library, **environment}, LIMIT)

    return run


def said(output):
    """The lines of each rank, by rank."""
    lines = re.findall(r"^<(\d+)> (.*)$", output, re.MULTILINE)
    return {rank: [text for r, text in lines if int(r) == rank] for rank in range(5)}


SHOW = """
total = hvd.allreduce(tf.range(5, dtype=tf.float32) + hvd.rank(), op=hvd.Sum)
say(socket.gethostname(), hvd.local_rank(), hvd.local_size(), hvd.cross_rank(), int(total[4]))
"""


@pytest.mark.parametrize("family", ["openmpi", "mpich"])
def test_ranks_know_their_machines(job, three_nodes, family):
    code, output = job(three_nodes, "alpha:2,beta:1,gamma:1", SHOW, family)
    assert code == 0, output
    assert said(output) == {
        0: ["alpha 0 2 0 22"],
        1: ["alpha 1 2 0 22"],
        2: ["beta 0 1 1 22"],
        3: ["gamma 0 1 2 22"],
        4: [],
    }


VARIABLES = """
import os
names = ["LR", "GIVEN", "HOME", "HOSTNAME", "CUDA_VISIBLE_DEVICES"]
say(socket.gethostname(), *(os.environ.get(name, "-") for name in names))
"""


@pytest.mark.parametrize("family", ["openmpi", "mpich"])
def test_environment_is_sent_to_other_machines(job, three_nodes, family):
    """Under Open MPI only the first machine had LR=0.1, so the others trained differently."""
    environment = {"LR": "0.1 0.2", "HOSTNAME": "here", "CUDA_VISIBLE_DEVICES": "3"}
    options = ["-x", "GIVEN=a=b"]
    code, output = job(
        three_nodes, "alpha:1,beta:1", VARIABLES, family, options=options, **environment
    )
    assert code == 0, output
    home = os.environ["HOME"]
    assert said(output)[0] == [f"alpha 0.1 0.2 a=b {home} here 3"]
    (there,) = said(output)[1]
    assert there.startswith(f"beta 0.1 0.2 a=b {home} "), output
    assert there.endswith(" -"), output
    assert "here" not in there, output


@pytest.mark.parametrize("hosts", ["alpha:2,beta:1", "alpha:2,beta:2,gamma:1"])
def test_random_programs_match_numpy(job, three_nodes, hosts):
    program = PARALLEL / "programs_run.py"
    arguments = ["--programs", "10", "--seed", "31"]
    code, output = job(three_nodes, hosts, program, arguments=arguments)
    assert code == 0, output
    assert "10 programs gave what NumPy gives" in output


TRAFFIC = """
tensor = tf.ones([4 << 20])
hvd.allreduce(tensor, op=hvd.Sum, name="first")
hvd.barrier()
before = sent()
for _ in range(4):
    assert hvd.allreduce(tensor, op=hvd.Sum)[-1] == hvd.size()
hvd.barrier()
say(round((sent() - before) / (4 * 16 * 2**20), 2))
"""


def test_each_byte_of_an_allreduce_crosses_once_per_machine(job, three_nodes):
    """Not once per rank. The part above 1 is packet headers."""
    code, output = job(three_nodes, "alpha:2,beta:2", TRAFFIC)
    assert code == 0, output
    shares = [float(text) for lines in said(output).values() for text in lines]
    assert len(shares) == 4
    assert 1 <= min(shares) <= max(shares) < 1.1, shares


OTHER_TRAFFIC = """
tensor = tf.fill([4 << 20], float(hvd.rank()))

def times(call):
    call()
    hvd.barrier()
    before = sent()
    for _ in range(4):
        result = call()
    hvd.barrier()
    return result, round((sent() - before) / (4 * 16 * 2**20), 2)

result, share = times(lambda: hvd.broadcast(tensor, root_rank=1))
assert result[-1] == 1
say("broadcast", share)
result, share = times(lambda: hvd.allgather(tensor))
assert result.shape == [4 * (4 << 20)] and result[-1] == 3
say("allgather", share)
result, share = times(lambda: hvd.reducescatter(tensor, op=hvd.Sum))
assert result.shape == [1 << 20] and result[-1] == 6
say("reducescatter", share)
"""


def test_traffic_of_other_collectives(job, three_nodes):
    """In tensors of one rank: a machine's data cross once, and only data that the other needs."""
    code, output = job(three_nodes, "alpha:2,beta:2", OTHER_TRAFFIC)
    assert code == 0, output
    for rank, lines in said(output).items():
        shares = {line.split()[0]: float(line.split()[1]) for line in lines}
        if rank < 4:
            here = 1 if rank < 2 else 0
            assert here <= shares["broadcast"] < here + 0.1, output
            assert 2 <= shares["allgather"] < 2.2, output
            assert 0.5 <= shares["reducescatter"] < 0.6, output


STEPS = """
marks = []
for _ in range(9):
    hvd.allreduce(tf.ones([10]), name="early")
    if hvd.rank() == 1:
        time.sleep(0.1)
    marks.append(time.time_ns())  # these machines share this clock
    hvd.allreduce(tf.ones([10]), name="late")
say(time.monotonic(), *marks)
"""


def test_late_rank_is_found_with_clocks_hours_apart(job, three_nodes, tmp_path):
    trace = tmp_path / "trace.json"
    code, output = job(
        three_nodes, "alpha:1,beta:1,gamma:1", STEPS, options=["--timeline", str(trace)]
    )
    assert code == 0, output
    clocks, marks = {}, {}
    for rank in range(3):
        clock, *own = said(output)[rank][0].split()
        clocks[rank], marks[rank] = float(clock), [int(mark) for mark in own]
    assert clocks[1] - clocks[0] > 3000
    assert clocks[2] - clocks[1] > 3000
    traces = [each for rank in range(3) for each in trace_reader.read(
        str(trace if rank == 0 else tmp_path / f"trace.rank-{rank}.json"))]  # fmt: skip
    assert [each.clock_error > 0 for each in traces] == [False, True, True]
    found = step_report.report(traces)
    assert [step.late[0] for step in found.steps.steps] == [1] * 8
    off = [
        abs(step.late[1] - (marks[1][number] - min(marks[0][number], marks[2][number])))
        for number, step in enumerate(found.steps.steps)
    ]
    # Of 100 ms, in the best step: a call after a sleep begins about a millisecond late.
    assert min(off) < 5_000_000


@contextlib.contextmanager
def seen(node, path, text, folder):
    """A context in which a node sees other text in a file, or an empty folder (`text` is None)."""
    other = folder / "other"
    if text is None:
        mount = ["mount", "-t", "tmpfs", "tmpfs", str(path)]
    else:
        other.write_text(text)
        other.chmod(0o700)
        mount = ["mount", "--bind", str(other), str(path)]
    subprocess.run(node.command(mount), check=True)
    try:
        yield
    finally:
        subprocess.run(node.command(["umount", str(path)]), check=True)


def in_site_packages(package, name):
    file = next(one for one in importlib.metadata.files(package) if one.name == name)
    return pathlib.Path(file.locate())


KEYS = pathlib.Path.home() / ".ssh"
PROGRAMS = pathlib.Path(sys.prefix) / "bin"
SAME = "all hosts need it at the same path"


@pytest.mark.parametrize(
    ("where", "path", "change", "told"),
    [
        ("alpha", KEYS / "known_hosts", "", "Host key verification failed; log in once .*"),
        ("beta", KEYS / "authorized_keys", "", ".*Permission denied.*ssh-copy-id beta.*"),
        (
            "beta",
            in_site_packages("tensorflow-cpu", "METADATA"),
            lambda text: re.sub("(?m)^Version: .*", "Version: 2.20.0", text),
            r"it has TensorFlow 2\.20\.0, but alpha has 2\.21\.\d+; .*",
        ),
        (
            "beta",
            in_site_packages("tf_hvd", "RECORD"),
            lambda text: re.sub(r"(?m)^tf_hvd/collectives/objects.py,.*\n", "", text),
            r"it has tf_hvd \S+, build \w+, but alpha has \S+, build \w+; .*",
        ),
        (
            "beta",
            PROGRAMS / "mpirun",
            "#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'",
            r"it has MPI 4\.1\.4, but alpha has 5\.[\d.]+; .*",
        ),
        ("beta", PROGRAMS, None, f"no Open MPI at {PROGRAMS}/mpirun there; {SAME}"),
    ],
)
def test_missing_requirement_is_one_line(job, three_nodes, tmp_path, where, path, change, told):
    """It was not checked, and ssh's error was lost in a page about daemons and firewalls."""
    text = change(path.read_text()) if callable(change) else change
    with seen(three_nodes[where], path, text, tmp_path):
        code, output = job(three_nodes, "alpha:1,beta:1", SHOW)
    assert code == 2, output
    assert re.fullmatch(f"tf_hvd run: host beta: {told}", output.strip()), output


def test_the_keras_example_on_two_machines(extras, job, three_nodes):
    example = HERE.parents[1] / "examples" / "mnist_keras_advanced.py"
    code, output = job(three_nodes, "alpha:1,beta:1", example, arguments=["--epochs", "2"])
    assert code == 0, output
    assert "weights bit-identical on all 2 ranks" in output
    assert float(re.search(r"test accuracy: ([\d.]+)", output)[1]) > 0.8


@pytest.mark.parametrize("family", ["openmpi", "mpich"])
def test_spaces_in_paths_and_arguments(
    three_nodes, run_to_end, mpi_library, tmp_path, monkeypatch, family
):
    """In the environment, folder, program and arguments, which pass through ssh and shells."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "an env").symlink_to(sys.prefix)
    (folder / "my program.py").write_text(
        "import os, sys\n"
        "sys.stdout.write(repr([os.getcwd(), sys.executable, *sys.argv]) + chr(10))\n"
    )
    python, words = str(folder / "an env" / "bin" / "python"), ["a b", "it's", '"$HOME"', ""]
    library = str(mpi_library(family)).replace(sys.prefix, str(folder / "an env"))
    monkeypatch.chdir(folder)
    command = [python, "-P", "-m", "tf_hvd_command", "run", "-np", "2", "-H", "alpha:1,beta:1"]
    inside = three_nodes["alpha"].command([*command, python, "my program.py", *words])
    code, output = run_to_end(inside, {**os.environ, "TF_HVD_MPI_LIBRARY": library}, LIMIT)
    assert code == 0, output
    expected = repr([str(folder), python, "my program.py", *words])
    assert [line for line in output.splitlines() if "my program" in line] == [expected] * 2


def test_a_host_without_the_current_folder(job, three_nodes, tmp_path, monkeypatch):
    here = tmp_path / "only" / "here"
    here.mkdir(parents=True)
    with seen(three_nodes["beta"], here.parent, None, tmp_path), monkeypatch.context() as there:
        there.chdir(here)
        code, output = job(three_nodes, "alpha:1,beta:1", SHOW)
    assert (code, output.strip()) == (2, f"tf_hvd run: host beta: no folder {here} there; {SAME}")


def test_each_unreachable_host_has_a_line(job, three_nodes):
    hosts = "alpha:1,delta:1,beta:1"
    code, output = job(three_nodes, hosts, SHOW, options=["-p", "2222"])
    assert code == 2, output
    first, second = output.strip().splitlines()
    assert "host delta: ssh: Could not resolve hostname delta: " in first
    refused = "tf_hvd run: host beta: ssh: .* refused; check that an SSH server .*-p PORT.*"
    assert re.fullmatch(refused, second)


@pytest.fixture
def two_nodes(available):
    """Two nodes for tests that break them."""
    with machines.cluster(["alpha", "beta"]) as nodes:
        yield nodes


@pytest.fixture
def once_running(tmp_path):
    """Calls functions once four ranks run; returns the folder in which ranks report that."""
    threads, done = [], []

    def wait_and_do(action):
        deadline = time.monotonic() + LIMIT
        while len([*tmp_path.glob("running.*")]) < 4:
            if time.monotonic() > deadline:
                return
            time.sleep(0.05)
        action()
        done.append(action)

    def do(action):
        threads.append(threading.Thread(target=wait_and_do, args=(action,)))
        threads[-1].start()
        return [str(tmp_path)]

    yield do
    for thread in threads:
        thread.join()
    assert len(done) == len(threads), "the ranks never ran"


FOR_EVER = """
tensor = tf.ones([1000])
hvd.allreduce(tensor, op=hvd.Sum)
open(f"{sys.argv[1]}/running.{hvd.rank()}", "w").close()
try:
    while True:
        hvd.allreduce(tensor, op=hvd.Sum)
except tf.errors.UnknownError as error:
    say("told:", error.message.replace(chr(10), " "))
    # The launcher ends the other ranks when the first has ended.
    open(f"{sys.argv[1]}/told.{hvd.rank()}", "w").close()
    while hvd.rank() < 2 and not all(os.path.exists(f"{sys.argv[1]}/told.{i}") for i in (0, 1)):
        time.sleep(0.01)
    raise
"""


@pytest.mark.parametrize("family", ["openmpi", "mpich"])
@pytest.mark.parametrize(
    ("ends", "told"),
    [
        ("sys.exit(3)", "rank 1, on beta, was the first to end"),
        ("raise KeyError('x')", "rank 1, on beta, was the first to leave the job: KeyError: 'x'"),
    ],
    ids=["exits", "raises"],
)
def test_failed_remote_rank_is_named(job, two_nodes, family, ends, told):
    """Rank 0 was named, which only got the resulting error, and exit code 3 became 1."""
    text = f"if hvd.rank() == 1:\n    {ends}\nhvd.allreduce(tf.ones(3))\n"
    # Rank 0 gets an error and ends after rank 1. The launcher may notice two ends in any order.
    stays = "import atexit\nif socket.gethostname() == 'alpha': atexit.register(time.sleep, 5)"
    code, output = job(two_nodes, "alpha:1,beta:1", text, family, BEFORE_INIT=stays)
    closing = " ".join(output[output.rindex("tf_hvd run: ") :].split())
    assert told in closing, output
    assert f"exit code {code}" in closing
    assert code == (3 if "3" in ends else 1), output


def test_machines_with_docker_bridges(job, two_nodes):
    """Docker's bridge has the same address on all machines, and Open MPI hung in init."""
    bridge = "ip link add docker0 type bridge && ip address add 172.17.0.1/16 dev docker0"
    for node in two_nodes.values():
        subprocess.run(
            node.command(["sh", "-c", f"{bridge} && ip link set docker0 up"]), check=True
        )
    code, output = job(two_nodes, "alpha:1,beta:1", SHOW)
    assert code == 0, output
    assert {rank: len(lines) for rank, lines in said(output).items() if lines} == {0: 1, 1: 1}


def test_a_job_that_loses_a_machine_fails(job, two_nodes, once_running):
    """The job had the exit code of Open MPI's launcher, 0."""
    where = once_running(two_nodes["beta"].lose)
    code, output = job(two_nodes, "alpha:2,beta:2", FOR_EVER, arguments=where)
    assert code != 0, output
    assert "tf_hvd run: the job" in output


def test_unplugged_cable_ends_the_job(job, two_nodes, once_running, tmp_path):
    """The silent rank is named, and the job ends although the other machine cannot be notified."""
    where = once_running(two_nodes["beta"].unplug)
    limits = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "5", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "30"}
    limits["MEETING"] = str(tmp_path / "meeting")
    code, output = job(two_nodes, "alpha:2,beta:2", FOR_EVER, arguments=where, **limits)
    assert code != 0, output
    told = said(output)
    assert len(told[0]) == len(told[1]) == 1, output
    for text in told[0] + told[1]:
        assert re.search(r"rank [23] \(beta\)", text), output
    assert "next: check that all hosts can be reached: the MPI" in " ".join(output.split())
