"""Jobs that are asked to end, by a signal to a rank or to `tf_hvd run`."""

import signal

import pytest

pytestmark = pytest.mark.usefixtures("usual_garbage")


LEAVES = """
saved = []

def save():
    saved.append(float(hvd.allreduce(tf.constant([1.0]), op=hvd.Sum)[0]))

preemption = hvd.on_preemption(save)
for step in range(1000):
    hvd.allreduce(tf.ones([2]), name="g")
    if step == 5 and rank == 1:
        os.kill(os.getpid(), signal.SIGTERM)
    try:
        preemption.check()
    except SystemExit:
        say("left", rank, "after", step, saved)
        raise
"""


@pytest.mark.parametrize("family", ["openmpi", pytest.param("mpich", marks=pytest.mark.tier2)])
def test_job_with_terminated_rank_saves_and_exits_cleanly(elastic, lines_of, family):
    code, output = elastic(LEAVES, "-np", "2", family=family)
    assert code == 75, output
    assert lines_of("left", output) == ["left 0 after 6 [2.0]", "left 1 after 6 [2.0]"], output
    said = " ".join(output.split())
    assert "ranks 0, 1 received a termination signal, saved and exited cleanly" in said
    assert "start the job again: it continues from the saved state" in said


BACKS_UP = """
if os.environ.get("TF_USE_LEGACY_KERAS"):
    import tf_keras as keras
else:
    import keras
import tf_hvd.keras as hvd_keras
from tf_hvd.keras import callbacks

keras.utils.set_random_seed(3 + rank)
model = keras.Sequential([keras.layers.Input([8]), keras.layers.Dense(4), keras.layers.Dense(1)])
model.compile(hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", metrics=["mae"])
x = np.random.default_rng(rank).normal(size=[96, 8]).astype("f")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(96, seed=5).batch(8)

class Ask(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.batch = batch
        if os.environ.get("ASK") == f"{self.epoch}.{batch}.{rank}":
            os.kill(os.getpid(), signal.SIGTERM)

    def on_epoch_end(self, epoch, logs=None):
        say("epoch", rank, epoch, repr(logs["loss"]), repr(logs["mae"]))

ask = Ask()
backup = callbacks.of(keras).BackupAndRestore(
    os.path.join(os.environ["FLAGS"], os.environ["BACKUP"]), save_before_preemption=True)
try:
    model.fit(data, epochs=3, verbose=0, callbacks=[
        backup, callbacks.of(keras).BroadcastGlobalVariablesCallback(0), ask])
except SystemExit as error:
    say("left", rank, ask.epoch, ask.batch, error.code)
    raise
say("end", rank, [value.tobytes().hex()[:64] for value in model.get_weights()])
"""


@pytest.mark.tier2
@pytest.mark.parametrize("legacy", ["", "1"], ids=["keras", "tf_keras"])
def test_fit_with_terminated_rank_backs_up_and_resumes(elastic, lines_of, legacy):
    settings = {"TF_USE_LEGACY_KERAS": legacy, "KEEP_FLAGS": "1"}
    code, output = elastic(BACKS_UP, "-np", "2", **settings, BACKUP="reference")
    assert code == 0, output
    epochs, expected = lines_of("epoch", output), lines_of("end", output)
    found = []
    for ask, left in (("1.4.1", "1 5"), ("2.11.0", "")):
        code, output = elastic(BACKS_UP, "-np", "2", **settings, BACKUP="ours", ASK=ask)
        found += lines_of("epoch", output)
        if left:
            assert code == 75, output
            assert lines_of("left", output) == [f"left {rank} {left} 75" for rank in (0, 1)], output
    # The signal after the last batch came too late: the training had finished.
    assert code == 0, output
    assert sorted(found) == epochs, output
    assert lines_of("end", output) == expected, output


ASKED = """
state = hvd.elastic.ObjectState(batch=0, of=rank)

@hvd.elastic.run
def train(state):
    say("from", state.batch, state.of)
    while state.batch < 12:
        state.batch += 1
        state.of = rank
        if state.batch == 5 and rank == 1 and once("asked"):
            os.kill(os.getpid(), getattr(signal, os.environ["SIGNAL"]))
        state.commit()

train(state)
say("after", rank, signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
"""


@pytest.mark.tier2
@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_elastic_job_with_terminated_rank_restarts(elastic, lines_of, tmp_path, name):
    """With the values of rank 0. After the training, the signal ends a rank again."""
    folder = tmp_path / "commits"
    disk = {"TF_HVD_COMMIT_DIR": str(folder), "TF_HVD_COMMIT_DIR_EVERY": "100"}
    # Each rank counts as a separate node, so it writes its own values.
    separate = {"TF_HVD_RANKS_PER_NODE": "1"}
    code, output = elastic(ASKED, "-np", "2", "--min-np", "2", SIGNAL=name, **disk, **separate)
    assert code == 0, output
    assert lines_of("from", output) == ["from 0 0", "from 0 0", "from 6 0", "from 6 0"], output
    assert lines_of("after", output) == ["after 0 True", "after 1 True"], output
    assert "was the first to end" not in output


FOR_EVER = """
state = hvd.elastic.ObjectState(batch=0)

def launcher():
    process = os.getppid()
    while True:
        with open(f"/proc/{process}/cmdline") as command, open(f"/proc/{process}/stat") as stat:
            if "tf_hvd_command\\0run" in command.read():
                return process
            process = int(stat.read().rpartition(")")[2].split()[1])

@hvd.elastic.run
def train(state):
    say("from", state.batch)
    while state.batch == 0 or "GOES_ON" not in os.environ:
        state.batch += 1
        if state.batch == 5 and rank == 1:
            os.kill(launcher(), getattr(signal, os.environ["ASKED_BY"]))
        state.commit()
        say("made", state.batch)

train(state)
"""


@pytest.mark.tier2
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_last_commit_of_terminated_job_is_on_disk(elastic, lines_of, tmp_path, name):
    """If `tf_hvd run` ends, commits in memory are lost, and the exit code is not 75.

    After Ctrl-C the ranks raised KeyboardInterrupt at any place, and made no last commit.
    """
    disk = {
        "ASKED_BY": name,
        "TF_HVD_COMMIT_DIR": str(tmp_path / "commits"),
        "TF_HVD_COMMIT_DIR_EVERY": "1000",
    }
    disk["TF_HVD_TESTS_STANDBY"] = ""  # the standby is not a descendant of the launcher
    code, output = elastic(FOR_EVER, "-np", "2", "--min-np", "2", **disk)
    assert code == 75, output
    said = " ".join(output.split())
    assert "next: start the job again: it continues from the saved state" in said
    made = max(int(line.split()[1]) for line in lines_of("made", output))
    code, output = elastic(FOR_EVER, "-np", "2", "--min-np", "2", **disk, GOES_ON="1")
    assert code == 0, output
    assert lines_of("from", output) == [f"from {made + 1}"] * 2, output
    code, output = elastic(
        FOR_EVER, "-np", "2", "--min-np", "2", **{**disk, "TF_HVD_COMMIT_DIR": ""}
    )
    assert code == 128 + getattr(signal, name), output
    assert "the job's commits were only in memory, and are lost" in output
