"""What tests/run_gpu.sh does: runs all that this machine's GPUs allow, and prints a table.

One line for each part: `part | result | figure`. A part that cannot be run is listed with the
reason. Exit code 1 if something that ran failed; a bandwidth below its target is no failure.

Needs Python alone, and g++ or --programs. TF_HVD_CUDA_LIBRARY and TF_HVD_NCCL_LIBRARY name other
libraries than the machine's own.
"""

from __future__ import annotations

import argparse
import ast
import ctypes
import dataclasses
import glob
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]
# The first includes all others.
KERNELS = (
    "device_kernels.cu.cc", "device_adasum.cu.cc", "device_adasum.h", "device_moves.cu.cc",
    "device_moves.h", "device_sums.cu.cc", "device_sums.h", "half_float.h", "portable.h",
    "scaling.h", "stored_elements.h",
)  # fmt: skip
CAPABILITY = (75, 76)  # attributes of a device: major, minor
NO_GPU = 3  # the programs' exit code
LARGEST_JOB = 8
# What NCCL says of two ranks on one GPU; the second from 2.30 on.
ONE_GPU = ("Duplicate GPU", "Multiple Ranks are using the same GPU")
BATCH = 32  # of tf_hvd bench
ON_GPU = {"TF_HVD_TESTS_DEVICE": "/GPU:0", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
BY_LOCAL_RANK = (
    'CUDA_VISIBLE_DEVICES="${OMPI_COMM_WORLD_LOCAL_RANK:-${MPI_LOCALRANKID:-0}}" exec "$@"'
)


@dataclasses.dataclass
class Gpus:
    """What the driver tells."""

    names: list[str]
    capabilities: list[str]
    reason: str = ""


def find_gpus(library: str) -> Gpus:
    """Asks the driver by its C functions; `reason` says why there is none."""
    try:
        cuda = ctypes.CDLL(library or "libcuda.so.1")
    except OSError as error:
        return Gpus([], [], f"there is no CUDA driver ({error})")
    count, device, value = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
    error = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
    if error or count.value == 0:
        return Gpus([], [], f"the driver has no device (error {error})")
    gpus = Gpus([], [])
    for ordinal in range(count.value):
        name = ctypes.create_string_buffer(256)
        cuda.cuDeviceGet(ctypes.byref(device), ordinal)
        cuda.cuDeviceGetName(name, 255, device)
        gpus.names.append(name.value.decode())
        capability = ""
        for attribute in CAPABILITY:
            cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
            capability += str(value.value)
        gpus.capabilities.append(capability)
    return gpus


def find_nvrtc() -> str:
    """The path of a libnvrtc: of Python's packages, the toolkit, the system; or nothing."""
    found: list[str] = []
    for spec in (importlib.util.find_spec("nvidia"),):
        for folder in (spec and spec.submodule_search_locations) or ():
            found += glob.glob(f"{folder}/*/lib/libnvrtc.so.*")
    nvcc = shutil.which("nvcc")
    if nvcc:
        toolkit = pathlib.Path(nvcc).resolve().parents[1]
        found += glob.glob(f"{toolkit}/lib64/libnvrtc.so*")
    found += glob.glob("/usr/local/cuda*/lib64/libnvrtc.so*")
    found += glob.glob("/usr/lib/*/libnvrtc.so*")
    return next((one for one in found if "builtins" not in one), "")


def find_nccl() -> str:
    """The libnccl.so.2 of Python's packages, or nothing: the loader finds the system's."""
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec and spec.submodule_search_locations) or ():
        for found in glob.glob(f"{folder}/nccl/lib/libnccl.so.2"):
            return found
    return ""


class Table:
    """Prints each line as it comes, and what failed at the end."""

    def __init__(self) -> None:
        self.failures: list[tuple[str, str]] = []
        print(f"{'part':<38} | {'result':<7} | figure", flush=True)

    def add(self, part: str, result: str, figure: str, output: str = "") -> None:
        print(f"{part:<38} | {result:<7} | {figure}", flush=True)
        if result == "failed":
            self.failures.append((part, output))

    def end(self) -> int:
        for part, output in self.failures:
            print(f"\n== {part} failed:\n{output[-6000:]}")
        return 1 if self.failures else 0


