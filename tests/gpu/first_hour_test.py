"""Runs tests/gpu/first_hour.sh on a software GPU: only from the packed folder, cut short, and
killed. Also tests the conclusions from figures, tests/run_gpu.sh on two GPUs, and the programs.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest
from finished import finished

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "gpu"
PROGRAMS = ROOT / "build" / "gpu"
LIBRARY = PROGRAMS / "libsoftware_gpu.so"
# Settings that take milliseconds on a GPU.
QUICKLY = (
    "--bandwidth=--repetitions=1 --megabytes=1 --share=8", "--job=--lag_mib=1",
    "--probes=--repetitions=2 --megabytes=1 --wait_ms=20",
)  # fmt: skip
MOST_FILES, MOST_BYTES = 8, 64 << 20
# As printed by ncu.
PROFILE = """
==PROF== Connected to process 17
  tf_hvd_scale_float16(MoveArguments) (1024, 1, 1)x(256, 1, 1), Context 1, Stream 13, CC 9.0
    Section: GPU Speed Of Light Throughput
    ----------------------- ----------- ------------
    Metric Name             Metric Unit Metric Value
    ----------------------- ----------- ------------
    Memory Throughput                 %        41.20
    DRAM Throughput                   %        39.75
    Duration                         us        88.51
    Compute (SM) Throughput           %        93.02
    Registers Per Thread             register/thread              32
    Achieved Occupancy               %        71.16
