"""The public names: their existence, and the signatures of tf_hvd's own."""

import importlib
import inspect
import os
import pathlib
import pickle
import pickletools
import re
import subprocess
import sys

import pytest
import tensorflow as tf
from finished import finished

import tf_hvd as hvd
from tf_hvd.collectives import reduce_ops
from tf_hvd.core import _native

# Names that Horovod lacks or has with another signature; horovod_surface_test.py has Horovod's.
SIGNATURES = {
    "cross_rank_op": "name=None",
    "cross_size_op": "name=None",
    "barrier": "process_set=world, name=None",
    "run": "func, args=(), kwargs=None, np=1, hosts=None, hostfile=None, executable=None, "
    "directory=None, options=()",
    "join": "process_set=world",
    "grouped_reducescatter": "tensors, device_dense='', compression=none, op=0, process_set=world, "
    "prescale_factor=1.0, postscale_factor=1.0, name=None, ignore_name_scope=False, "
    "member_names=None",
}


def written(function):
    """A signature without annotations, as the table above writes it."""
    names = {id(hvd.global_process_set): "world", id(hvd.Compression.none): "none"}
    parts = []
    for parameter in inspect.signature(function).parameters.values():
        default = parameter.default
        default = int(default) if isinstance(default, hvd.ReduceOp) else default
        shown = "" if default is inspect.Parameter.empty else f"={names.get(id(default))}"
        if shown == "=None":
            shown = f"={default!r}"
        parts.append(parameter.name + shown)
    return ", ".join(parts)


@pytest.mark.parametrize("name", list(SIGNATURES))
def test_signature(name):
    assert written(getattr(hvd, name)) == SIGNATURES[name]


def test_every_public_name_exists():
    assert [name for name in hvd.__all__ if not hasattr(hvd, name)] == []
    assert sorted(hvd.__all__) == hvd.__all__
    assert hvd.__version__ == _native.build_info.VERSION


def test_both_packages_have_the_same_names():
    assert hvd.keras.__all__ == hvd.__all__
    assert set(hvd.__all__) <= set(dir(hvd)) & set(dir(hvd.keras))
    assert hvd.keras.__version__ == hvd.__version__
    assert importlib.import_module("tf_hvd.callbacks") is hvd.callbacks
    assert {"os", "sys", "typing", "launch"}.isdisjoint(dir(hvd))
    unlike = [name for name in hvd.__all__ if getattr(hvd.keras, name) is not getattr(hvd, name)]
    assert unlike == ["allreduce"]


def test_the_reference_has_these_names_and_no_others():
    page = (pathlib.Path(__file__).parents[3] / "docs" / "api.md").read_text()
    names = re.findall(r"^::: tf_hvd\.(.+)$", page, re.MULTILINE)
    assert len(names) == len(set(names))
    shown = {name for name in names if "." not in name}
    assert shown == set(hvd.__all__) - {"callbacks", "elastic"}
    own = {name.removeprefix("elastic.") for name in names if name.startswith("elastic.")}
    assert own | shown >= set(hvd.elastic.__all__)
    made = {name.rpartition(".")[2] for name in names if name.startswith("keras.callbacks.")}
    assert made == set(dir(hvd.callbacks))


def test_an_ambiguous_second_argument_is_refused():
    for second in ("name", True):
        with pytest.raises(TypeError, match=r"name=, average= or op= by keyword"):
            hvd.keras.allreduce(tf.zeros([1]), second)


# Horovod's functions, which keep the order of their arguments.
HOROVODS = """
allgather allgather_object allreduce alltoall broadcast broadcast_ broadcast_object
broadcast_object_fn broadcast_variables grouped_allgather grouped_allreduce init
reducescatter grouped_reducescatter rank_op size_op local_rank_op local_size_op
process_set_included_op start_timeline load_model BroadcastGlobalVariablesHook
DistributedOptimizer DistributedGradientTape PartialDistributedGradientTape
"""
# Required arguments rather than options.
OPERANDS = {
    "steps_per_epoch": ["batch_size"], "PowerSGD": ["rank"], "on_preemption": ["save"],
    "broadcast_adapted": ["root_rank"], "run": ["args", "kwargs", "np"], "strip_ops": ["output"],
    "cross_rank_op": ["name"], "cross_size_op": ["name"], "SyncBatchNormalization": ["fused"],
    "evaluate": ["y"],
    }  # fmt: skip


def test_arguments_of_tf_hvd_only_are_keyword_only():
    """Horovod's arguments keep their order: horovod_surface_test.py."""
    faults = []
    for name in hvd.__all__:
        value = getattr(hvd, name)
        is_error = isinstance(value, type) and issubclass(value, Exception)
        skipped = is_error or name == "ReduceOp" or not callable(value)
        if name in HOROVODS.split() or skipped:
            continue
        for parameter in inspect.signature(value).parameters.values():
            positional = parameter.kind is parameter.POSITIONAL_OR_KEYWORD
            given = parameter.default is parameter.empty or parameter.name in OPERANDS.get(name, [])
            if positional and not given:
                faults.append(f"{name}({parameter.name}=...)")
    assert faults == []


