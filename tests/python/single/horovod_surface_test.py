"""Every documented name of Horovod 0.28.1 for TensorFlow and Keras, with its signature.

The names and signatures are facts of Horovod's source. tf_hvd's may have more
optional parameters at the end. `world` is the global process
set, `none` is Compression.none; the reduce ops are numbers.
"""

import json
import sys

import pytest
from finished import finished


def words(text):
    return text.split()


TOPOLOGY = dict.fromkeys(
    words(
        "size local_size cross_size rank local_rank cross_rank"
    ), "()"
)  # fmt: skip
BUILT = dict.fromkeys(
    words(
        "mpi_threads_supported mpi_enabled mpi_built gloo_enabled gloo_built nccl_built "
        "ddl_built ccl_built cuda_built rocm_built"
    ),
    "()",
)
TIMELINE = {"start_timeline": "(file_path, mark_cycles=False)", "stop_timeline": "()"}
LIFE = {
    "init": "(comm=None, process_sets=None)",
    "shutdown": "()",
    "is_initialized": "()",
    **TIMELINE,
    **TOPOLOGY,
    **BUILT,
}
OPS = {"Average": "0", "Sum": "1", "Adasum": "2", "Min": "3", "Max": "4", "Product": "5"}
SETS = {
    "ProcessSet": "(ranks_or_comm)",
    "ProcessSet.size": "(self)",
    "ProcessSet.rank": "(self)",
    "ProcessSet.included": "(self)",
    "ProcessSet.ranks": "",
    "ProcessSet.process_set_id": "None",
    "ProcessSet.mpi_comm": "None",
    "global_process_set": "world",
    "add_process_set": "(process_set)",
    "remove_process_set": "(process_set)",
}
SCALES = "prescale_factor=1.0, postscale_factor=1.0"
DEVICES = "device_dense='', device_sparse='', compression=none"
NAME = "name=None, ignore_name_scope=False, process_set=world"
OPTIONS = f"{DEVICES}, sparse_as_dense=False"
COLLECTIVES = {
    "allgather": f"(tensor, {NAME})",
    "grouped_allgather": f"(tensors, {NAME})",
    "broadcast": f"(tensor, root_rank, {NAME})",
    "broadcast_": "(variables, root_rank, name=None, process_set=world)",
    "alltoall": f"(tensor, splits=None, {NAME})",
    "join": "()",
    "is_homogeneous": "()",
    "rank_op": "(name=None)",
    "local_rank_op": "(name=None)",
    "local_size_op": "(name=None)",
    "size_op": "(process_set_id=0, name=None)",
    "process_set_included_op": "(process_set_id=0, name=None)",
    "handle_average_backwards_compatibility": "(op, average)",
    "check_num_rank_power_of_2": "(num_rank)",
}
OBJECTS = {
    "broadcast_variables": "(variables, root_rank, process_set=world, inplace=False)",
    "broadcast_object": "(obj, root_rank=0, session=None, name=None, process_set=world)",
    "broadcast_object_fn": "(root_rank=0, session=None, name=None, process_set=world)",
    "allgather_object": "(obj, session=None, name=None, process_set=world)",
}
MODES = {
    "_executing_eagerly": "()",
    "vars_to_refs": "(vars)",
    "refs_to_vars": "(refs)",
}
HELPER = "backward_passes_per_step, allreduce_func, sparse_as_dense, average_aggregated_gradients, "
LOCAL = "process_set=world, scale_local_gradients=True"
AGGREGATION = {
    "register_local_var": "(self, var)",
    "compute_gradients": "(self, grads, vars)",
    "apply_gradients": "(self, apply_grads_closure, optimizer, *args, **kwargs)",
}
HELPERS = {
    "LocalGradientAggregationHelper": f"({HELPER}rank, optimizer_type, {LOCAL}, name='')",
    **{f"LocalGradientAggregationHelper.{name}": text for name, text in AGGREGATION.items()},
}
BUILD = {
    "check_extension": "(ext_name, ext_env_var, pkg_path, *args)",
    "gpu_available": "(ext_base_name, verbose=False)",
    "split_list": "(l, n)",
}
COMPRESSION = {
    "Compression": "()",
    "Compression.none": "none",
    "Compression.fp16": "",
}
KERAS = {
    "is_homogeneous": "()",
    "allgather": "(value, name=None)",
    "broadcast": "(value, root_rank, name=None)",
    "reducescatter": "(value, name=None, op=0)",
    "broadcast_global_variables": "(root_rank)",
    "load_model": "(filepath, custom_optimizers=None, custom_objects=None, compression=none, "
    "legacy_opts=False)",
    "callbacks": "",
    "Average": "0",
    "Sum": "1",
    "Compression": "()",
    "global_process_set": "world",
}
CALLBACKS = {
    "BroadcastGlobalVariablesCallback": "(root_rank, device='', local_variables=None)",
    "MetricAverageCallback": "(device='')",
    "LearningRateScheduleCallback": "(initial_lr, multiplier, start_epoch=0, end_epoch=None, "
    "staircase=True, momentum_correction=True, steps_per_epoch=None)",
    "LearningRateWarmupCallback": "(initial_lr, warmup_epochs=5, momentum_correction=True, "
    "steps_per_epoch=None, verbose=0)",
}
PREDIVIDE = "gradient_predivide_factor=1.0"
GROUPS = "num_groups=0, groups=None"

