"""The lines that the tests reach, in Python (coverage.py) and in C++ (gcov).

`./dev prove coverage` builds with `--config=coverage` and runs the C++ tests first. This module
then runs the Python tests against that wheel, and adds the counts up. Code that only killed
processes or GPUs ran is not counted.
"""

from __future__ import annotations

import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from prove import ROOT, Table

# Tests of the wheel's files and builds, which differ here.
LEFT_OUT = (
    "tests/wheel_test.py", "tests/prove_test.py", "tests/sanitizers_test.py", "tests/containers",
)  # fmt: skip
CPP = ("base", "compute", "runtime", "kernels", "ops")
FEW = ("tests/python/single/reduction_test.py",)
SETTINGS = """
[run]
source_pkgs = tf_hvd
parallel = true
data_file = {folder}/coverage
sigterm = true
patch = _exit

[report]
exclude_also =
    if TYPE_CHECKING:
"""
Counts = dict[str, tuple[int, int]]
"""For each folder: reached lines, and all lines."""


def run_pytest(tests: list[str], settings: pathlib.Path) -> str:
    """Runs tests and returns pytest's last line. Some tests fail with instrumented code."""
    command = [sys.executable, "-m", "pytest", "--ignore=tests/python/parallel", "-q", "-n", "2"]
    done = subprocess.run(
        [*command, *tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONSAFEPATH": "1", "COVERAGE_PROCESS_START": str(settings)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    print(done.stdout)
    closing = done.stdout.splitlines()[-1].strip("= ")
    assert re.search(r"\d+ passed", closing), done.stdout
    return closing


def of_python(settings: pathlib.Path) -> Counts:
    coverage = [sys.executable, "-m", "coverage"]
    rcfile = f"--rcfile={settings}"
    subprocess.run([*coverage, "combine", "--quiet", rcfile], cwd=settings.parent, check=True)
    report = settings.parent / "python.json"
    json_report = [*coverage, "json", "--quiet", rcfile, "-o", str(report)]
    subprocess.run(json_report, cwd=settings.parent, check=True)
    return by_folder(counts_of(json.loads(report.read_text())["files"]))


def counts_of(files: dict[str, dict[str, list[int]]]) -> Counts:
    """Counts by name in the package: tests install it in several places, but a line counts once."""
    reached: dict[str, set[int]] = collections.defaultdict(set)
    lines: dict[str, set[int]] = collections.defaultdict(set)
    for path, file in files.items():
        name = "tf_hvd/" + path.rpartition("/tf_hvd/")[2]
        reached[name].update(file["executed_lines"])
        lines[name].update(file["executed_lines"], file["missing_lines"])
    return {name: (len(reached[name]), len(of)) for name, of in lines.items()}


def of_cpp() -> Counts:
    """A line counts once, although several objects may have it; one of them must have run it."""
    root = pathlib.Path(os.environ["GCOV_PREFIX"])
    built = (ROOT / "bazel-bin").resolve()
    found = [str(file) for name in CPP for file in (built / name).rglob("*.gcda")]
    assert found, "no counts: did the C++ tests run?"
    gcov = ["gcov", "--json-format", "--stdout"]
    said = subprocess.run([*gcov, *found], cwd=root, check=True, stdout=subprocess.PIPE).stdout
    lines: dict[str, dict[int, bool]] = collections.defaultdict(dict)
    for document in said.splitlines():
        for file in json.loads(document)["files"]:
            if not file["file"].startswith(tuple(f"{name}/" for name in CPP)):
                continue
            of_file = lines[file["file"]]
            for line in file["lines"]:
                number = line["line_number"]
                of_file[number] = of_file.get(number, False) or line["count"] > 0
    return by_folder({name: (sum(of.values()), len(of)) for name, of in lines.items()})


def by_folder(files: Counts) -> Counts:
    sums: Counts = collections.defaultdict(lambda: (0, 0))
    for name, (reached, lines) in files.items():
        folder = str(pathlib.PurePath(name).parent)
        sums[folder] = sums[folder][0] + reached, sums[folder][1] + lines
    return sums


def prove_coverage(short: bool) -> Table:
    with tempfile.TemporaryDirectory(prefix="prove.") as folder:
        settings = pathlib.Path(folder) / "coveragerc"
        settings.write_text(SETTINGS.format(folder=folder))
        tests = list(FEW) if short else [*(f"--ignore={name}" for name in LEFT_OUT), "tests"]
        closing = run_pytest(tests, settings)
        counts = {"Python": of_python(settings), "C++": of_cpp()}
    table = Table(
        "The table shows how many lines of code the C++ tests and the Python tests execute. Runs "
        "under the sanitizers are not included. The last line of pytest's output was "
        f"`{closing}`.",
        ["folder", "lines", "reached", "share"],
    )
    for language, folders in counts.items():
        total = tuple(map(sum, zip(*folders.values(), strict=True)))
        for folder, (reached, lines) in [*sorted(folders.items()), (f"**{language}**", total)]:
            table.add(folder, lines, reached, f"{100 * reached / max(lines, 1):.1f} %")
    return table
