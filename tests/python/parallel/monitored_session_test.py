"""TensorFlow 1 style training: restore on rank 0, broadcast, write only on rank 0."""

import glob

import numpy as np
import pytest
import tensorflow as tf

import tf_hvd as hvd

pytestmark = pytest.mark.framework

v1 = tf.compat.v1


def build(rank):
    """A variable that starts as `rank`, with a momentum slot, and its training op."""
    variable = v1.get_variable("w", initializer=tf.constant([float(rank)]), use_resource=True)
    optimizer = hvd.DistributedOptimizer(v1.train.MomentumOptimizer(0.5, momentum=0.5))
    step = v1.train.get_or_create_global_step()
    v1.summary.scalar("w", variable[0])
    train = optimizer.minimize(tf.reduce_sum(variable * (rank + 1.0)), global_step=step)
    return variable, train


class LateVariable(v1.train.SessionRunHook):
    """Creates a variable in `begin`, as hooks of optimizers do with their slots."""

    def begin(self):
        self.variable = v1.get_variable(
            "late", initializer=tf.constant(float(hvd.rank() + 5)), use_resource=True
        )


class Count(v1.train.SessionRunHook):
    runs = 0

    def before_run(self, run_context):
        self.runs += 1


def train(rank, folder, steps, **arguments):
    """The variables' values at the beginning and at the end."""
    with tf.Graph().as_default():
        _, op = build(rank)
        with hvd.MonitoredTrainingSession(checkpoint_dir=folder, **arguments) as session:
            variables = v1.global_variables()
            first = session.run(variables)
            for _ in range(steps):
                session.run(op)
            last = session.run(variables)
        return [v.op.name for v in variables], first, last


def test_all_ranks_start_as_rank_0_and_stay_equal(rank, tmp_path):
    _, first, last = train(rank, str(tmp_path / "logs"), 3)
    assert first[0] == [0.0]
    assert len({str(values) for values in hvd.allgather_object(last)}) == 1


def test_restored_on_rank_0_and_broadcast(rank, tmp_path):
    """Each rank has a separate folder; only rank 0's gets a checkpoint, including slots."""
    folder = str(tmp_path / f"logs{rank}")
    names, _, last = train(rank, folder, 3)
    assert bool(glob.glob(f"{folder}/model.ckpt-*")) == (rank == 0)
    assert bool(glob.glob(f"{folder}/events*")) == (rank == 0)
    again, first, _ = train(rank, folder, 0)
    assert names == again
    assert any("Momentum" in name for name in names)
    for before, after in zip(last, first, strict=True):
        np.testing.assert_array_equal(before, after)
    assert len({str(values) for values in hvd.allgather_object(first)}) == 1


def test_variables_created_by_hooks_are_broadcast(rank):
    names, first, _ = train(rank, None, 0, hooks=[LateVariable()])
    assert first[names.index("late")] == 5.0


def test_a_hook_that_is_passed_too_early_raises(rank):
    with tf.Graph().as_default():
        build(rank)
        hooks = [hvd.BroadcastGlobalVariablesHook(0), LateVariable()]
        with pytest.raises(RuntimeError, match=r"late:0.*this hook last"):
            v1.train.MonitoredTrainingSession(hooks=hooks)


def test_chief_only_hooks_run_on_rank_0(rank):
    count = Count()
    train(rank, None, 2, chief_only_hooks=[count])
    assert count.runs == (4 if rank == 0 else 0)


def test_cluster_arguments_are_refused():
    for name in ("is_chief", "master"):
        with pytest.raises(ValueError, match=f"Remove {name}="):
            hvd.MonitoredTrainingSession(**{name: True})
