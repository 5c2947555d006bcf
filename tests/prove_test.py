"""The short forms of `./dev prove`: that its programs still find what they look for."""

import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE / "prove"))
import prove  # noqa: E402

# The wheel for each TensorFlow is tests/wheel_test.py's and tests/containers'; the seeds are
# those of the C++ tests, and fuzz those of programs_test.py and training_programs_test.py.
SHORT = ("faults", "kills", "soak")


@pytest.mark.parametrize("name", SHORT)
def test_the_short_form(name):
    table = __import__(name).prove(True)
    assert table.rows
    assert table.markdown().count("\n") == len(table.rows) + 2


def test_a_table_takes_its_place_on_the_page():
    page = prove.PAGE.read_text()
    for name in prove.NAMES:
        page = prove.with_section(page, name, f"table of {name}\n")
        page = prove.with_section(page, name, f"new table of {name}\n")
    assert [page.count(f"table of {name}\n") for name in prove.NAMES] == [1] * len(prove.NAMES)
    with pytest.raises(ValueError, match="no place for x"):
        prove.with_section(page, "x", "")
