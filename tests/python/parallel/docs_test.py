"""The Python blocks of README.md and docs/ run unchanged, on two ranks, with small data.

tests/docs/blocks.py finds them; docs_setups.py provides the names that they use.
"""

import blocks
import numpy as np
import pytest
from docs_setups import SETUPS

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2)]


GROUPS = blocks.python_groups(blocks.all_blocks())


def run(group, names):
    for block in group:
        # Line numbers of the page, for tracebacks.
        code = compile("\n" * block.line + block.text, block.page, "exec")
        exec(code, names)


def marked(group):
    marks = [pytest.mark.compiled] if group[0].how == "compiled" else []
    return pytest.param(group, marks=marks, id=str(group[0]))


@pytest.mark.parametrize("group", [marked(group) for group in GROUPS])
def test_blocks(group):
    with SETUPS[group[0].how]() as names:
        run(group, names)


def test_a_second_run_continues_from_the_checkpoint():
    (group,) = [group for group in GROUPS if "CheckpointManager" in group[0].text]
    with SETUPS[group[0].how]() as first:
        run(group, first)
        with SETUPS["training"]() as second:
            second["folder"] = first["folder"]
            run(group, second)
        for before, now in zip(first["model"].weights, second["model"].weights, strict=True):
            assert np.array_equal(before.numpy(), now.numpy())
        assert int(second["optimizer"].iterations) == int(first["optimizer"].iterations)