TABLE = {
    "horovod": {"__version__": "'0.28.1'", "__file__": ""},
    "horovod.common": {"__file__": ""},
    "horovod.common.exceptions": {
        "HorovodInternalError": "",
        "HorovodVersionMismatchError": "",
        "HostsUpdatedInterrupt": "(skip_sync)",
    },
    "horovod.common.process_sets": {**SETS, "_temp_process_set_object": "(process_set_id)"},
    "horovod.common.util": {
        **BUILD,
        **dict.fromkeys(
            words("mpi_built gloo_built nccl_built ddl_built ccl_built"), "(verbose=False)"
        ),
        "EXTENSIONS": "['tensorflow', 'torch', 'mxnet']",
        "env": "(**kwargs)",
        "extension_available": "(ext_base_name, verbose=False)",
    },
    "horovod.tensorflow": {
        **LIFE,
        **OPS,
        **SETS,
        **COLLECTIVES,
        **OBJECTS,
        **MODES,
        **HELPERS,
        **COMPRESSION,
        **BUILD,
        "allreduce": "(tensor, average=None, device_dense='', device_sparse='', compression=none, "
        f"op=None, {SCALES}, name=None, process_set=world, ignore_name_scope=False)",
        "grouped_allreduce": "(tensors, average=None, device_dense='', device_sparse='', "
        f"compression=none, op=None, {SCALES}, process_set=world, ignore_name_scope=False, "
        "name=None)",
        "reducescatter": "(tensor, device_dense='', compression=none, op=0, name=None, "
        f"process_set=world, ignore_name_scope=False, {SCALES})",
        "grouped_reducescatter": "(tensors, device_dense='', compression=none, op=0, "
        f"process_set=world, {SCALES})",
        "broadcast_global_variables": "(root_rank)",
        "BroadcastGlobalVariablesHook": "(root_rank, device='')",
        "BroadcastGlobalVariablesHook.begin": "(self)",
        "BroadcastGlobalVariablesHook.after_create_session": "(self, session, coord)",
        "DistributedOptimizer": f"(optimizer, name=None, use_locking=False, {OPTIONS}, "
        f"backward_passes_per_step=1, op=0, {PREDIVIDE}, average_aggregated_gradients=False, "
        f"{GROUPS}, {LOCAL})",
        "DistributedGradientTape": f"(gradtape, {OPTIONS}, op=0, {PREDIVIDE}, {GROUPS}, {LOCAL})",
        "PartialDistributedGradientTape": f"(gradtape, {OPTIONS}, op=0, {PREDIVIDE}, {GROUPS}, "
        "process_set=world, local_layers=None, scale_local_gradients=True)",
        "SyncBatchNormalization": "",
        "_LegacyOptimizer": "",
        "_make_allreduce_grads_fn": "(name, device_dense, device_sparse, compression, "
        "sparse_as_dense, op, gradient_predivide_factor, groups, process_set)",
        "_DistributedOptimizer.compute_gradients": "(self, *args, **kwargs)",
        "_DistributedOptimizer.register_local_var": "(self, var)",
        "_DistributedOptimizer.get_slot": "(self, *args, **kwargs)",
        "_DistributedOptimizer.get_slot_names": "(self, *args, **kwargs)",
        "_DistributedOptimizer.variables": "(self, *args, **kwargs)",
        **dict.fromkeys(
            [
                "compression",
                "functions",
                "gradient_aggregation",
                "keras",
                "mpi_ops",
                "sync_batch_norm",
                "util",
            ],
            "",
        ),
    },
    "horovod.tensorflow.compression": {
        **COMPRESSION,
        **{
            f"{kind}{method}": text
            for kind in ("Compressor", "NoneCompressor", "FP16Compressor")
            for method, text in {
                "": "none" if kind == "NoneCompressor" else "()",
                ".compress": "(tensor)",
                ".decompress": "(tensor, ctx)",
            }.items()
        },
    },
    "horovod.tensorflow.functions": {
        **OBJECTS,
        "allgather": COLLECTIVES["allgather"],
        "broadcast": COLLECTIVES["broadcast"],
        "broadcast_": COLLECTIVES["broadcast_"],
    },
    "horovod.tensorflow.gradient_aggregation": {
        **HELPERS,
        "LocalGradientAggregationHelper._OPTIMIZER_TYPE_KERAS": "'optimizer_type_keras'",
        "LocalGradientAggregationHelper._OPTIMIZER_TYPE_LEGACY": "'optimizer_type_legacy'",
    },
    "horovod.tensorflow.mpi_ops": {
        **LIFE,
        **OPS,
        **SETS,
        **COLLECTIVES,
        "MPI_LIB": "",
        "_alltoall_grad": "(op, grad_wrt_output, grad_wrt_received_splits)",
        "gpu_available": BUILD["gpu_available"],
    },
    "horovod.tensorflow.sync_batch_norm": {"SyncBatchNormalization": ""},
    "horovod.tensorflow.util": MODES,
    "horovod.tensorflow.keras": {
        **LIFE,
        **KERAS,
        **SETS,
        "allreduce": f"(value, name=None, average=None, {SCALES}, op=None, compression=none)",
        "DistributedOptimizer": f"(optimizer, name=None, {OPTIONS}, {PREDIVIDE}, op=0, "
        f"backward_passes_per_step=1, average_aggregated_gradients=False, {GROUPS}, {LOCAL})",
    },
    "horovod.tensorflow.keras.callbacks": {
        **CALLBACKS,
        "BestModelCheckpoint": "(monitor='val_loss', verbose=0, save_weights_only=False, "
        "mode='auto', save_freq='epoch')",
    },
    "horovod.keras": {
        **LIFE,
        **KERAS,
        "Adasum": "2",
        "allreduce": f"(value, name=None, average=True, {SCALES}, op=None, compression=none)",
        "DistributedOptimizer": f"(optimizer, name=None, {OPTIONS}, {PREDIVIDE}, op=0, {GROUPS})",
        "PartialDistributedOptimizer": f"(optimizer, name=None, {OPTIONS}, {PREDIVIDE}, op=0, "
        "groups=None, process_set=world, local_layers=None, scale_local_gradients=True)",
    },
    "horovod.keras.callbacks": {
        **CALLBACKS,
        "BestModelCheckpoint": "(monitor='val_loss', verbose=0, mode='auto', save_freq='epoch')",
    },
}

