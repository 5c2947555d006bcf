"""A Keras callback that acts only on the first rank during a `fit`."""

import keras
import pytest
import tf_keras

from tf_hvd.keras import hooks, root_only


class Equal(keras.callbacks.CSVLogger):
    """All instances are equal, so they have no hash."""

    def __eq__(self, other):
        return isinstance(other, Equal)


@pytest.mark.parametrize(
    "kind", [keras.callbacks.CSVLogger, tf_keras.callbacks.CSVLogger, Equal], ids=str
)
def test_a_callback_is_held_once_and_released(kind, tmp_path):
    """Each `fit` holds it; the last fit's hooks stayed, until there were too many."""
    held, other = kind(str(tmp_path / "a")), kind(str(tmp_path / "b"))
    for _ in range(3):
        root_only.hold(held)
    around = hooks._of(held).around
    assert around.keys() == {"on_train_begin", "on_epoch_end", "on_train_end"}
    assert [len(each) for each in around.values()] == [1, 1, 1]
    assert root_only.is_held(held)
    assert not root_only.is_held(other)
    root_only.release(held)
    assert not root_only.is_held(held)


def test_the_table_drops_deleted_callbacks(tmp_path):
    held = Equal(str(tmp_path / "a"))
    key = id(held)
    root_only.hold(held)
    assert key in hooks._owned
    del held
    assert key not in hooks._owned