def test_a_reduce_op_is_a_number_with_a_name():
    assert [getattr(hvd, op.name) for op in hvd.ReduceOp] == list(range(6))
    assert hvd.Sum is hvd.ReduceOp.Sum
    assert hvd.ReduceOp.Max == 4
    assert pickle.loads(pickle.dumps(hvd.Min)) is hvd.Min


def test_errors_keep_their_earlier_base_types():
    assert issubclass(hvd.NotInitializedError, ValueError)
    assert issubclass(hvd.ProcessSetError, ValueError)
    assert issubclass(hvd.JobError, hvd.HorovodInternalError)
    assert issubclass(hvd.NotDistributedError, hvd.GuardError)
    assert issubclass(hvd.RanksDifferError, hvd.GuardError)
    hvd.init()
    with pytest.raises(hvd.ProcessSetError, match="add_process_set"):
        hvd.allreduce(tf.zeros([1]), process_set=hvd.ProcessSet([0]))


def test_names_that_keras_lacks():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = hvd.keras.no_such_name


def test_constants_are_horovods_and_those_of_the_native_table():
    constants = [hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product]
    assert constants == list(range(6))
    names = [_native.library.tf_hvd_reduce_op_name(value).decode() for value in constants]
    assert names == ["Average", "Sum", "Adasum", "Min", "Max", "Product"]
    assert _native.library.tf_hvd_reduce_op_name(6) is None
    for value, name in reduce_ops.NAMES.items():
        assert names[value] == name


def test_dtype_names_of_the_native_table_are_tensorflows():
    names = []
    while name := _native.library.tf_hvd_dtype_name(len(names)):
        names.append(name.decode())
    assert names[:10] == [
        "uint8", "int8", "uint16", "int16", "int32", "int64",
        "float16", "float32", "float64", "bool",
    ]  # fmt: skip
    assert "bfloat16" in names
    for name in names:
        assert tf.as_dtype(name).name == name


def test_cuda_is_built_where_tensorflow_is_built_with_it(monkeypatch):
    for with_cuda in (True, False):
        monkeypatch.setattr(tf.test, "is_built_with_cuda", lambda answer=with_cuda: answer)
        assert hvd.cuda_built() is with_cuda


def test_built_functions():
    assert (hvd.mpi_built(), hvd.nccl_built()) == (True, 0)


def test_missing_names_say_where_to_find_them():
    """Functions about Gloo and similar, and helpers that only old scripts need."""
    for name in ("gloo_built", "gloo_enabled", "ddl_built", "ccl_built", "rocm_built"):
        with pytest.raises(AttributeError, match=rf"horovod.tensorflow.{name}, which .* False"):
            getattr(hvd, name)
    with pytest.raises(AttributeError, match=r"tf_hvd.keras.* horovod.tensorflow.gloo_built"):
        hvd.keras.gloo_built  # noqa: B018
    with pytest.raises(AttributeError, match=r"install_as_horovod\(\) .* horovod.*split_list"):
        hvd.split_list  # noqa: B018


def test_one_process_needs_no_mpi():
    hvd.init()
    hvd.init()
    assert (hvd.rank(), hvd.size(), hvd.local_rank(), hvd.local_size()) == (0, 1, 0, 1)
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)
    assert not hvd.mpi_enabled()
    with pytest.raises(ValueError, match="without MPI"):
        hvd.mpi_threads_supported()


def test_the_set_of_all_ranks():
    hvd.init()
    world = hvd.global_process_set
    assert (world.size(), world.rank(), world.included(), world.ranks) == (1, 0, True, [0])
    assert str(world) == "ProcessSet(process_set_id=0, ranks=[0], mpi_comm=None)"
    with pytest.raises(ValueError, match="is not a process set"):
        hvd.allreduce(tf.zeros([1]), process_set=[0])
    with pytest.raises(ValueError, match="add_process_set"):
        hvd.allreduce(tf.zeros([1]), process_set=hvd.ProcessSet([0]))


def test_unknown_names():
    with pytest.raises(AttributeError, match=r"module 'tf_hvd' has no attribute 'nonsense'$"):
        hvd.nonsense  # noqa: B018


def run(code):
    """Run a separate program, outside this process's runtime."""
    return finished([sys.executable, "-P", "-c", code], env=os.environ)