def call(
    command: list[str], limit: float, cwd: pathlib.Path = ROOT / "tests", **environment: str
) -> tuple[int, str]:
    """Exit code, 124 if it passed the limit (s), and output; nothing of it is left running.

    In the default folder no package of the checkout is in the way of an installed one.
    """
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, "PYTHONSAFEPATH": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return 124, output + f"\nit did not end within {limit:.0f} s"
    return process.returncode, output


def closing_line(output: str) -> str:
    lines = [line for line in output.strip().split("\n") if line.strip()]
    return lines[-1].strip() if lines else "it says nothing"


class Run:
    """All parts, on the GPUs that there are."""

    def __init__(self, options: argparse.Namespace, gpus: Gpus) -> None:
        self.options = options
        self.gpus = gpus
        self.table = Table()
        self.programs = pathlib.Path(options.programs or options.folder).resolve()
        self.nccl = os.environ.get("TF_HVD_NCCL_LIBRARY", "") or find_nccl()
        self.libraries = [f"--cuda={os.environ.get('TF_HVD_CUDA_LIBRARY', '')}"]
        self.libraries += [f"--nccl={self.nccl}"]

    def part(self, name: str, command: list[str], limit: float, **environment: str) -> bool:
        """Runs one; its closing line is the figure."""
        code, output = call(command, limit * self.options.patience, **environment)
        result = "passed" if code == 0 else "failed"
        self.table.add(name, result, closing_line(output), output)
        return code == 0

    def program(self, name: str, *arguments: str) -> list[str]:
        return [str(self.programs / name), *self.libraries, *arguments]

    def job(self, *arguments: str) -> list[str]:
        return self.program("nccl_job", *self.options.job.split(), *arguments)

    def skip(self, name: str, reason: str) -> None:
        self.table.add(name, "not run", reason)

    def everything(self) -> int:
        names = ", ".join(sorted(set(self.gpus.names)))
        self.table.add("GPUs", "found", f"{len(self.gpus.names)}: {names}")
        if self.build():
            self.kernels()
            self.jobs()
        self.tensorflow()
        return self.table.end()

    def build(self) -> bool:
        """False if there are no programs."""
        if self.options.programs:
            self.table.add("programs", "found", "built before")
            return True
        if not shutil.which(os.environ.get("CXX", "g++")):
            self.skip("programs", "there is no g++; --programs FOLDER names built ones")
            return False
        codes = self.device_code()
        script = ROOT / "tests" / "gpu" / "build_programs.sh"
        built = codes is not None and self.part(
            "programs, by g++", ["bash", str(script), str(self.programs), str(codes)], 1200
        )
        return built

    def device_code(self) -> pathlib.Path | None:
        """The kernels for this GPU as a C++ file: Bazel's, or compiled now."""
        made = ROOT / "bazel-bin" / "compute" / "device_codes.cc"
        sources = [ROOT / "compute" / name for name in KERNELS]
        newest = max(one.stat().st_mtime for one in sources)
        if made.exists() and made.stat().st_mtime > newest:
            self.table.add("device code", "found", "of the last build by Bazel")
            return made
        nvrtc, nvcc = find_nvrtc(), shutil.which("nvcc") or ""
        if not nvrtc and not nvcc:
            self.skip("device code", "neither NVRTC nor nvcc, nor a build by Bazel")
            return None
        self.programs.mkdir(parents=True, exist_ok=True)
        output = self.programs / "device_codes.cc"
        command = [sys.executable, str(ROOT / "build_defs" / "device_code.py"), "--nvrtc", nvrtc]
        command += ["--nvcc", "" if nvrtc else nvcc, "--output", str(output)]
        command += ["--architectures", ",".join(sorted(set(self.gpus.capabilities)))]
        command += [f"compute/{name}" for name in KERNELS]
        code, said = call(command, 300, cwd=ROOT)
        compiler = f"by {nvrtc or nvcc}, for {', '.join(sorted(set(self.gpus.capabilities)))}"
        self.table.add("device code", "failed" if code else "passed", compiler, said)
        return None if code else output

    def kernels(self) -> None:
        self.part("kernels against the host, bits", self.program("device_check"), 600)
        sanitizer = shutil.which("compute-sanitizer")
        for tool in ("memcheck", "racecheck"):
            if not sanitizer:
                self.skip(f"compute-sanitizer, {tool}", "it is not installed")
                continue
            command = [sanitizer, "--tool", tool, "--error-exitcode", "9"]
            command += self.program("device_check", "--large=0")
            self.part(f"compute-sanitizer, {tool}", command, 1200)
        self.part(
            "pack and unpack against a copy",
            self.program("device_bandwidth", *self.options.bandwidth.split()),
            300,
        )

    def jobs(self) -> None:
        """The runtime without TensorFlow."""
        several = min(len(self.gpus.names), LARGEST_JOB)
        self.part("runtime, one rank", self.job("--ranks=1"), 120)
        self.nccl_job("NCCL, 2 ranks on one GPU", "--ranks=2", one_gpu=True)
        one = {"one_gpu": several < 2}
        self.nccl_job("NCCL, inputs not awaited", "--ranks=2", "--forget=1", flawed=True, **one)
        self.nccl_job("NCCL, a rank is killed", "--ranks=2", "--kill=1", **one)
        for way in ("processes", "threads"):
            name = f"NCCL, a GPU for each rank, {way}"
            if several < 2:
                self.skip(name, "there is one GPU")
            else:
                self.nccl_job(name, f"--ranks={several}", f"--way={way}")
        ranks = max(2, several)
        command = self.job(f"--ranks={ranks}", "--use_nccl=0")
        self.part(f"by the host's memory, {ranks} ranks", command, 300)
        self.part("by the host's memory, a rank is killed", [*command, "--kill=1"], 300)

    def nccl_job(
        self, name: str, *arguments: str, one_gpu: bool = False, flawed: bool = False
    ) -> None:
        """Runs it; `flawed`: its results have to be wrong."""
        environment = {"NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "WARN")}
        if one_gpu:
            environment["CUDA_VISIBLE_DEVICES"] = self.one_visible()
            environment["TF_HVD_SOFTWARE_GPUS"] = "1"
        command = self.job(*arguments)
        code, output = call(command, 300 * self.options.patience, **environment)
        no_nccl = re.search(r"^no NCCL: .*", output, re.MULTILINE)
        if code == 0 and no_nccl:
            self.skip(name, no_nccl[0])
        elif code != 0 and any(text in output for text in ONE_GPU):
            self.skip(name, "this NCCL does not let ranks share a GPU")
        else:
            said = closing_line(output)
            well = " is wrong at byte " in output if flawed else code == 0
            self.table.add(name, "passed" if well else "failed", said, output)

    @staticmethod
    def one_visible() -> str:
        return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]

    def tensorflow(self) -> None:
        """With TensorFlow, where it and the wheel are installed."""
        parts = ("op tests", "images/s", "overlap", "timeline")
        asked = (
            "import tensorflow as tf, tf_hvd; print(len(tf.config.list_physical_devices('GPU')))"
        )
        code, output = call([sys.executable, "-c", asked], 300, TF_CPP_MIN_LOG_LEVEL="2")
        reason = ""
        launcher = shutil.which(
            "tf_hvd", path=f"{pathlib.Path(sys.executable).parent}:{os.defpath}"
        )
        if code != 0:
            reason = f"no TensorFlow with tf_hvd in {sys.executable}"
        elif closing_line(output) == "0":
            reason = "TensorFlow sees no GPU"
        elif launcher is None:
            reason = "there is no tf_hvd beside this Python"
        if reason:
            for part in parts:
                self.skip(f"TensorFlow, {part}", reason)
            return
        self.op_tests(str(launcher))
        self.training(str(launcher))

    def launches(self) -> Iterator[tuple[str, int, dict[str, str]]]:
        """Kinds of jobs: what they are, ranks, settings. Two ranks share one GPU without NCCL."""
        several = min(len(self.gpus.names), LARGEST_JOB)
        yield "1 rank", 1, {}
        if several > 1:
            yield f"{several} ranks, NCCL", several, {}
        yield "2 ranks, host", 2, {"TF_HVD_NCCL": "0"}

    def op_tests(self, launcher: str) -> None:
        for kind, ranks, environment in self.launches():
            if importlib.util.find_spec("pytest") is None:
                self.skip(f"TensorFlow, op tests, {kind}", "there is no pytest")
                continue
            by_host = environment.get("TF_HVD_NCCL") == "0"
            command = op_test_command(launcher, sys.executable, ranks, by_host)
            self.part(f"TensorFlow, op tests, {kind}", command, 1200, **ON_GPU, **environment)

    def training(self, launcher: str) -> None:
        self.programs.mkdir(parents=True, exist_ok=True)
        for kind, ranks, environment in self.launches():
            timeline = self.programs / f"timeline-{ranks}.json"
            timeline.unlink(missing_ok=True)
            command = [launcher, "run", "-np", str(ranks)]
            if len(self.gpus.names) >= ranks:
                command += ["bash", "-c", BY_LOCAL_RANK, "_"]
            command += [launcher, "bench", "--sizes", "4", "--peers", "tf_hvd"]
            command += ["--repetitions", "30", "--training", "keras", "--json"]
            code, output = call(
                command, 600 * self.options.patience, HOROVOD_TIMELINE=str(timeline),
                TF_FORCE_GPU_ALLOW_GROWTH="true", **environment,
            )  # fmt: skip
            self.steps(kind, ranks, code, output)
            name = f"TensorFlow, timeline, {kind}"
            if timeline.exists():
                self.table.add(name, "passed", str(timeline))
            else:
                self.skip(name, "this version of tf_hvd writes none")

    def steps(self, kind: str, ranks: int, code: int, output: str) -> None:
        """Tells what `tf_hvd bench --json` has measured."""
        times = training_times(output) if code == 0 else None
        name = f"TensorFlow, images/s, {kind}"
        if times is None:
            self.table.add(name, "failed", closing_line(output), output)
            return
        with_it, without = (BATCH * ranks / times[key] for key in ("with_reduction", "without"))
        figure = f"{with_it:.0f} with the reduction, {without:.0f} without"
        self.table.add(name, "passed", figure)
        if ranks > 1:
            exposed = times["exposed"]
            figure = f"a step waits for {exposed:.0%} of the reduction"
            figure += "" if 0 <= exposed <= 1 else " (noise: the machine is busy)"
            self.table.add(f"TensorFlow, overlap, {kind}", "passed", figure)


