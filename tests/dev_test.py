"""`./dev` on machines that lack something: one line that says what to install."""

import os
import pathlib
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
