"""The C++ tests again, under sanitizers.

They come last: `./dev test` compiles them beside the other tests.
"""

import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[1]


@pytest.mark.last
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("kind", ["asan", "tsan"])
def test_the_runtime_under(kind):
    done = subprocess.run([ROOT / "dev", "sanitize", kind], text=True, capture_output=True)
    assert done.returncode == 0, done.stdout + done.stderr
    print(done.stdout)
