"""Elastic jobs of real ranks: they continue bit-identically to an undisturbed job."""

import re

import pytest

from tf_hvd.observe import trace_reader

pytestmark = pytest.mark.usefixtures("usual_garbage")
# A rank's own values: moving statistics, dropout, NumPy's and Python's random numbers.
LOOP = """
import keras, random
import tf_hvd.keras as hvd_keras

keras.utils.set_random_seed(3 + rank)
model = keras.Sequential([
    keras.Input([8]), keras.layers.Dense(16, activation="relu"),
    keras.layers.BatchNormalization(), keras.layers.Dropout(0.2), keras.layers.Dense(1),
])
passes = int(os.environ.get("PASSES", 1))
optimizer = hvd_keras.DistributedOptimizer(
    keras.optimizers.Adam(0.01), backward_passes_per_step=passes)
model.compile(optimizer, "mse")
state = hvd.elastic.TensorFlowKerasState(model, batch=0, losses=[])
kills = {tuple(map(int, kill.split(":"))) for kill in os.environ.get("KILLS", "").split()}

@hvd.elastic.run
def train(state):
    say("from", state.batch)
    while state.batch < 30:
        features = np.random.normal(size=[8, 8]).astype("f") + random.random()
        loss = model.train_on_batch(features, features[:, :1])
        state.batch += 1
        if (state.batch, rank) in kills and once(f"{state.batch}.{rank}"):
            die()
        state.commit()
    return loss

train(state)
say("end", rank, [value.tobytes().hex()[:64] for value in model.get_weights()])
"""


_ENDS = {}  # by the number of passes


def ends_of_undisturbed(elastic, lines_of, passes="1"):
    """The results of the two ranks of LOOP, bit by bit, if no rank is killed."""
    if passes not in _ENDS:
        code, output = elastic(LOOP, "-np", "2", "--min-np", "2", PASSES=passes)
        assert code == 0, output
        _ENDS[passes] = lines_of("end", output)
        assert len(_ENDS[passes]) == 2, output
    return _ENDS[passes]


# ./dev prove elastic also runs this under MPICH.
@pytest.mark.parametrize("passes", ["1", pytest.param("2", marks=pytest.mark.tier2)])
def test_killed_ranks_change_no_bit(elastic, lines_of, tmp_path, passes):
    """Not even in the middle of an update of several passes. Each start has its own timeline."""
    plain = ("-np", "2", "--min-np", "2")
    expected = ends_of_undisturbed(elastic, lines_of, passes)
    kills = {"PASSES": passes, "KILLS": "7:1 8:0"}
    file = str(tmp_path / "job.json")
    timeline = ("--timeline", file) if passes == "1" else ("-x", f"HOROVOD_TIMELINE={file}")
    code, output = elastic(LOOP, *plain, *timeline, **kills)
    assert code == 0, output
    assert lines_of("end", output) == expected, output
    assert len(re.findall("restarting with 2 ranks", output)) == 2, output
    # All ranks continue from the last or second last commit before the kill.
    begun = [int(line.split()[1]) for line in lines_of("from", output)]
    for number in (7, 8):
        assert sum(number - 2 <= batch < number for batch in begun) >= 2, output
    for start in ("", ".restart-1", ".restart-2"):
        for rank in ("", ".rank-1"):
            (trace,) = trace_reader.read(tmp_path / f"job{start}{rank}.json")
            assert trace.spans, (start, rank)


@pytest.mark.tier2
def test_job_resumes_from_disk_after_losing_everything(elastic, lines_of, tmp_path):
    """After the loss of all ranks, stores and `tf_hvd run`, the result is bit-identical."""
    plain = ("-np", "2", "--min-np", "2")
    expected = ends_of_undisturbed(elastic, lines_of)
    folder = tmp_path / "commits"
    disk = {"TF_HVD_COMMIT_DIR": str(folder), "TF_HVD_COMMIT_DIR_EVERY": "4"}
    code, output = elastic(LOOP, *plain, "--reset-limit", "0", **disk, KILLS="15:1")
    assert code == 137, output
    assert "giving up: --reset-limit 0" in output
    # The last commit, if it exists, lacks the part of the killed rank.
    assert (folder / "commit.12").exists()
    code, output = elastic(LOOP, *plain, **disk)
    assert code == 0, output
    assert lines_of("from", output) == ["from 11", "from 11"], output
    assert "rank 0: continuing from commit 12 of TF_HVD_COMMIT_DIR" in output
    assert lines_of("end", output) == expected, output
    assert not list(folder.glob("commit.*"))


