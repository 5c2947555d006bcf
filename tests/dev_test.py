"""`./dev` on machines that lack something: one line that says what to install."""

import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BASICS = ["bash", "dirname", "env", "id", "mkdir", "sed", "cat", "cut", "sha256sum", "readlink"]
TOOLS = ["python3", "g++", "npm", "git", "flock"]


def run_dev(tmp_path, *arguments, tools=TOOLS):
    """Runs it where the PATH has these tools and no apt-get, in a home of its own."""
    path = tmp_path / "bin"
    path.mkdir()
    for tool in [*BASICS, *tools]:
        found = shutil.which(tool)
        assert found, f"this test needs {tool}"
        (path / tool).symlink_to(found)
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    return subprocess.run(
        [str(ROOT / "dev"), *arguments],
        cwd=tmp_path,
        env={"PATH": str(path), "LANG": os.environ.get("LANG", "C"), **home},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("tool", "package"),
    [("python3", "python3-venv"), ("g++", "g++"), ("npm", "npm"), ("flock", "util-linux")],
)
def test_missing_tool_is_one_line_that_names_its_package(tmp_path, tool, package):
    done = run_dev(tmp_path, "setup", tools=[name for name in TOOLS if name != tool])
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"dev: {tool} is missing: sudo apt-get install")
    assert line.endswith(f" {package}")


def test_unknown_command_is_refused(tmp_path):
    done = run_dev(tmp_path, "nonsense")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "dev: there is no command 'nonsense'"


def test_help_names_the_commands(tmp_path):
    done = run_dev(tmp_path)
    assert done.returncode == 0
    assert "./dev train" in done.stdout
    assert "./dev test" in done.stdout
    assert "./dev fuzz" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["wheel", "--tensorflow", "2.17"], "--tensorflow takes one of 2.18 2.19 2.20 2.21, not"),
        (["smoke", "--tensorflow"], "--tensorflow takes one of 2.18 2.19 2.20 2.21, not ''"),
        (["smoke", "--python", "no_such_python"], "there is no no_such_python"),
        (["wheel", "--platform"], "there is no option '--platform'; there are --tensorflow"),
    ],
)
def test_wheel_that_cannot_be_made_is_one_line(tmp_path, arguments, error):
    """Before anything is set up."""
    done = run_dev(tmp_path, *arguments)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"dev: {error}")


def steps_of(command):
    """What `./dev COMMAND` calls, in order."""
    (body,) = re.findall(
        rf"^    {command}\)\n(.*?)\n      ;;", (ROOT / "dev").read_text(), re.M | re.S
    )
    return body.split()


def test_build_leaves_an_installed_wheel():
    """`./dev build` left none in dist/, though the README said so."""
    assert steps_of("build") == ["setup", "build_all", "build_wheel", "install_wheel"]


def trained(tmp_path, *arguments):
    """The examples that `train` runs, with their numbers of ranks."""
    script = 'source dev_support/build.sh; run_ranks() { echo "$1 $2" >>"${OUT}"; }; say() { :; }; '
    out = tmp_path / "ran"
    subprocess.run(
        ["bash", "-euc", script + 'closing_lines() { :; }; train "$@"', "train", *arguments],
        cwd=ROOT,
        env={**os.environ, "OUT": str(out), "ROOT": str(ROOT)},
        check=True,
        capture_output=True,
        timeout=60,
    )
    return out.read_text().splitlines()


def test_train_runs_the_keras_example_as_well(tmp_path):
    examples = [f"examples/mnist_{name}.py" for name in ("keras", "tape", "session")]
    assert trained(tmp_path) == [f"{count} {path}" for path in examples for count in (1, 2)]
    (tmp_path / "ran").unlink()
    assert trained(tmp_path, "--example", "tape", "-np", "3") == [
        "1 examples/mnist_tape.py",
        "3 examples/mnist_tape.py",
    ]
