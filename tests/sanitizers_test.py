"""Runs the C++ tests under AddressSanitizer with UBSan, and under ThreadSanitizer.

In a separate lane: it compiles while the ranks of other lanes wait.
"""

import os
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]
LIMIT = 3600


@pytest.mark.early(15)
@pytest.mark.timeout(LIMIT + 60)
@pytest.mark.parametrize("sanitizer", ["asan", "tsan"])
def test_cpp_tests(sanitizer, run_to_end):
    command = [str(ROOT / "dev"), "test", "//...", f"--config={sanitizer}"]
    code, output = run_to_end(command, os.environ, LIMIT)
    assert code == 0, f"C++ tests failed with --config={sanitizer}"
    tests, passed = re.search(r"out of (\d+) tests: (\d+) tests pass\.", output).groups()
    assert int(tests) == int(passed) > 40