FIT = """
if os.environ.get("TF_USE_LEGACY_KERAS"):
    import tf_keras as keras
else:
    import keras
import tf_hvd.keras as hvd_keras
import tf_hvd.keras.elastic

keras.utils.set_random_seed(3)
elastic = hvd_keras.elastic.of(keras)
model = keras.Sequential([keras.layers.Input([8]), keras.layers.Dense(4), keras.layers.Dense(1)])
model.compile(
    hvd_keras.DistributedOptimizer(keras.optimizers.Adam(0.01)), "mse", metrics=["mae"],
    steps_per_execution=int(os.environ.get("STEPS", 1)),
)
state = hvd_keras.elastic.KerasState(model, batch=0, epoch=0)
x = np.random.default_rng(rank).normal(size=[96, 8]).astype("f")
data = tf.data.Dataset.from_tensor_slices((x, x[:, :1])).shuffle(96, seed=5).batch(8)
kills = os.environ.get("KILLS", "").split()

class Kill(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        self.at(batch)

    def on_test_begin(self, logs=None):
        self.at("validation")

    def at(self, point):
        place = f"{self.epoch}.{point}.{rank}"
        if place in kills and once(place):
            die()

    def on_epoch_end(self, epoch, logs=None):
        say("epoch", rank, epoch, repr(logs["loss"]), repr(logs["mae"]))

@hvd.elastic.run
def train(state):
    say("from", state.epoch, state.batch)
    validation = x[:8], x[:8, :1]
    callbacks = [
        elastic.UpdateEpochStateCallback(state), elastic.UpdateBatchStateCallback(state), Kill(),
        elastic.CommitStateCallback(state, 2),
    ]
    model.fit(data, epochs=3, initial_epoch=state.epoch, validation_data=validation, verbose=0,
              callbacks=callbacks)

train(state)
say("end", rank, [value.tobytes().hex()[:64] for value in model.get_weights()])
"""


@pytest.mark.tier2
@pytest.mark.parametrize(
    ("legacy", "steps"), [("", "1"), ("", "2"), ("1", "1")], ids=["keras", "keras_2", "tf_keras"]
)
def test_fit_resumes_in_the_middle_of_an_epoch(elastic, lines_of, legacy, steps):
    """With the data, order and metrics of that epoch; also after a kill during validation."""
    settings = {"TF_USE_LEGACY_KERAS": legacy, "STEPS": steps}
    code, output = elastic(FIT, "-np", "2", "--min-np", "2", **settings)
    assert code == 0, output
    epochs, expected = lines_of("epoch", output), lines_of("end", output)
    assert len(epochs) == 6, output
    code, output = elastic(
        FIT, "-np", "2", "--min-np", "2", **settings, KILLS="0.9.1 1.validation.0 2.9.0"
    )
    assert code == 0, output
    assert lines_of("end", output) == expected, output
    found = sorted(set(lines_of("epoch", output)))
    if steps == "1":
        assert found == epochs, output
    else:  # an execution sums its batches before it adds them to the previous sum
        numbers = [[float(word) for word in line.split()[1:]] for line in found]
        expected = [[float(word) for word in line.split()[1:]] for line in epochs]
        assert numbers == [pytest.approx(line, rel=1e-6) for line in expected], output
    begun = {tuple(map(int, line.split()[1:])) for line in lines_of("from", output)}
    # A commit is certainly written when the next one begins. Each epoch has two before the kill.
    for epoch, most in [(0, 9), (1, 11), (2, 9)]:
        assert any(place[0] == epoch and 0 < place[1] <= most for place in begun), output


# One machine with a changing number of slots.
LEDGER = """
weight, rate = tf.Variable(0.0), tf.Variable(0.0)
sampler = hvd.elastic.ElasticSampler(97, 4, keep_global_batch=bool(os.environ.get("KEEP")))
state = hvd.elastic.TensorFlowState([weight, rate], sampler=sampler, seen=[], sizes=[])

def rescale():
    say("reset", rank, hvd.size())
    rate.assign(0.5 * hvd.size())

rate.assign(0.5 * hvd.size())
state.register_reset_callbacks([rescale])
script = os.path.join(os.environ["FLAGS"], "hosts")

@hvd.elastic.run
def train(state):
    for epoch in range(sampler.epoch, 4):
        for indices, share in sampler.weighted_dataset():
            # With fewer samples than ranks, a rank gets a repeated sample, which does not count.
            done = indices if float(share) else indices[:0]
            everyone = hvd.allgather(done, name="indices").numpy().tolist()
            state.seen.append((epoch, everyone))
            state.sizes.append(hvd.size())
            assert float(rate) == 0.5 * hvd.size()
            sampler.record_batch()
            weight.assign_add(float(sum(everyone)))
            place = f"{epoch}.{sampler.position // 24}"
            slots = {"0.2": 2, "1.1": 1, "2.3": 2}.get(place)
            if slots and rank == 0 and once(place):
                with open(script + ".new", "w") as file:
                    file.write(f"localhost:{slots}" + chr(10))
                os.rename(script + ".new", script)
            if place == "3.1" and rank == 1 and once(place):
                die()
            time.sleep(0.2)  # so that new hosts can be found
            state.commit()
        sampler.set_epoch(epoch + 1)

train(state)
if rank == 0:
    for epoch in range(4):
        done = sorted(i for e, batch in state.seen for i in batch if e == epoch)
        say("epoch", epoch, done == list(range(97)))
    say("weight", float(weight) == 4 * sum(range(97)), "sizes", sorted(set(state.sizes)))
"""


