"""`horovodrun`: each of Horovod's flags is honoured, or its replacement is named."""

import os
import pathlib
import re
import sys

import pytest
from finished import finished

from tf_hvd.horovod import horovodrun, horovodrun_flags
from tf_hvd.launch.commands.main import Parser, add_run_options
from tf_hvd.launch.errors import UsageError

pytestmark = pytest.mark.one_mpi
ROOT = pathlib.Path(__file__).resolve().parents[2]
HOROVODRUN = [sys.executable, "-m", "tf_hvd_command", "--horovodrun"]
# The flags of Horovod 0.28.1, except --version and --check-build.
_NAMES = """
-np --num-proc --disable-cache --start-timeout --network-interfaces --network-interface
--output-filename --verbose --config-file -p --ssh-port -i --ssh-identity-file
--fusion-threshold-mb --cycle-time-ms --cache-capacity
--hierarchical-allreduce --no-hierarchical-allreduce
--hierarchical-allgather --no-hierarchical-allgather --torus-allreduce --no-torus-allreduce
--autotune --no-autotune --autotune-log-file --autotune-warmup-samples --autotune-steps-per-sample
--autotune-bayes-opt-max-samples --autotune-gaussian-process-noise
--min-np --min-num-proc --max-np --max-num-proc --slots-per-host --elastic-timeout
--reset-limit --blacklist-cooldown-range --host-discovery-script
--timeline-filename --timeline-mark-cycles --no-timeline-mark-cycles
--no-stall-check --stall-check --stall-check-warning-time-seconds
--stall-check-shutdown-time-seconds --mpi-threads-disable --no-mpi-threads-disable --mpi-args --tcp
--binding-args --num-nccl-streams --thread-affinity --gloo-timeout-seconds --log-level
--log-with-timestamp --log-without-timestamp --log-hide-timestamp --no-log-hide-timestamp
-prefix-timestamp --prefix-output-with-timestamp -H --hosts -hostfile --hostfile
--gloo --mpi --jsrun
"""


def test_every_flag_of_horovods_is_known():
    known = [name for flag in horovodrun_flags.FLAGS for name in flag.names]
    assert sorted(known) == sorted(_NAMES.split())
    for flag in horovodrun_flags.FLAGS:
        ways = [flag.option, flag.variable, flag.told, flag.refused]
        assert sum(map(bool, ways)) == 1, flag.names


def test_documented_table_matches_the_program():
    rows = [
        f"| {', '.join(f'`{name}`' for name in flag.names)} | {flag.meaning} |"
        for flag in horovodrun_flags.FLAGS
    ]
    table = "\n".join(["| flag | here |", "|---|---|", *rows, ""])
    assert table in (ROOT / "docs/launcher.md").read_text()


def parsed(*arguments):
    """The options of `tf_hvd run` and the environment."""
    environ = {}
    options = horovodrun.make_parser().parse_args(arguments)
    runner = Parser(prog="horovodrun")
    add_run_options(runner)
    chosen = runner.parse_args(horovodrun.to_run(options, environ))
    del chosen.parser
    return chosen, environ


def value_for(flag):
    numbers = {"N": ["3"], "PORT": ["3"], "MIN MAX": ["1", "2"]}
    if flag.choices:
        return [flag.choices[0]]
    return numbers.get(flag.takes, ["3"]) if flag.takes else []


@pytest.mark.parametrize(
    ("flag", "name"),
    [(flag, name) for flag in horovodrun_flags.FLAGS for name in flag.names],
    ids=[name for flag in horovodrun_flags.FLAGS for name in flag.names],
)
def test_each_flag_is_honoured_or_its_replacement_named(capsys, flag, name):
    first = [] if flag.option == "-np" else ["-np", "2"]
    plain, _ = parsed("-np", "2", "train")
    if flag.refused:
        with pytest.raises(UsageError, match=re.escape(f"{flag.names[-1]}: {flag.refused}")):
            parsed(*first, name, *value_for(flag), "train")
        return
    options, environ = parsed(*first, name, *value_for(flag), "train")
    assert options.command == ["train"]
    said = capsys.readouterr().err
    if flag.told:
        assert said == f"horovodrun: {flag.names[-1]} has no effect: {flag.told}\n"
        assert (vars(options), environ) == (vars(plain), {})
    elif flag.variable:
        assert list(environ) == [flag.variable]
    else:
        assert vars(options) != vars(plain)


def test_values_arrive():
    options, environ = parsed(
        *("-np", "4", "-H", "a:2,b:2", "-p", "2222", "--verb", "--fusion-threshold-mb", "32"),
        *("--log-level", "DEBUG", "--no-stall-check", "--mpi-args=-x A", "--binding-args=-y B"),
        *("--network-interface", "eth0", "--network-interface", "eth1"),
        *(
            "--stall-check-warning-time-seconds",
            "60",
            "python",
            "train.py",
            "--verbose",
            "-np",
            "9",
        ),
    )
    assert environ == {
        "HOROVOD_FUSION_THRESHOLD": str(32 << 20),
        "HOROVOD_LOG_LEVEL": "debug",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "60",
    }
    assert (options.np, options.hosts, options.ssh_port) == (4, "a:2,b:2", 2222)
    assert options.mpi_args == "-x A -y B"
    assert options.network_interfaces == "eth0,eth1"
    assert options.verbose
    assert options.as_horovod
    assert options.command == ["python", "train.py", "--verbose", "-np", "9"]