TABLE["horovod.runner"] = {"run": "", "_HorovodArgs": "()", "_HorovodArgs.__init__": "(self)"}
TABLE["horovod.runner.launch"] = {"_run": "(args)", "run_commandline": "()"}
TABLE["horovod.runner.common.util.hosts"] = {
    "HostInfo": "(hostname, slots)",
    "HostInfo.from_string": "(host_string)",
    "SlotInfo": "(hostname, rank, local_rank, cross_rank, size, local_size, cross_size)",
    "SlotInfo.to_response_string": "(self)",
    "get_host_assignments": "(hosts, min_num_proc, max_num_proc=None)",
    "parse_hosts": "(hosts_string)",
}

TORCH, CLUSTER = "tf_hvd supports TensorFlow only", "cluster's MPI launcher"
# Modules that tf_hvd cannot provide, and the text of their errors.
ABSENT = {
    "horovod.tensorflow.data": "use tf_hvd.shard",
    "horovod.data": "use tf_hvd.shard",
    "horovod.torch": TORCH,
    "horovod.mxnet": TORCH,
    "horovod.ray": CLUSTER,
    "horovod.runner.http": CLUSTER,
    "horovod.spark": CLUSTER,
}

# Prints the signatures of the table's names: {module: {name: text}}, null for missing names.
ASK = """
import importlib, inspect, json, sys
import tf_hvd
tf_hvd.install_as_horovod()

def shown(value):
    if value is tf_hvd.global_process_set: return "world"
    if value is tf_hvd.Compression.none: return "none"
    if isinstance(value, tf_hvd.ReduceOp): return repr(int(value))
    return repr(value)

def written(value):
    if not callable(value) or value is tf_hvd.Compression.none:
        return shown(value)
    parts = []
    if inspect.isclass(value) and issubclass(value, Exception) and "__init__" not in vars(value):
        return parts
    for p in inspect.signature(value).parameters.values():
        stars = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        text = stars + p.name + ("" if p.default is p.empty else f"={shown(p.default)}")
        parts.append([text, bool(stars) or p.default is not p.empty])
    return parts

def found(module, name):
    value = importlib.import_module(module)
    for part in name.split("."):
        if not hasattr(value, part): return None
        value = getattr(value, part)
    return written(value)

table = json.loads(sys.stdin.read())
answer = {m: {n: found(m, n) for n in names} for m, names in table.items()}
sys.__stdout__.write("ANSWER" + json.dumps(answer))
"""


