"""The Python blocks of README.md and docs/ run as they stand, on two ranks, with small data.

tests/docs/blocks.py finds them; docs_setups.py has the names that they take for granted.
"""

import importlib
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parents[1] / "docs")]
SETUPS = importlib.import_module("docs_setups").SETUPS
blocks = importlib.import_module("blocks")

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]


GROUPS = blocks.python_groups(blocks.all_blocks())


@pytest.mark.parametrize("group", GROUPS, ids=lambda group: str(group[0]))
def test_blocks(group):
    with SETUPS[group[0].how]() as names:
        for block in group:
            # Lines of the page, for the traceback.
            code = compile("\n" * block.line + block.text, block.page, "exec")
            exec(code, names)