@pytest.fixture
def horovodrun_call(tmp_path):
    def call(*arguments, environ=None):
        done = finished([*HOROVODRUN, *arguments], cwd=tmp_path, env=environ)
        return done.returncode, done.stdout, done.stderr

    return call


def test_job_with_output_files(horovodrun_call, environ, program, tmp_path):
    show = program("say('rank', rank, os.environ['PYTHONPATH']); sys.stderr.write('error\\n')")
    code, output, errors = horovodrun_call(
        *("-np", "2", "--output-filename", "out{}%t", "-prefix-timestamp", *show), environ=environ
    )
    assert code == 0, errors
    stamp = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] "
    for rank in range(2):
        folder = tmp_path / "out{}%t" / f"rank.{rank}"
        assert re.fullmatch(
            rf"{stamp}rank {rank} \S*_as_horovod\S*\n", (folder / "stdout").read_text()
        )
        assert re.fullmatch(rf"{stamp}error\n", (folder / "stderr").read_text())
        assert re.search(rf"^\[1,{rank}\]<stdout>: {stamp}rank {rank} ", output, re.MULTILINE), (
            output
        )


def test_output_files_have_all_output(call, environ, program, tmp_path):
    """Including its last words, a child's output, and long output."""
    loud = program(
        "import subprocess\n"
        "subprocess.run(['echo', 'a child'])\n"
        "sys.stdout.write('x' * 1_000_000 + '\\nlast')\n"
    )
    for ranks, name in (("11", "rank.00"), ("1", "rank.0")):
        code, output, errors = call(
            *("run", "-np", ranks, "--output-filename", ranks, *loud), environ=environ
        )
        assert code == 0, errors
        text = (tmp_path / ranks / name / "stdout").read_text()
        assert text == "a child\n" + "x" * 1_000_000 + "\nlast"
        assert output.count("x") == int(ranks) * 1_000_000


def test_check_build(horovodrun_call):
    code, output, errors = horovodrun_call("--check-build")
    assert code == 0, errors
    lines = [line.strip() for line in output.splitlines()]
    assert lines[0].startswith("Horovod v0.28.1, served by tf_hvd v")
    assert "[X] TensorFlow" in lines
    assert "[ ] PyTorch" in lines
    assert any(line.startswith("[X] MPI (Open MPI, ") for line in lines)
    operations = lines[lines.index("Available Tensor Operations:") + 1 :]
    assert operations[:4] == ["[ ] NCCL", "[ ] DDL", "[ ] CCL", "[X] MPI"]
    assert horovodrun_call("--version")[1] == lines[0].rstrip(":") + "\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "the number of ranks is missing; give it, for example -np 2"),
        (["-np", "2"], "no program to run; for example: horovodrun -np 2 python train.py"),
        (["-np", "2", "--max-np", "3", "x"], "--max-np is only for elastic jobs: add --min-np"),
        (["-np", "2", "--gloo", "x"], "--gloo: tf_hvd does not use Gloo; omit the flag"),
        (["-np", "2", "--fusion-threshold-mb", "x", "y"], "--fusion-threshold-mb: 'x' is not"),
        (["-np", "2", "--start-timeout", "0", "y"], "'0' is not a positive number of seconds"),
    ],
)
def test_invalid_command_lines(horovodrun_call, arguments, message):
    code, output, errors = horovodrun_call(*arguments)
    assert (code, output) == (2, "")
    assert errors.startswith("horovodrun: ")
    assert message in errors
    assert errors.count("\n") == 1


@pytest.fixture
def silent_mpi(tmp_path):
    """The variable that selects an Open MPI with a launcher that never starts a rank."""
    for name in ("bin", "lib"):
        (tmp_path / "mpi" / name).mkdir(parents=True)
    library = tmp_path / "mpi" / "lib" / "libmpi.so.40"
    library.write_text("ompi_mpi_comm_world")
    program = tmp_path / "mpi" / "bin" / "mpirun"
    program.write_text(
        '#!/bin/sh\nif [ "$1" = --version ]; then echo "mpirun (Open MPI) 5.0"; exit; fi\n'
        "exec sleep 300\n"
    )
    program.chmod(0o755)
    return {**os.environ, "TF_HVD_MPI_LIBRARY": str(library)}


def test_job_that_misses_start_timeout_is_ended(call, silent_mpi):
    code, _, errors = call("run", "-np", "2", "--start-timeout", "1", "true", environ=silent_mpi)
    assert code == 1
    assert "tf_hvd run: none of 2 ranks on this machine started within 1 s" in errors


def test_start_timeout_ignores_single_rank(call, program):
    """It has no launcher; a job that ran longer than the limit was ended."""
    words = program("time.sleep(1.5); say('end')")
    code, output, errors = call("run", "-np", "1", "--start-timeout", "1", *words)
    assert (code, output) == (0, "end\n"), errors