@pytest.mark.tier2
@pytest.mark.parametrize("keep", ["", "1"], ids=["each_rank_s_batch", "global_batch"])
def test_no_sample_is_lost_or_repeated_when_slots_change(elastic, lines_of, tmp_path, keep):
    script = tmp_path / "discover"
    script.write_text('#!/bin/sh\ncat "$FLAGS/hosts" 2>/dev/null || echo localhost:1\n')
    script.chmod(0o755)
    code, output = elastic(
        LEDGER, "-np", "1", "--min-np", "1", "--host-discovery-script", str(script), KEEP=keep
    )
    assert code == 0, output
    assert lines_of("epoch", output) == [f"epoch {epoch} True" for epoch in range(4)], output
    assert lines_of("weight", output) == ["weight True sizes [1, 2]"], output
    assert {"reset 0 2", "reset 1 2", "reset 0 1"} <= set(lines_of("reset", output)), output


SETS = """
(chosen,) = sets
state = hvd.elastic.ObjectState(batch=0)

@hvd.elastic.run
def train(state):
    say("from", state.batch, hvd.size())
    while state.batch < 60:
        state.batch += 1
        if rank in chosen.ranks:
            total = hvd.allreduce(tf.ones([2]), op=hvd.Sum, name="s", process_set=chosen)
            assert total.numpy().tolist() == [2.0] * 2
        if state.batch == 5 and rank == 0 and once("fewer"):
            with open(os.path.join(os.environ["FLAGS"], "hosts"), "w") as file:
                file.write("localhost:2")
            die()
        state.commit()

train(state)
say("end", rank)
"""


@pytest.mark.tier2
def test_process_sets_are_recreated_or_refused_by_name(elastic, lines_of, tmp_path):
    script = tmp_path / "discover"
    script.write_text('#!/bin/sh\ncat "$FLAGS/hosts" 2>/dev/null || echo localhost:3\n')
    script.chmod(0o755)
    options = ("-np", "3", "--min-np", "2", "--host-discovery-script", str(script))
    code, output = elastic(SETS, *options, MEMBERS="0 1")
    assert code == 0, output
    # Rank 2, which only commits synchronize, may not have written its fourth commit.
    assert lines_of("from", output)[-2:] in (["from 4 2"] * 2, ["from 3 2"] * 2), output
    assert lines_of("end", output) == ["end 0", "end 1"], output
    code, output = elastic(SETS, *options, MEMBERS="0 2")
    assert code != 0, output
    said = " ".join(output.split())
    assert "([0, 2]): the job has no rank 2; its ranks are 0 to 1" in said, output
    assert "3 starts in a row ended before all ranks had made a commit" in said, output


def test_state_is_restored_in_a_job_that_is_not_elastic(elastic, lines_of):
    code, output = elastic(
        """
weight = tf.Variable(float(rank))
state = hvd.elastic.TensorFlowState([weight], batch=rank)

@hvd.elastic.run
def train(state):
    say("began", rank, float(weight), state.batch)
    state.commit()
    weight.assign(7.0)
    state.batch = 7
    state.restore()
    say("back", rank, float(weight), state.batch)
    if once(f"interrupt {rank}"):
        raise hvd.elastic.HostsUpdatedInterrupt(False)
    return state.batch

state.register_reset_callbacks([lambda: say("reset", rank)])
assert train(state) == 0
""",
        *("-np", "2"),
    )
    assert code == 0, output
    assert lines_of("began", output) == sorted(["began 0 0.0 0", "began 1 0.0 0"] * 2), output
    assert lines_of("back", output) == sorted(["back 0 0.0 0", "back 1 0.0 0"] * 2), output
    assert lines_of("reset", output) == ["reset 0", "reset 1"], output


ASKED_TWICE = """
import keras

model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
optimizer = keras.optimizers.SGD(0.1)

@tf.function
def step(reduced):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.ones([1, 2])))
    if reduced:
        tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

@hvd.elastic.run
def train(state):
    step(True)

step(False)
train(hvd.elastic.TensorFlowKerasState(model, optimizer))
say("trained", rank)
"""


def test_step_traced_without_reduction_gets_one(elastic, lines_of):
    """As in Horovod's examples: tf_hvd could not create a variable in the second trace."""
    code, output = elastic(ASKED_TWICE, "-np", "2")
    assert code == 0, output
    assert lines_of("trained", output) == ["trained 0", "trained 1"], output