@pytest.fixture(scope="module")
def ours():
    """The names found in a process with Horovod's names, which are permanent there."""
    names = {module: list(entries) for module, entries in TABLE.items()}
    ended = finished([sys.executable, "-c", ASK], input=json.dumps(names))
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.partition("ANSWER")[2])


def fault(name, expected, found):
    """The fault of one name; None if it has none."""
    if found is None:
        return f"{name} is missing"
    if expected == "" or found == expected:
        return None
    if isinstance(found, str):
        return f"{name} is {found}, not {expected}"
    wanted = [part for part in expected[1:-1].split(", ") if part]
    texts = [text for text, _ in found]
    if texts[: len(wanted)] != wanted:
        return f"{name}({', '.join(texts)}), not {expected}"
    needed = [text for text, optional in found[len(wanted) :] if not optional]
    return f"{name} also needs {needed}" if needed else None


@pytest.mark.parametrize("module", list(TABLE))
def test_all_public_tf_and_keras_names_and_signatures_of_horovod(ours, module):
    faults = [fault(n, expected, ours[module][n]) for n, expected in TABLE[module].items()]
    assert [text for text in faults if text] == []


def test_the_table_finds_a_fault():
    assert fault("f", "(a, b=1)", None)
    assert fault("f", "(a, b=1)", [["a", False]])
    assert fault("f", "(a, b=1)", [["a", False], ["b=2", True]])
    assert fault("f", "(a)", [["a", False], ["b", False]])
    assert fault("x", "0", "1")
    assert fault("f", "(a)", [["a", False], ["b=1", True]]) is None


IMPORTS = """
import importlib, json, sys
import tf_hvd
tf_hvd.install_as_horovod()
texts = {}
for module in json.loads(sys.stdin.read()):
    try: importlib.import_module(module)
    except ModuleNotFoundError as error: texts[module] = [error.name, str(error)]
    parent, _, name = module.rpartition(".")
    try: getattr(importlib.import_module(parent), name)
    except AttributeError as error: texts[module].append(str(error))
sys.__stdout__.write("ANSWER" + json.dumps(texts))
"""


def test_absent_modules_raise_with_a_reason():
    ended = finished([sys.executable, "-c", IMPORTS], input=json.dumps(list(ABSENT)))
    assert ended.returncode == 0, ended.stderr
    texts = json.loads(ended.stdout.partition("ANSWER")[2])
    for module, cure in ABSENT.items():
        name, imported, attribute = texts[module]
        assert name == module
        assert cure in imported
        assert cure in attribute
