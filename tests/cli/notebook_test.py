"""`tf_hvd.run` in a Jupyter notebook: a real kernel, controlled as by a front end."""

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

WAIT = 600
PAGE = pathlib.Path(__file__).parents[2] / "docs/notebooks.md"
# The cells of the documentation page.
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
# As in Horovod's lessons: names imported at the top of the notebook and used in the function.
LESSON = """
import os
import tf_hvd
tf_hvd.install_as_horovod()
os.environ["TF_USE_LEGACY_KERAS"] = "{legacy}"  # for the ranks

import horovod
import horovod.tensorflow as hvd
import horovod.tensorflow.keras as hvd_keras
import numpy as np
import tensorflow as tf

def training_func():
    hvd.init()
    keras = tf.keras
    keras.utils.set_random_seed(hvd.rank())
    x = np.float32([[1.0 + hvd.rank()]] * 8)
    model = keras.Sequential([keras.layers.Input((1,)), keras.layers.Dense(1)])
    optimizer = hvd_keras.DistributedOptimizer(keras.optimizers.SGD(0.01 * hvd.size()))
    model.compile(loss="mse", optimizer=optimizer, experimental_run_tf_function=False)
    start = hvd_keras.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(x, x, verbose=0, callbacks=[start])
    hvd.broadcast_variables(optimizer.variables(), root_rank=0)
    library = keras.Model.__module__.split(".")[0]
    return library, [weights.tolist() for weights in model.get_weights()]

results = horovod.run(
    training_func, np=2, verbose=False, disable_cache=True, use_mpi=True
)
results[0][0], results[0] == results[1]
"""
SLEEP = """
def sleep(folder):
    import os, pathlib, time
    note = pathlib.Path(folder, str(os.getpid()))
    try:
        note.touch()
        time.sleep(600)
    except KeyboardInterrupt:
        time.sleep(1)
        note.write_text("saved")
        raise

tf_hvd.run(sleep, args=({folder!r},), np=2)
"""


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """Runs a cell's text in one kernel that has imported tf_hvd; returns the cell."""
    manager = KernelManager(kernel_name="python3")
    client = NotebookClient(
        nbformat.v4.new_notebook(), km=manager, timeout=WAIT, iopub_timeout=WAIT
    )
    folder = str(tmp_path_factory.mktemp("notebook"))

    def run(text, meanwhile=None):
        cell = nbformat.v4.new_code_cell(text)
        client.nb.cells.append(cell)
        parallel = threading.Thread(target=meanwhile, args=(manager,)) if meanwhile else None
        if parallel:
            parallel.start()
        try:
            client.execute_cell(cell, len(client.nb.cells) - 1)
        finally:
            if parallel:
                parallel.join(WAIT)
        return cell

    with client.setup_kernel(cwd=folder, env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}):
        run(SETUP)
        yield run


def texts(cell, kind):
    """The text of all outputs of one kind in a cell."""
    found = [output for output in cell.outputs if output.output_type == kind]
    return [output.get("text") or output["data"]["text/plain"] for output in found]


def test_ranks_print_into_the_cell_with_one_progress_bar(notebook):
    cell = notebook(TRAIN)
    printed = "".join(texts(cell, "stream"))
    lines = printed.splitlines()
    assert sorted(line for line in lines if "trained" in line) == [
        f"[{rank}] trained on 2 ranks" for rank in range(2)
    ]
    # Rank 0's bar, which is redrawn; each epoch ends with a complete line.
    assert re.search(r"\[0\] \S*\d+/500.*\r\[0\] ", printed)
    assert "\b" not in printed
    whole = [line for line in printed.split("\n") if "500/500" in line]
    assert [line.rpartition("\r")[2][:3] for line in whole] == ["[0]"] * 3
    same = notebook(
        "pairs = list(zip(results[0][1], results[1][1], strict=True))\n"
        "len(results), all((one == other).all() for one, other in pairs)"
    )
    assert texts(same, "execute_result") == ["(2, True)"]


@pytest.mark.parametrize("keras", ["keras", "tf_keras"])
def test_function_uses_horovod_names_of_the_notebook(notebook, keras):
    """A module's alias is pickled by name, and Keras 3 accepts the lesson's Keras 2 code."""
    cell = notebook(LESSON.format(legacy=int(keras == "tf_keras")))
    assert texts(cell, "execute_result") == [f"('{keras}', True)"]
    lines = "".join(texts(cell, "stream")).splitlines()
    told = [line for line in lines if "experimental_run_tf_function" in line]
    assert len(told) == (keras == "keras"), lines


def test_exception_of_a_rank_is_raised_in_the_cell(notebook):
    with pytest.raises(CellExecutionError) as caught:
        notebook(FAIL)
    assert caught.value.ename == "RankError"
    assert "rank 1 of 2 raised:" in caught.value.evalue
    assert "KeyError: 'what'" in str(caught.value)


def test_interrupting_the_cell_lets_ranks_save_and_end(notebook, tmp_path):
    def interrupt(manager):
        deadline = time.monotonic() + WAIT
        while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
            time.sleep(0.05)
        manager.interrupt_kernel()

    with pytest.raises(CellExecutionError) as caught:
        notebook(SLEEP.format(folder=str(tmp_path)), interrupt)
    assert caught.value.ename == "KeyboardInterrupt"
    notes = list(tmp_path.iterdir())
    assert [note.read_text() for note in notes] == ["saved"] * 2
    assert not any(pathlib.Path("/proc", note.name).exists() for note in notes)
    assert texts(notebook("1 + 1"), "execute_result") == ["2"]
