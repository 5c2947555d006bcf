"""Each code block of the documentation is run, or says why it is not.

tests/python/parallel/docs_test.py runs the Python blocks that share a job, under both MPIs as
tests/parallel_runs_test.py starts it. The tests here run blocks that need a separate process, job
or shell.
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
# A program for pages with commands that run the reader's program.
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


def test_each_block_says_how_it_runs_or_why_it_does_not():
    assert len(BLOCKS) > 80
    assert len(SETUPS) > 5
    assert blocks.faults(BLOCKS, SETUPS) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("```python\nx = 1\n```\n", "neither how it runs nor why it does not"),
        ("```sh\nls\n```\n", "neither how it runs nor why it does not"),
        ("text:\n\n    tf_hvd run\n", "not 'indented'"),
        ("```\nx\n```\n", "not ''"),
        ("```text\n$ tf_hvd doctor\n```\n", "code in a block of text"),
        ("<!-- runs: nothing -->\n```python\nx = 1\n```\n", "no set-up 'nothing'"),
        ("<!-- file: a.py -->\n```python\nx = 1\n```\n", "no command of the page runs a.py"),
        ("<!-- not run: tests/no.py does -->\n```sh\nls\n```\n", "tests/no.py does not exist"),
        ("<!-- runs: in tests/dev_test.py -->\n```sh\nls\n```\n", "does not read the page"),
        ("- item\n\n  ```python\n  x = 1\n  ```\n", "neither how it runs nor why it does not"),
    ],
)
def test_block_without_a_valid_tag_is_detected(text, said):
    (fault,) = blocks.faults(blocks.blocks_of("page.md", text), ["training"])
    assert said in fault


COMMANDS = [b for b in BLOCKS if b.language in ("sh", "console")]


@pytest.mark.parametrize("block", COMMANDS, ids=str)
def test_options_of_commands(block):
    files = {b.how for b in BLOCKS if b.page == block.page and b.kind == "file"}
    if block.page == "docs/quickstart.md":
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
        "while nothing; do :; done",
    ],
)
def test_a_wrong_command_is_found(line):
    found = [
        commands.fault(words, blocks.ROOT, set()) for words in commands.command_lines(line, False)
    ]
    assert any(found)


def check_quickstart(single, four, broken):
    """The output of the page's three programs."""
    assert len(re.findall("^250/250 ", single, re.M)) == 4
    assert float(re.findall(r"accuracy: (\S+)", single)[-1]) > 0.97
    assert len(re.findall("^63/63 ", four, re.M)) == 4  # only rank 0 prints
    norms = re.findall(r"rank (\d) of 4: (\S+)", four)
    assert sorted(rank for rank, _ in norms) == list("0123")
    assert len({norm for _, norm in norms}) == 1
    assert "NotDistributedError: Wrap the optimizer: tf_hvd.DistributedOptimizer(Adam(" in broken


def check_checkpoints(failed, resumed):
    """The program of "Try it": rank 1 is killed, and the next run resumes."""
    assert "rank 1 was killed by signal 9 (SIGKILL)" in " ".join(failed.split())
    assert "rank 0: resumed at epoch 3, batch 21, from backup" in resumed
    assert [epoch in resumed for epoch in ("Epoch 2/4", "Epoch 3/4", "Epoch 4/4")] == [0, 1, 1]


def check_readme(training, as_horovod):
    assert len(re.findall("^125/125 ", training, re.M)) == 4  # rank 0 only prints
    assert float(re.findall(r"accuracy: (\S+)", training)[-1]) > 0.95
    assert sorted(re.findall(r"rank (\d)", as_horovod)) == list("0123")


def check_horovod(path):
    assert path.strip().endswith("tf_hvd/_as_horovod")


def check_debug_a_hang(job, report):
    """The warning, the error and the report of the page's program."""
    assert "missing rank 0" in job
    assert "at hang.py, line 10, in evaluate" in job
    assert "more:  tf_hvd doctor dumps/" in job
    assert "rank 0 never called allreduce 'loss' (hang.py:14)" in report.splitlines()[0]


def check_keras_distribution(output):
    """The batch is global, so there are as many steps as in one process; only rank 0 prints."""
    assert len(re.findall("^125/125 ", output, re.M)) == 4
    assert float(re.findall(r"accuracy: (\S+)", output)[-1]) > 0.9


def check_timeline(report):
    """Rank 1 is late in nearly all of the 18 steps that count."""
    late_in = re.search(r"^ +1 .* (\d+) steps? +[\d.]+$", report, re.M)
    assert int(late_in[1]) > 12


def check_elastic(output):
    """The loss falls between the first and the last epoch."""
    losses = [float(loss) for loss in re.findall(r"^epoch \d: loss ([\d.]+)$", output, re.M)]
    assert len(losses) == 4, output
    assert losses[-1] < losses[0]


CHECKS = {
    "README.md": check_readme,
    "docs/checkpoints.md": check_checkpoints,
    "docs/debug_a_hang.md": check_debug_a_hang,
    "docs/elastic.md": check_elastic,
    "docs/horovod.md": check_horovod,
    "docs/keras_distribution.md": check_keras_distribution,
    "docs/quickstart.md": check_quickstart,
    "docs/timeline.md": check_timeline,
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


SEPARATE = [b for b in BLOCKS if b.how == "script" or blocks.SEPARATE.fullmatch(b.how)]


@pytest.mark.parametrize("block", SEPARATE, ids=str)
def test_programs_in_separate_jobs(block, environment, run_to_end, tmp_path):
    (tmp_path / "program.py").write_text(block.text)
    command = ["python", "program.py"]
    if block.how != "script":
        ranks = blocks.SEPARATE.fullmatch(block.how).group(1)
        command = ["tf_hvd", "run", "-np", ranks, *command]
    environment.pop("PYTHONSAFEPATH", None)
    code, output = run_to_end(command, environment, LIMIT, cwd=tmp_path)
    assert code == 0, f"{block}:\n{output}"
