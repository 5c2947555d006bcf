"""Keras programs with a mistake end with the guard's error on all ranks."""

import re

import pytest

PROGRAM = """
import numpy as np
import tf_hvd.keras
import importlib

library = importlib.import_module(os.environ["LIBRARY"])
library.utils.set_random_seed(rank)  # each rank begins with different weights

def train(optimizer, broadcast=True, callbacks=()):
    model = library.Sequential([library.Input([3]), library.layers.Dense(1)])
    if broadcast:
        hvd.broadcast_variables(model.variables, 0)
    model.compile(optimizer, "mse")
    features = np.arange(12.0).reshape(4, 3) / 10 + rank
    model.fit(features, np.ones([4, 1]), batch_size=1, verbose=0, callbacks=list(callbacks))
    say("trained")

def sgd():
    return library.optimizers.SGD(0.1)

def wrapped():
    return tf_hvd.DistributedOptimizer(sgd())

def attempt(mistake, function):
    try:
        function()
    except tf_hvd.GuardError as error:
        assert str(error).count(chr(10)) <= 3, error
        say(f"{mistake}: GuardError: {error}".replace(chr(10), " "))
    else:
        say(f"{mistake}: no error")
    assert reduce("after") == hvd.size()  # the job continues
"""

STALL = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "2", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "60"}

MISTAKES = {
    "not wrapped": ("train(sgd())", "SGD would apply gradients that were not reduced"),
    "not broadcast": ("train(wrapped(), broadcast=False)", "The ranks' weights differ in 1 of 2"),
    "made again": (
        "train(library.optimizers.SGD.from_config(wrapped().get_config()))",
        "Wrap the optimizer: tf_hvd.DistributedOptimizer(SGD(...))",
    ),
    "branch": ("train(wrapped(), callbacks=[Change()])", "weights differ"),
}
CHANGE = """
class Change(library.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if rank == 1:
            self.model.layers[-1].bias.assign_add([0.5])

"""


def assert_is_told_once(output):
    """AutoGraph, Python and the closing paragraph all printed it."""
    told = output.partition("NotDistributedError: Wrap the optimizer: ")[2].splitlines()
    assert "Each of the 2 ranks would train its own model: " in told[2], output
    assert output.count("SGD would apply gradients that were not reduced") == 1, output
    assert " ".join(output.split()).count("NotDistributedError: Wrap the optimizer") == 2, (
        output
    )  # the paragraph has the fix


@pytest.mark.parametrize("library", ["keras", "tf_keras"])
def test_mistakes(job, library):
    """One after the other in one job, which continues after each of them."""
    attempts = "".join(f"attempt({name!r}, lambda: {m[0]})\n" for name, m in MISTAKES.items())
    code, output = job(PROGRAM + CHANGE + attempts, LIBRARY=library, **STALL)
    assert code == 0, output
    for name, (_, text) in MISTAKES.items():
        said = re.findall(rf"^<\d> {name}: GuardError: (.*)$", output, re.MULTILINE)
        assert len(said) == 2, output
        assert all(text in line for line in said), output
    assert "trained" not in output


def test_a_mistake_ends_the_program(job):
    code, output = job(PROGRAM + "train(sgd())", LIBRARY="keras", **STALL)
    assert code != 0
    assert_is_told_once(output)
    assert "trained" not in output


def test_keras_imported_after_tf_hvd(job):
    """The guard also works for modules imported in the middle of the program."""
    program = PROGRAM.replace("import tf_hvd.keras\n", "import tf_hvd.keras\nassert_late()\n", 1)
    early = """
def assert_late():
    assert os.environ["LIBRARY"] not in sys.modules, "imported too early for this test"
"""
    code, output = job(early + program + "train(sgd())", LIBRARY="tf_keras", **STALL)
    assert code != 0
    assert_is_told_once(output)
    assert "too early" not in output
