"""Horovod's module names, in separate processes because the alias is permanent."""

import sys

from finished import finished

ALIAS = "import tf_hvd; tf_hvd.install_as_horovod()\n"


def run(program):
    """Run a program and return its output; a failing program fails the test."""
    ended = finished([sys.executable, "-c", program])
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def test_horovods_names_are_tf_hvds():
    lines = run(
        f"{ALIAS}import horovod, horovod.tensorflow as hvd\n"
        "print(hvd.allreduce is tf_hvd.allreduce, hvd.Sum is tf_hvd.Sum, horovod.__version__)\n"
        "tf_hvd.install_as_horovod()  # again\n"
        "import horovod.tensorflow as again; print(again is hvd)\n"
        "from horovod.tensorflow import *; print(allgather is tf_hvd.allgather)"
    )
    assert lines == ["True", "True", "0.28.1", "True", "True"]


def test_init_with_a_set_of_all_ranks_starts_the_job_and_raises():
    lines = run(
        f"{ALIAS}import horovod.tensorflow as hvd\n"
        "sets = [hvd.ProcessSet([0])]\n"
        "try: hvd.init(process_sets=sets)\n"
        "except ValueError as error: print('entry', 'entry 0, ProcessSet' in str(error))\n"
        "print(hvd.size(), sets[0].process_set_id)"
    )
    assert lines == ["entry", "True", "1", "None"]


def test_modules_are_pickled_by_name():
    """Functions that use them too, in a process that has not installed Horovod's names."""
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


def test_a_missing_name_suggests_a_fix():
    program = f"{ALIAS}import horovod.tensorflow as hvd; hvd.nonsense"
    ended = finished([sys.executable, "-c", program])
    assert ended.returncode != 0
    assert "check the name against tf_hvd's API" in ended.stderr.strip().split("\n")[-1]


def test_the_real_horovod_must_not_be_imported_first(tmp_path):
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