def training_times(output: str) -> dict[str, float] | None:
    """The times in the JSON object that the output ends with; s."""
    start = output.find("{")
    while start >= 0:
        try:
            times = json.JSONDecoder().raw_decode(output[start:])[0].get("training")
            if times:
                return times[0] if isinstance(times, list) else times
        except ValueError:
            pass
        start = output.find("{", start + 1)
    return None


def op_test_command(launcher: str, python: str, ranks: int, by_host: bool) -> list[str]:
    """The tests of collectives, by pytest; not by way of the host, NCCL rounds half precisions."""
    files = [f"python/parallel/{name}_test.py" for name in software_device_files()]
    command = [launcher, "run", "-np", str(ranks), python, "-m", "pytest"]
    command += [*files, "-q", "-p", "no:cacheprovider"]
    return command if by_host else [*command, "-k", "not have_the_same_bits"]


def software_device_files() -> list[str]:
    """The tests of the Python layer that the software GPU runs too."""
    text = (ROOT / "tests" / "gpu" / "software_device_test.py").read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "FILES":
            return list(ast.literal_eval(node.value))
    raise SystemExit("software_device_test.py names no FILES")


def main() -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="tests/run_gpu.sh", description=__doc__.splitlines()[0])
    parser.add_argument("--programs", help="folder with the programs that Bazel has built")
    parser.add_argument(
        "--folder", default=str(ROOT / "build" / "run_gpu"), help="where they are compiled, else"
    )
    parser.add_argument("--bandwidth", default="", help="arguments for device_bandwidth")
    parser.add_argument("--job", default="", help="arguments for nccl_job")
    parser.add_argument("--patience", type=float, default=1.0, help="times all time limits")
    options = parser.parse_args()
    gpus = find_gpus(os.environ.get("TF_HVD_CUDA_LIBRARY", ""))
    if not gpus.names:
        print(f"no GPU: {gpus.reason}")
        return 0
    return Run(options, gpus).everything()


if __name__ == "__main__":
    sys.exit(main())