"""


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """The packed folder for the machine, and libraries that simulate its driver and its NCCL."""
    place = tmp_path_factory.mktemp("machine")
    folder = place / "packed"
    ended = finished([str(FOLDER / "first_hour.sh"), "pack", str(folder), f"--programs={PROGRAMS}"])
    assert ended.returncode == 0, ended.stdout
    shutil.copy(LIBRARY, place / LIBRARY.name)
    return folder


@pytest.fixture
def kit(packed, tmp_path):
    return Kit(packed, tmp_path)


class Kit:
    """The packed folder on a machine with one GPU and few programs."""

    def __init__(self, packed, tmp_path):
        self.folder = packed
        self.out = tmp_path / "out"
        self.tools = tmp_path / "tools"
        self.tools.mkdir()
        for name in ("bash", "dirname", "env", "python3", "sleep"):
            # The real Python: that of an environment may be a link that searches its own folder.
            found = sys.executable if name == "python3" else shutil.which(name)
            script = f'#!/bin/sh\nexec {found} "$@"\n'
            self.tool(name, script)
        library = str(packed.parent / LIBRARY.name)
        self.environment = {
            "PATH": str(self.tools), "TF_HVD_CUDA_LIBRARY": library,
            "TF_HVD_NCCL_LIBRARY": library, "TF_HVD_SOFTWARE_GPUS": "1",
        }  # fmt: skip

    def tool(self, name, script):
        file = self.tools / name
        file.write_text(script)
        file.chmod(0o755)

    def command(self, *arguments):
        return [str(self.folder / "tests" / "gpu" / "first_hour.sh"), *arguments]

    def run(self, *arguments, out=None, **settings):
        out = out or self.out
        ended = subprocess.run(
            self.command("run", f"--out={out}", *QUICKLY, *arguments),
            env={**self.environment, **settings}, cwd="/", stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=600,
        )  # fmt: skip
        print(ended.stdout)
        return ended.returncode, ended.stdout

    def log(self, name):
        return (self.out / name).read_text()

    def programs(self, tmp_path, script, name="device_check"):
        """The built programs, with one of them replaced by a script."""
        folder = tmp_path / "programs"
        shutil.copytree(self.folder / "build" / "gpu", folder)
        start = '#!/bin/bash\n[[ "$*" != *libno_such_driver* ]] || exit 3\n'
        (folder / name).write_text(start + script)
        return folder


def rows(report):
    """The cells of all tables by the first cell, except the figures, which have the same names."""
    text = report.partition("## Figures")[0]
    lines = [line.strip("| ").split(" | ") for line in text.split("\n") if line.startswith("| ")]
    return {line[0]: line[1:] for line in lines}


def marks(text, kind):
    """Parts that began or ended, in order, with repetitions."""
    return [json.loads(one)["part"] for one in re.findall(rf"^== {kind} (.*)$", text, re.MULTILINE)]


def test_the_packed_folder_is_small_and_enough(kit):
    size = sum(file.stat().st_size for file in kit.folder.rglob("*") if file.is_file())
    assert size < MOST_BYTES
    version = '#!/bin/sh\n[ "$1" != --version ] || { echo Version 2025.3.1; exit; }\n'
    kit.tool("ncu", f"{version}/bin/cat <<'EOF'\n{PROFILE}\nEOF\n")
    skip = 'while [ "${1#/}" = "$1" ]; do shift; done'  # its own options
    kit.tool("compute-sanitizer", f'{version}{skip}\n"$@" && echo "== ERROR SUMMARY: 0 errors"\n')
    code, output = kit.run()
    assert code == 0, output
    report = (kit.out / "report.md").read_text()
    found = rows(report)
    assert found["GPUs"] == ["1: Software GPU, compute capability 9.0, CUDA 12.5"]
    for part in (
        "kernels against the host, bits", "pack and unpack against a copy",
        "lists in pinned memory", "lists in device memory", "runtime, one rank",
        "NCCL, 2 ranks on one GPU", "NCCL, inputs not awaited", "NCCL, a rank is killed",
        "by the host's memory, 2 ranks", "by the host's memory, a rank is killed",
        "probe, calls", "probe, queries", "probe, host_function", "probe, copies", "probe, waits",
        "compute-sanitizer, memcheck", "compute-sanitizer, racecheck", "ncu, the slowest kernel",
    ):  # fmt: skip
        assert found[part][0] == "passed", (part, output)
    assert "compute units busy 93.02 %" in found["ncu, the slowest kernel"][1]
    measured = rows(report.partition("## Figures")[2])
    for part, figure in {
        "calls": "blocking_small_ready_us", "queries": "event_query_us",
        "host_function": "called_99th_us", "copies": "pinned_without_copies_us",
        "waits": "nothing_waits",
    }.items():  # fmt: skip
        assert f"{figure}=" in measured[f"probe, {part}"][0]
    for way in ("NCCL", "by the host's memory"):
        assert measured[f"{way}, a rank is killed"][0].startswith("got the error ")
    files = sorted(file.name for file in kit.out.iterdir())
    assert len(files) <= MOST_FILES
    assert [name for name in files if name.endswith(".log")] == [
        "1-machine.log", "2-kernels.log", "3-bandwidth.log", "4-probes.log", "5-jobs.log",
        "6-sanitizer.log", "7-profile.log",
    ]  # fmt: skip
    assert found["ncu"] == ["Version 2025.3.1"]
    assert found["NCCL"][0].endswith(", named by TF_HVD_NCCL_LIBRARY")
    assert report.count(", lists in device memory | ") == 2  # packing, unpacking
    # Nothing was taken from the checkout, except Python.
    logs = [kit.log(name).replace(sys.executable, "") for name in files]
    assert not [text for text in logs if f"{ROOT}/" in text]
    before = {name: kit.log(name) for name in files if name != "1-machine.log"}
    assert kit.run()[0] == 0  # nothing is left to do
    assert {name: kit.log(name) for name in before} == before


def test_a_machine_may_forbid_profiling(kit):
    kit.tool("ncu", "#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM - see'\nexit 1\n")
    assert kit.run("--steps=bandwidth,profile")[0] == 0
    found = rows(kit.log("report.md"))["ncu, the slowest kernel"]
    assert found[:2] == [
        "not run", "profiling counters are for administrators (ERR_NVGPUCTRPERM)"
    ]  # fmt: skip


def test_a_killed_call_keeps_its_output_and_the_next_continues(kit, tmp_path):
    programs = kit.programs(tmp_path, "echo half way by $$\nexec sleep 600\n")
    process = subprocess.Popen(
        kit.command("run", f"--out={kit.out}", *QUICKLY, f"--programs={programs}"),
        env=kit.environment, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    log = kit.out / "2-kernels.log"
    while not log.exists() or "half way" not in log.read_text():
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    # Its program ends with it: it would otherwise continue to run on the borrowed machine.
    pid = int(re.search(r"half way by (\d+)", log.read_text())[1])
    while pathlib.Path(f"/proc/{pid}").exists():
        time.sleep(0.05)
    assert marks(log.read_text(), "ended") == []
    # Continues like another machine that has the returned files.
    later = tmp_path / "later"
    steps = "--steps=machine,kernels,bandwidth"
    assert kit.run(f"--earlier={kit.out}", steps, out=later)[0] == 0
    text = (later / "2-kernels.log").read_text()
    assert "half way" in text
    assert marks(text, "begun") == 2 * ["kernels against the host, bits"]
    assert rows((later / "report.md").read_text())["kernels against the host, bits"][0] == "passed"
    assert marks((later / "1-machine.log").read_text(), "begun").count("GPUs") == 1


def test_parts_over_their_limit_are_reported_and_others_left(kit, tmp_path):
    programs = kit.programs(tmp_path, "echo half way\nexec sleep 600\n")
    part = "kernels against the host, bits"
    arguments = (f"--programs={programs}", "--steps=kernels")
    # The part's own limit: final.
    failing = tmp_path / "failing"
    code, output = kit.run(*arguments, "--patience=0.005", out=failing)
    assert code == 1
    assert rows((failing / "report.md").read_text())[part][0] == "failed"
    assert "half way" in (failing / "report.md").read_text()
    # No time to start it.
    code, output = kit.run(*arguments, "--budget=0")
    assert (code, "1 left for another call" in output) == (0, True)
    # The call's limit: tried once more, but not again.
    for tries in (1, 2, 2):
        code, output = kit.run(*arguments, "--patience=0.05", "--budget=8")
        assert code == 0
        assert marks(kit.log("2-kernels.log"), "begun") == tries * [part]
    assert rows(kit.log("report.md"))[part][0] == "cut short"


def test_a_dry_run_without_a_gpu_starts_nothing(kit):
    ended = finished(
        kit.command("--dry-run", f"--out={kit.out}"),
        env={**kit.environment, "TF_HVD_CUDA_LIBRARY": "libno_such_driver.so"},
    )
    assert ended.returncode == 0
    assert not kit.out.exists()
    steps = re.findall(r"^step (\d), (\w+): ", ended.stdout, re.MULTILINE)
    names = ("machine", "kernels", "bandwidth", "probes", "jobs", "sanitizer", "profile")
    assert steps == [(str(i + 1), name) for i, name in enumerate(names)]
    absent = "  nvidia-smi: missing: nvidia-smi is not installed\n    nvidia-smi --query"
    assert absent in ended.stdout
    missing = "missing: no GPU: there is no CUDA driver (libno_such_driver.so"
    assert f"  probe, waits: {missing}" in ended.stdout
    assert "/build/gpu/device_probes" in ended.stdout
    # No setting of a borrowed machine is changed, and only the loopback is used.
    assert "ncu --clock-control none --kernel-name" in ended.stdout
    settings = "NCCL_SOCKET_IFNAME=lo NCCL_NET=Socket NCCL_IB_DISABLE=1 NCCL_DEBUG=INFO"
    assert ended.stdout.count(settings) == 3
    assert "--lag_mib=1024" in re.search(r".*--forget=1.*", ended.stdout)[0]


def test_without_a_gpu_nothing_fails(kit):
    assert kit.run(TF_HVD_SOFTWARE_GPUS="0")[0] == 0
    found = rows(kit.log("report.md"))
    reason = "no GPU: the driver has no device (error 0)"
    assert found["probe, waits"][:2] == ["not run", reason]


def test_jobs_depend_on_the_first_with_nccl_and_parts_can_be_repeated(kit, tmp_path):
    script = '[[ "$*" == *--use_nccl=0* || "$*" == *--ranks=1* ]] || { echo it hangs; exit 1; }\n'
    programs = kit.programs(tmp_path, f"{script}echo all exact\n", "nccl_job")
    assert kit.run("--steps=jobs", f"--programs={programs}")[0] == 1
    found = rows(kit.log("report.md"))
    first, others = "NCCL, 2 ranks on one GPU", ("NCCL, a rank is killed", "probe, calls")
    assert found[first][:2] == ["failed", "it hangs"]
    for part in others:
        assert found[part][:2] == ["not run", "the first job with NCCL failed"]
    assert found["by the host's memory, 2 ranks"][0] == "passed"
    # By a part of its name, and by its full name; then the part that depends on it.
    for asked in ("2 ranks on one", first):
        assert kit.run("--steps=jobs", f"--parts={asked}")[0] == 0
    assert marks(kit.log("5-jobs.log"), "begun").count(first) == 3
    assert marks(kit.log("5-jobs.log"), "begun").count("runtime, one rank") == 1
    assert kit.run("--steps=jobs")[0] == 0
    found = rows(kit.log("report.md"))
    assert [found[part][0] for part in (first, *others)] == 3 * ["passed"]
    code, output = kit.run("--parts=no such part")
    assert (code, output.startswith("no part has 'no such part' in its name: GPUs; ")) == (2, True)


def test_all_parts_on_two_gpus_with_installed_tensorflow(tmp_path):
    command = [str(ROOT / "tests" / "run_gpu.sh"), *QUICKLY, f"--out={tmp_path}"]
    libraries = {"TF_HVD_CUDA_LIBRARY": str(LIBRARY), "TF_HVD_NCCL_LIBRARY": str(LIBRARY)}
    ended = finished(
        [*command, f"--programs={PROGRAMS}", "--steps=machine,kernels,jobs,tensorflow"],
        env={**os.environ, **libraries},
    )
    assert ended.returncode == 0, ended.stdout
    found = rows((tmp_path / "report.md").read_text())
    assert found["GPUs"] == ["2: Software GPU, compute capability 9.0, CUDA 12.5"]
    assert re.fullmatch(
        r"\d+ kernels, \d{3,} launches, \d{7,} elements moved; .*",
        found["kernels against the host, bits"][1],
    )
    for part, ranks in {
        "runtime, one rank": "1 process on 1 GPU",
        "NCCL, 2 ranks on one GPU": "2 processes on 1 GPU",
        "NCCL, a GPU for each rank, processes": "2 processes on 2 GPUs",
        "NCCL, a GPU for each rank, threads": "2 threads on 2 GPUs",
        "by the host's memory, 2 ranks": "2 processes on 2 GPUs",
    }.items():
        assert found[part][:2] == ["passed", f"58 collectives, {ranks}: all exact"]
    assert found["NCCL, inputs not awaited"][:2] == ["passed", "failed: ranks 0 1"]
    for way in ("NCCL", "by the host's memory"):
        expected = "one rank killed of 2 processes on 2 GPUs: the others got errors"
        assert found[f"{way}, a rank is killed"][:2] == ["passed", expected]
    for part in ("op tests, 1 rank", "images/s, 2 ranks, NCCL", "images/s, 2 ranks, host"):
        assert found[f"TensorFlow, {part}"][:2] == ["not run", "TensorFlow sees no GPU"]


def test_the_programs_report_a_missing_gpu():
    for name in ("device_check", "device_bandwidth", "device_probes", "nccl_job"):
        ended = finished([str(PROGRAMS / name), "--cuda=libno_such_driver.so"])
        assert (ended.returncode, ended.stdout) == (3, "no GPU: there is no CUDA driver\n")


def test_gcc_builds_the_programs_from_the_packed_files(packed, tmp_path):
    """Fails if the runtime has gained a source that the lists lack."""
    script = packed / "tests" / "gpu" / "build_programs.sh"
    codes = packed / "bazel-bin" / "compute" / "device_codes.cc"
    build = ["bash", str(script), str(tmp_path), str(codes)]
    subprocess.run(build, env={**os.environ, "OPTIMIZE": "0"}, check=True, timeout=600)
    job = [str(tmp_path / "nccl_job"), f"--cuda={LIBRARY}", f"--nccl={LIBRARY}", "--lag_mib=1"]
    ended = finished(job)
    assert ended.returncode == 0, ended.stdout
    assert "58 collectives" in ended.stdout


def test_device_check_finds_wrong_bits(tmp_path):
    """Two kernels of the software GPU, for int8 and for bool, swap their names."""
    library, names = LIBRARY.read_bytes(), [b"tf_hvd_scale_int8\0", b"tf_hvd_scale_bool\0"]
    assert [library.count(name) for name in names] == [1, 1]
    places = [library.index(name) for name in names]
    changed = bytearray(library)
    for place, name in zip(places, reversed(names), strict=True):
        changed[place : place + len(name)] = name
    wrong = tmp_path / "libwrong.so"
    wrong.write_bytes(changed)
    ended = finished([str(PROGRAMS / "device_check"), f"--cuda={wrong}", "--large=0"])
    assert ended.returncode == 1
    assert re.match(r"tf_hvd_scale_int8 on \w+ rows, times .*, differs at byte \d+", ended.stdout)


def test_unusable_programs_are_reported(kit, tmp_path):
    assert kit.run(f"--programs={tmp_path}", "--steps=kernels")[0] == 0
    found = rows(kit.log("report.md"))["kernels against the host, bits"]
    assert (
        found[1] == f"no programs: {tmp_path} does not contain device_check, and none were compiled"
    )


def test_a_pack_replaces_only_files_of_the_previous_one(tmp_path):
    def pack(folder):
        command = [str(FOLDER / "first_hour.sh"), "pack", str(folder), f"--programs={PROGRAMS}"]
        return finished(command)

    folder, results = tmp_path / "packed", tmp_path / "packed" / "results"
    assert pack(folder).returncode == 0
    gone = folder / "tests" / "gpu" / "no_longer.cc"
    gone.touch()
    with (folder / "packed.txt").open("a") as file:
        file.write("tests/gpu/no_longer.cc\n")
    results.mkdir()
    (results / "report.md").touch()
    assert pack(folder).returncode == 0
    assert not gone.exists()
    assert (results / "report.md").exists()
    (folder / "packed.txt").unlink()
    refused = pack(folder)
    assert (refused.returncode, "is not empty" in refused.stdout) == (1, True)


def test_output_of_nccl_does_not_affect_results(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import gpu_parts

    said = "host:7:9 [0] NCCL INFO Bootstrap: Using lo:127.0.0.1<0>\nNCCL: INFO more\n"
    job = f"NCCL 22707\n{said}58 collectives, 2 processes on 1 GPU: all exact\n"
    assert gpu_parts.read_job(0, job).figure.startswith("58 collectives")
    probe = f"{said}calls: a_us=1.00 b_us=2.00\n1 of 1 probes made\n"
    assert gpu_parts.read_probe(0, probe).figure == "2 figures"


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="there is no ptxas")
@pytest.mark.parametrize("capability", [75, 80, 90, 100])
def test_the_kernel_that_spins_is_ptx(capability, tmp_path):
    program = [str(PROGRAMS / "device_probes"), f"--ptx={capability}"]
    code = finished(program, check=True).stdout
    (tmp_path / "spin.ptx").write_text(code)
    compiler = ["ptxas", f"-arch=sm_{capability}", "-o", str(tmp_path / "spin.cubin")]
    subprocess.run([*compiler, str(tmp_path / "spin.ptx")], check=True)
