"""Horovod's environment variables: each has a documented meaning in tf_hvd."""

import gc
import logging
import os
import pathlib
import sys
import weakref

import pytest
from finished import finished

from tf_hvd.core import basics, horovod_variables, log

CONFIG = pathlib.Path(__file__).resolve().parents[3] / "docs" / "config.md"


def test_none_is_both_honoured_and_ignored():
    assert not horovod_variables.VARIABLES.keys() & horovod_variables.IGNORED


def test_honoured_variables_are_settings():
    settings = CONFIG.read_text().partition("## Python")[0]
    for name, variable in horovod_variables.VARIABLES.items():
        assert variable.meaning.startswith("Honoured") == (f"| `{name}` | " in settings), name


@pytest.mark.parametrize(
    ("name", "asks", "asks_not"),
    [
        ("AUTOTUNE", "1", "0"),
        ("MPI_THREADS_DISABLE", "1", "0"),
        ("THREAD_AFFINITY", "0,1", ""),
        ("CPU_OPERATIONS", "gloo", "mpi"),
        ("CPU_OPERATIONS", "CCL", "MPI"),
        ("CONTROLLER", "gloo", "mpi"),
    ],
)
def test_requests_for_unsupported_features_get_a_warning(name, asks, asks_not):
    name = f"HOROVOD_{name}"
    (text,) = horovod_variables.warnings({name: asks})
    assert text.startswith(f"{name}={asks} is not honoured: ")
    assert horovod_variables.warnings({name: asks_not}) == []


def test_ignored_and_build_variables_get_no_warning():
    silent = {"HOROVOD_CYCLE_TIME": "5", "HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_WITH_MPI": "1"}
    assert horovod_variables.warnings(silent) == []


def test_unknown_variables_get_one_warning_on_rank_0(caplog):
    caplog.set_level(logging.WARNING, "absl")
    values = {"HOROVOD_FUSION_TRESHOLD": "1", "HOROVOD_X": "2", "HOROVOD_CYCLE_TIME": "1"}
    basics._check_horovods(values, rank=1, size=2)
    assert caplog.messages == []
    for _ in range(2):
        basics._check_horovods(values, rank=0, size=2)
    (text,) = caplog.messages
    assert text.startswith("tf_hvd: HOROVOD_FUSION_TRESHOLD, HOROVOD_X: neither Horovod nor tf_hvd")


def test_warn_once_keeps_texts_not_objects(caplog):
    """A cache of calls kept each ProcessSet that a rank was outside of, indefinitely."""
    caplog.set_level(logging.WARNING, "absl")

    class Set:
        def __str__(self):
            return "a set, 100% full"

    one, other = Set(), Set()
    held = [weakref.ref(one), weakref.ref(other)]
    log.warn_once("warning about %s", one)
    log.warn_once("warning about %s", other)
    del one, other
    assert caplog.messages == ["tf_hvd: warning about a set, 100% full"]
    gc.collect()
    assert [each() for each in held] == [None, None]


def started(code, **environment):
    return finished([sys.executable, "-P", "-c", code], env={**os.environ, **environment})


def test_init_warns():
    code = "import tf_hvd; tf_hvd.init(); tf_hvd.init(); tf_hvd.shutdown(); tf_hvd.init()"
    ended = started(code, HOROVOD_AUTOTUNE="1", HOROVOD_NONSENSE="1")
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count("HOROVOD_AUTOTUNE=1 is not honoured") == 1
    assert ended.stderr.count("HOROVOD_NONSENSE: neither Horovod nor tf_hvd") == 1


def test_processes_of_horovods_own_launcher_do_not_train_alone():
    ended = started("import tf_hvd; tf_hvd.init()", HOROVOD_SIZE="2", HOROVOD_RANK="1")
    assert ended.returncode != 0
    closing = ended.stderr.strip().split("\n")[-1]
    assert "HorovodInitError: HOROVOD_SIZE=2" in closing
    assert "tf_hvd run -np 2" in closing
