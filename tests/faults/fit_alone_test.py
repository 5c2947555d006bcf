"""Only rank 0 fits an additional plain model: the error suggests `unguarded`."""

import re

import pytest

PROGRAM = """
import importlib
import numpy as np
import tf_hvd.keras

library = importlib.import_module(os.environ["LIBRARY"])
features, ones = np.ones([4, 3], "float32"), np.ones([4, 1], "float32")

def fit(optimizer):
    model = library.Sequential([library.Input([3]), library.layers.Dense(1)])
    hvd.broadcast_variables(model.variables, 0)
    model.compile(optimizer, "mse")
    model.fit(features + rank, ones, batch_size=4, verbose=0)

fit(tf_hvd.DistributedOptimizer(library.optimizers.SGD(0.1)))  # on all ranks
if rank == 0:
    plain = library.Sequential([library.Input([3]), library.layers.Dense(1)])
    plain.compile("sgd", "mse")
    with tf_hvd.unguarded():
        plain.fit(features, ones, verbose=0)
    say("fitted in unguarded()")
    error_of(lambda: plain.fit(features, ones, verbose=0))
else:
    time.sleep(6)  # until the warning, which comes after 2 s
"""
STALL = {"HOROVOD_STALL_CHECK_TIME_SECONDS": "2", "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "60"}


@pytest.mark.parametrize("library", ["keras", pytest.param("tf_keras", marks=pytest.mark.tier2)])
def test_fit_only_on_rank_0_after_fit_on_all_ranks(job, library):
    """The error was "'tf_hvd_fit.sz' ... combines calls that do not belong together"."""
    _, output = job(PROGRAM, LIBRARY=library, **STALL)
    assert "<0> fitted in unguarded()" in output
    warning = re.search(r"warn.*stall: '([^']*)' \(world\) waited", output, re.IGNORECASE)
    assert warning, output
    assert "tf_hvd.unguarded()" in warning[1], output
    (error,) = re.findall(r"<0> error: (.*)", output)
    assert re.search(r"rank 1 \(\S+\) left: its program has ended\. ", error), output
    assert "`with tf_hvd.unguarded():`" in error, output
    assert "belong together" not in output
    assert not re.search(r"'tf_hvd_\w+", output), output
