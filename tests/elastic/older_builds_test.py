"""Files written by older builds: they are read, or refused with a message, but never misread.

`older_builds.zip` has the original files. A change of a format adds files of the previous build
and a test of their treatment.
"""

import pathlib
import zipfile

import keras
import pytest

from tf_hvd.elastic import commit_folder
from tf_hvd.keras import data_order, rank_state

FILES = zipfile.ZipFile(pathlib.Path(__file__).with_name("older_builds.zip"))
# The program that has written the commits and continues from them.
PROGRAM = """
weights = tf.Variable([0.0, 0.0, 0.0])
state = hvd.elastic.TensorFlowState([weights], batch=0, notes=[])

@hvd.elastic.run
def train(state):
    say("from", state.batch, state.notes, weights.numpy().tolist())
    if state.batch:
        return
    for state.batch in range(1, 4):
        state.notes.append(f"batch {state.batch}")
        weights.assign_add([1.0, 2.0, 3.0])
        state.commit()
    die()

train(state)
"""


@pytest.fixture
def commits_of(tmp_path):
    """Creates a folder with the commits of a format."""

    def made(number):
        folder = tmp_path / "commits"
        folder.mkdir(mode=0o700)
        for name in FILES.namelist():
            where, _, file = name.partition("/")
            if where == f"commits of format {number}":
                (folder / file).write_bytes(FILES.read(name))
        assert list(folder.iterdir())
        return folder

    return made


def test_job_resumes_from_commits_of_format_2(elastic, lines_of, commits_of):
    folder = {"TF_HVD_COMMIT_DIR": str(commits_of(2)), "TF_HVD_COMMIT_DIR_EVERY": "1"}
    code, output = elastic(PROGRAM, "-np", "1", "--min-np", "1", **folder)
    assert code == 0, output
    expected = "from 2 ['batch 1', 'batch 2'] [2.0, 4.0, 6.0]"
    assert lines_of("from", output) == [expected], output


def test_commits_of_format_1_are_refused_and_kept(store, commits_of):
    """That format had the program's objects in the file of each machine."""
    path = commits_of(1)
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    folder = commit_folder.CommitFolder(str(path), 1)
    with pytest.raises(
        ValueError, match=r"commit\.3: another version of tf_hvd has written it \(format 1\)"
    ):
        folder.load(store)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


@pytest.fixture
def states_of(tmp_path):
    """Restores the rank state of a backup: the epoch and the backed-up callback."""

    def restored(name):
        path = tmp_path / "tf_hvd_ranks"
        path.write_bytes(FILES.read(name))
        layers = [keras.Input([2]), keras.layers.Dense(1), keras.layers.Dropout(0.5)]
        model = keras.Sequential(layers)
        model.compile("sgd", "mse")
        stopping = keras.callbacks.EarlyStopping(patience=5)
        stopping.set_model(model)
        stopping.on_train_begin()
        place = data_order.Place(data_order.new_orders())
        states = rank_state.RankStates([stopping], model, place, None)
        return states.restore(str(path)), stopping

    return restored


def test_rank_state_of_a_backup_is_read(states_of):
    epoch, stopping = states_of("backup in a NumPy archive")
    assert (epoch, stopping.best, stopping.wait) == (7, 0.25, 2)


def test_old_rank_state_of_a_backup_is_refused(states_of):
    """The old format was JSON followed by the bytes of the arrays."""
    with pytest.raises(ValueError, match="not written by this version of tf_hvd"):
        states_of("backup in JSON and bytes")
