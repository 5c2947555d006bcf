"""ctypes assumes a 32-bit int result for functions without declared types."""

import ctypes
import pathlib
import re

import pytest

from tf_hvd.core import _native

HEADER = pathlib.Path(__file__).resolve().parents[3] / "runtime" / "api" / "c_api.h"
RESULTS = {
    "int": ctypes.c_int,
    "int64_t": ctypes.c_int64,
    "const char*": ctypes.c_char_p,
    "void": None,
    "void*": ctypes.c_void_p,
}
DECLARED = re.findall(
    r"TF_HVD_EXPORT ([\w ]+\*?)\s*\b(tf_hvd_\w+)\(([^)]*)\);", HEADER.read_text(), re.DOTALL
)


def test_the_header_declares_functions():
    assert len(DECLARED) == HEADER.read_text().count("TF_HVD_EXPORT ") - 1 > 30  # the macro


@pytest.mark.parametrize(
    ("result", "name", "arguments"), DECLARED, ids=[name for _, name, _ in DECLARED]
)
def test_a_function_of_the_c_api_has_its_types(result, name, arguments):
    """tf_hvd_submitted_count had no declared type: its int64 was cut to 32 bits."""
    function = getattr(_native.library, name)
    assert function.restype is RESULTS[result.strip()]
    assert len(function.argtypes) == len([each for each in arguments.split(",") if each.strip()])
