"""Which of Keras' own callbacks write on one rank only, given the ranks' plans."""

import keras
import pytest
import tf_keras

from tf_hvd.keras import callbacks, fit_config

# Callbacks that neither write nor decide anything.
HARMLESS = {
    "BaseLogger", "Callback", "CallbackList", "History", "LambdaCallback", "ProgbarLogger",
}  # fmt: skip


def plan(*files):
    """The plan of a rank with these files: host, path, and whether one rank may write for all."""
    of = [fit_config.File("CSVLogger", host, path, held) for host, path, held in files]
    return fit_config.FitConfig(True, 4, 1, (), False, tuple(of), None, (), [])


@pytest.mark.parametrize(
    ("plans", "shared"),
    [
        ([[("a", "/x", True)], [("a", "/x", True)]], {"/x"}),
        # On several hosts the result is the same as on one.
        ([[("a", "/x", True)], [("b", "/x", True)]], {"/x"}),
        ([[("a", "/x", True)], [], [("b", "/x", True)]], {"/x"}),
        ([[("", "gs://x", True)], [("", "gs://x", True)]], {"gs://x"}),
        ([[("a", "/x", True)], [("a", "/y", True)]], set()),
        ([[], [("a", "/x", True)]], set()),
        ([[("a", "/x", False)], [("b", "/x", False)]], set()),
        ([[("a", "/x", True), ("a", "/y", True)], [("a", "/y", True)]], {"/y"}),
    ],
)
def test_files_that_one_rank_writes(plans, shared):
    ranks = range(len(plans))
    found = fit_config.check([plan(*files) for files in plans], ranks)
    assert found == {("CSVLogger", path) for path in shared}


@pytest.mark.parametrize(
    "plans",
    [
        [[("a", "/x", False)], [("a", "/x", False)]],
        [[("a", "/x", True)], [("a", "/x", False)]],
        [[("a", "/x", True), ("a", "/x", False)], [("a", "/x", True)]],
        [[], [("a", "/x", True)], [("a", "/x", True)]],
        [[("b", "/x", False)], [("a", "/x", True)], [("a", "/x", True)]],
    ],
)
def test_files_with_two_writers_are_refused(plans):
    ranks = [4, 5, 6][: len(plans)]
    named = f"CSVLogger on ranks {ranks[-2]}, {ranks[-1]} would write /x at the same time"
    with pytest.raises(ValueError, match=named):
        fit_config.check([plan(*files) for files in plans], ranks)


@pytest.mark.parametrize("library", [keras, tf_keras])
def test_every_callback_of_keras_is_known(library):
    """Regression: OrbaxCheckpoint was not, and the ranks damaged each other's checkpoints."""
    kinds = {name: kind for name, kind in vars(library.callbacks).items() if isinstance(kind, type)}
    for name, kind in kinds.items():
        bases = {base.__name__ for base in kind.__mro__}
        assert name in HARMLESS or bases & fit_config._KNOWN, name
    # The error for a user's class names the class to derive it from.
    assert kinds.keys() & fit_config._WRITING.keys() <= vars(callbacks.of(library)).keys()
