"""`tf_hvd.run` in a Jupyter notebook: a real kernel, as a front end drives it."""

import os
import pathlib
import re
import threading
import time

import nbformat
import pytest
from jupyter_client import KernelManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

WAIT = 120
PAGE = pathlib.Path(__file__).parents[2] / "docs/notebooks.md"
# The page's own cells.
SETUP, TRAIN = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text(), flags=re.DOTALL | re.MULTILINE
)
FAIL = """
def fail():
    import os
    numbers = [os.environ.get(name) for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK")]
    if "1" in numbers:
        raise KeyError("what")

tf_hvd.run(fail, np=2)
"""
SLEEP = """
def sleep(folder):
    import os, pathlib, time
    pathlib.Path(folder, str(os.getpid())).touch()
    time.sleep(600)

tf_hvd.run(sleep, args=({folder!r},), np=2)
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """Runs the text of a cell in one kernel, which has imported tf_hvd; returns the cell."""
    manager = KernelManager(kernel_name="python3")
    client = NotebookClient(nbformat.v4.new_notebook(), km=manager, timeout=WAIT)
    folder = str(tmp_path_factory.mktemp("notebook"))

    def run(text, meanwhile=None):
        cell = nbformat.v4.new_code_cell(text)
        client.nb.cells.append(cell)
        beside = threading.Thread(target=meanwhile, args=(manager,)) if meanwhile else None
        if beside:
            beside.start()
        try:
            client.execute_cell(cell, len(client.nb.cells) - 1)
        finally:
            if beside:
                beside.join(WAIT)
        return cell

    with client.setup_kernel(cwd=folder, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}):
        run(SETUP)
        yield run


def texts(cell, kind):
    """All text of the cell's outputs of one kind."""
    found = [output for output in cell.outputs if output.output_type == kind]
    return [output.get("text") or output["data"]["text/plain"] for output in found]


def test_ranks_print_into_the_cell_with_one_progress_bar(notebook):
    cell = notebook(TRAIN)
    printed = "".join(texts(cell, "stream"))
    lines = printed.splitlines()
    assert sorted(line for line in lines if "trained" in line) == [
        f"[{rank}] trained on 2 ranks" for rank in range(2)
    ]
    # Rank 0's bar alone, in the state that it had last; what each epoch ended with is in the text.
    [bar] = texts(cell, "display_data")
    assert "500/500" in bar
    assert "\r" not in printed
    assert "\b" not in printed
    assert [line[:3] for line in lines if "500/500" in line] == ["[0]"] * 3
    same = notebook(
        "pairs = list(zip(results[0][1], results[1][1], strict=True))\n"
        "len(results), all((one == other).all() for one, other in pairs)"
    )
    assert texts(same, "execute_result") == ["(2, True)"]


def test_the_exception_of_a_rank_is_raised_in_the_cell(notebook):
    with pytest.raises(CellExecutionError) as caught:
        notebook(FAIL)
    assert caught.value.ename == "RankError"
    assert "rank 1 of 2 raised:" in caught.value.evalue
    assert "KeyError: 'what'" in str(caught.value)


def test_interrupting_the_cell_ends_the_ranks(notebook, tmp_path):
    def interrupt(manager):
        deadline = time.monotonic() + WAIT
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        manager.interrupt_kernel()

    with pytest.raises(CellExecutionError) as caught:
        notebook(SLEEP.format(folder=str(tmp_path)), interrupt)
    assert caught.value.ename == "KeyboardInterrupt"
    processes = [pathlib.Path("/proc", file.name) for file in tmp_path.iterdir()]
    assert len(processes) == 2
    assert not any(process.exists() for process in processes)
    assert texts(notebook("1 + 1"), "execute_result") == ["2"]
