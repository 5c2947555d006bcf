"""Horovod's module names, in processes of their own: an alias stays for good."""

import subprocess
import sys

import pytest

ALIAS = "import tf_hvd; tf_hvd.install_as_horovod()\n"


def run(program):
    """What a program prints; it fails the test if the program fails."""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


IMPORTS = {
    "import horovod.tensorflow as hvd": "hvd.DistributedGradientTape",
    "from horovod import tensorflow as hvd": "hvd.allreduce",
    "import horovod.keras as hvd": "hvd.DistributedOptimizer",
    "import horovod.tensorflow.keras as hvd": "hvd.callbacks.MetricAverageCallback",
    "from horovod.keras import callbacks": "callbacks.BroadcastGlobalVariablesCallback",
    "from horovod.tensorflow.compression import Compression": "Compression.fp16",
    "from horovod.tensorflow.mpi_ops import rank, size": "rank",
    "from horovod.tensorflow.functions import broadcast_object": "broadcast_object",
    "from horovod.tensorflow.util import _executing_eagerly": "_executing_eagerly",
    "from horovod.common.exceptions import HorovodInternalError": "HorovodInternalError",
    "from horovod.common.process_sets import ProcessSet": "ProcessSet",
    "from horovod.common.util import split_list": "split_list",
    "from horovod.tensorflow import Average, Sum, Adasum": "Average",
    "from horovod.tensorflow import *": "allgather",
}


def test_what_scripts_import_is_there():
    steps = "".join(f"{line}\nassert {name} is not None\n" for line, name in IMPORTS.items())
    assert run(f"{ALIAS}{steps}print({len(IMPORTS)})") == [str(len(IMPORTS))]


def test_it_is_this_package():
    lines = run(
        f"{ALIAS}import horovod, horovod.tensorflow as hvd\n"
        "print(hvd.allreduce is tf_hvd.allreduce, hvd.Sum is tf_hvd.Sum, horovod.__version__)\n"
        "tf_hvd.install_as_horovod()  # again\n"
        "import horovod.tensorflow as again; print(again is hvd)"
    )
    assert lines == ["True", "True", "0.28.1", "True"]


def test_init_with_a_set_of_all_ranks_starts_the_job_and_says_that_it_is_a_duplicate():
    lines = run(
        f"{ALIAS}import horovod.tensorflow as hvd\n"
        "sets = [hvd.ProcessSet([0])]\n"
        "try: hvd.init(process_sets=sets)\n"
        "except ValueError as error: print('entry', 'entry 0, ProcessSet' in str(error))\n"
        "print(hvd.size(), sets[0].process_set_id)"
    )
    assert lines == ["entry", "True", "1", "None"]


def test_modules_are_pickled_by_name():
    """A function that uses them, too; in a process that has not asked for Horovod's names."""
    lines = run(
        f"{ALIAS}import copy, pickle, cloudpickle, subprocess, sys\n"
        "import horovod, horovod.tensorflow as hvd\n"
        "def name(): return hvd.allreduce.__name__, horovod.tensorflow.__name__\n"
        "assert pickle.loads(pickle.dumps(hvd)) is hvd is copy.deepcopy(hvd)\n"
        "there = 'import pickle, sys; print(*pickle.load(sys.stdin.buffer)())'\n"
        "sys.stdout.flush()\n"
        "subprocess.run([sys.executable, '-c', there], input=cloudpickle.dumps(name), check=True)"
    )
    assert lines == ["allreduce", "horovod.tensorflow"]


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        ("import horovod.torch", "it serves TensorFlow only"),
        ("import horovod.tensorflow.data", "use tf_hvd.shard"),
        ("from horovod.spark import run", "cluster's MPI launcher"),
        ("import horovod.tensorflow as hvd; hvd.nonsense", "docs/differences.md"),
    ],
)
def test_what_is_not_there_says_what_to_do(line, cure):
    ended = subprocess.run(
        [sys.executable, "-c", ALIAS + line], capture_output=True, text=True, timeout=600
    )
    assert ended.returncode != 0
    assert cure in ended.stderr.strip().split("\n")[-1]


def test_the_real_horovod_must_not_be_there_yet(tmp_path):
    (tmp_path / "horovod.py").write_text("")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import horovod, tf_hvd\n"
        "try: tf_hvd.install_as_horovod()\n"
        "except ImportError as error: print('install_as_horovod' in str(error))"
    )
    assert run(program) == ["True"]


def test_an_installed_horovod_is_not_used(tmp_path):
    (tmp_path / "horovod.py").write_text("raise RuntimeError('the real one')")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{ALIAS}import horovod; print(1)"
    assert run(program) == ["1"]
