"""Which lines the tests reach, in Python (coverage.py) and in C++ (gcov).

`./dev prove coverage` builds with `--config=coverage` and runs the C++ tests first; here the
Python tests run against the wheel that was built so, and both are added up. What a process that
is killed had reached is not counted, nor is what runs on GPUs.
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

# About the wheel's own files and builds, which are others here.
LEFT_OUT = ("tests/wheel_test.py", "tests/prove_test.py", "tests/containers")
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
"""For each folder: lines that were reached, and all that could be."""


def run_pytest(tests: list[str], settings: pathlib.Path) -> str:
    """Its closing line. Tests may fail: of what is instrumented they ask too much."""
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
    counts = {}
    for path, file in json.loads(report.read_text())["files"].items():
        summary = file["summary"]
        name = "tf_hvd/" + path.rpartition("/tf_hvd/")[2]
        counts[name] = summary["covered_lines"], summary["num_statements"]
    return by_folder(counts)


def of_cpp(folder: pathlib.Path) -> Counts:
    report = folder / "cpp.json"
    gcovr = [sys.executable, "-m", "gcovr", "--root", str(ROOT), "--json-summary", str(report)]
    filters = [f"--filter={name}/" for name in ("runtime", "kernels", "ops")]
    # A negative count is gcc's own flaw with threads.
    options = ["--gcov-ignore-parse-errors=all", "--merge-mode-functions=separate"]
    built = (ROOT / "bazel-bin").resolve()
    subprocess.run([*gcovr, *filters, *options, str(built)], cwd=ROOT, check=True)
    files = json.loads(report.read_text())["files"]
    return by_folder({f["filename"]: (f["line_covered"], f["line_total"]) for f in files})


def by_folder(files: Counts) -> Counts:
    sums: Counts = collections.defaultdict(lambda: (0, 0))
    for name, (reached, lines) in files.items():
        folder = str(pathlib.PurePath(name).parent)
        sums[folder] = sums[folder][0] + reached, sums[folder][1] + lines
    return sums


def prove(short: bool) -> Table:
    with tempfile.TemporaryDirectory(prefix="prove.") as folder:
        settings = pathlib.Path(folder) / "coveragerc"
        settings.write_text(SETTINGS.format(folder=folder))
        tests = list(FEW) if short else [*(f"--ignore={name}" for name in LEFT_OUT), "tests"]
        closing = run_pytest(tests, settings)
        counts = {"Python": of_python(settings), "C++": of_cpp(pathlib.Path(folder))}
    table = Table(
        "Lines that the C++ tests and the Python tests reach, without the sanitizers' runs; "
        f"pytest's closing line was `{closing}`.",
        ["folder", "lines", "reached", "share"],
    )
    for language, folders in counts.items():
        total = tuple(map(sum, zip(*folders.values(), strict=True)))
        for folder, (reached, lines) in [*sorted(folders.items()), (f"**{language}**", total)]:
            table.add(folder, lines, reached, f"{100 * reached / max(lines, 1):.1f} %")
    return table