BEFORE_INIT = """
import keras, tensorflow as tf, tf_hvd as hvd, tf_hvd.keras

def raised(function, *kinds):
    try:
        function()
    except kinds as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"{function} raised nothing")

def check():
    x = tf.ones([2])
    failed = tf.errors.FailedPreconditionError
    for name in "rank local_rank cross_rank size local_size cross_size is_homogeneous".split():
        raised(getattr(hvd, name), hvd.NotInitializedError)
    raised(hvd.mpi_threads_supported, hvd.NotInitializedError)
    raised(lambda: hvd.broadcast_object(1), ValueError)
    raised(lambda: hvd.allgather_object(1), failed)
    raised(lambda: hvd.allreduce(x), failed)
    raised(lambda: hvd.grouped_allreduce([x, x]), failed)
    raised(lambda: hvd.grouped_allgather([x, x]), failed)
    raised(lambda: hvd.alltoall(x), failed)
    raised(lambda: hvd.reducescatter(x), failed)
    raised(lambda: hvd.grouped_reducescatter([x, x]), failed)
    raised(hvd.barrier, failed)
    raised(hvd.join, failed)
    raised(lambda: hvd.broadcast_([tf.Variable(1.0)], 0), failed)
    raised(lambda: hvd.allgather(x), failed)
    raised(lambda: hvd.broadcast(x, 0), failed)
    raised(tf.function(lambda: hvd.allreduce(x)), failed)
    raised(lambda: hvd.broadcast_variables([tf.Variable(x)], 0), failed)
    for name in "rank_op size_op local_rank_op local_size_op".split():
        raised(getattr(hvd, name), failed)
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1)])
    model.compile(hvd.keras.DistributedOptimizer(keras.optimizers.SGD(0.1)), "mse")
    raised(lambda: model.fit(tf.ones([2, 1]), tf.ones([2, 1]), verbose=0), ValueError)
    assert hvd.global_process_set.size() is None
    assert not hvd.is_initialized()

text = "has not been initialized; call hvd.init() first"
check()
hvd.shutdown()  # nothing to end
check()
hvd.init()
assert hvd.is_initialized()
assert hvd.allreduce(tf.ones([1])).numpy() == 1
hvd.shutdown()
text = "has been shut down; call hvd.shutdown() last"
check()
hvd.init()
assert hvd.allreduce(tf.ones([1])).numpy() == 1
print("all well")
"""


def test_before_init_and_after_shutdown():
    result = run(BEFORE_INIT)
    assert (result.returncode, result.stdout) == (0, "all well\n"), result.stderr


SETTINGS = """
import os, tf_hvd
for name, value in [
    ("HOROVOD_FUSION_THRESHOLD", "much"),
    ("HOROVOD_STALL_CHECK_TIME_SECONDS", "-1"),
    ("HOROVOD_LOG_LEVEL", "loud"),
]:
    os.environ[name] = value
    try:
        tf_hvd.init()
    except tf_hvd.HorovodInitError as error:
        assert isinstance(error, ValueError) and isinstance(error, RuntimeError)
        assert f"{name}={value}" in str(error) and "expected" in str(error), error
    else:
        raise AssertionError(f"{name}={value} was taken")
    del os.environ[name]
tf_hvd.init()
print("all well")
"""


def test_invalid_settings():
    result = run(SETTINGS)
    assert (result.returncode, result.stdout) == (0, "all well\n"), result.stderr


def test_elastic_names_exist():
    assert hvd.elastic.run is importlib.import_module("tf_hvd.elastic").run
    assert hvd.elastic.on_preemption is hvd.on_preemption


COMMANDS = """
import sys, tf_hvd_command
sys.argv[1:] = {words}
try:
    tf_hvd_command.{command}()
except SystemExit as end:
    print(end.code)
print([name for name in sys.modules if name.startswith("tensorflow")])
"""


@pytest.mark.parametrize(
    ("command", "words"),
    [("main", ["--version"]), ("main", ["run", "--help"]), ("horovodrun", ["--help"])],
)
def test_commands_do_not_load_tensorflow(command, words):
    ended = run(COMMANDS.format(command=command, words=words))
    assert ended.stdout.endswith("0\n[]\n"), ended.stderr


def test_the_package_is_the_command_too():
    for words in (["-m", "tf_hvd"], ["-m", "tf_hvd_command"]):
        command = [sys.executable, "-P", *words, "--version"]
        said = subprocess.check_output(command, text=True, timeout=600)
        assert said.startswith(f"tf_hvd {hvd.__version__}, built for TensorFlow ")


def test_a_program_called_as_the_command_gets_the_package(tmp_path):
    (tmp_path / "tf_hvd").write_text("import tf_hvd; tf_hvd.init(); print(tf_hvd.size())")
    program = [sys.executable, "-P", tmp_path / "tf_hvd"]
    assert subprocess.check_output(program, text=True, timeout=600) == "1\n"


# A layer is saved like Keras' own.
CLASSES = [
    name
    for name in hvd.__all__
    if isinstance(getattr(hvd, name), type) and name != "SyncBatchNormalization"
]


@pytest.mark.parametrize("name", CLASSES)
def test_pickles_of_public_classes_name_no_module_that_may_move(name):
    module = pickletools.genops(pickle.dumps(getattr(hvd, name), protocol=0))
    named = next(argument for opcode, argument, _ in module if opcode.name == "GLOBAL")
    assert named == f"tf_hvd {name}"
