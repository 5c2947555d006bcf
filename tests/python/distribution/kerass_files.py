"""Keras' own tests, from its wheel, with the names of tf_hvd's backend in place of JAX's."""

import pathlib
import sys

import keras

HERE = pathlib.Path(__file__).resolve().parent
SOURCES = pathlib.Path(keras.__file__).parent / "src"
# Lines with the mark skip a test on TensorFlow, which now has what it needs.
ONLY_JAX = 'backend.backend() != "jax"'

# A conftest.py. The tests of JAX's arrays are left out. A mesh with several devices for one
# part of the batch is refused; any other outcome fails.
CONFTEST = """
import numpy as np
import pytest
import tf_hvd.keras
import keras

ONLY_ARRAYS = ("test_list_device", "test_distribute_variable")
REFUSED = tuple(f"test_e2e_data_model_parallel_model_{name}" for name in
                ("data_model", "model_data", "model_only"))


def equal_on_all_ranks(weight):
    everyone = tf_hvd.allgather_object(weight.numpy())
    return len(everyone) == 4 and all(np.array_equal(each, everyone[0]) for each in everyone)


def pytest_collection_modifyitems(config, items):
    left_out = [item for item in items if item.name in ONLY_ARRAYS]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
    refused = pytest.mark.xfail(raises=NotImplementedError, strict=True)
    for item in items:
        if item.name in REFUSED:
            item.add_marker(refused)
"""

# Of jax_multi_process_distribution_test.py: (text, its replacement).
OF_SEVERAL_PROCESSES = (
    ("import jax\n", "from conftest import equal_on_all_ranks\n"
                     "from keras.src.backend import distribution_lib as ranks\n"),
    ("from keras.src.backend.jax import distribution_lib as jax_distribution_lib\n", ""),
    ('backend() != "jax"', "False"),
    ("jax.process_count()", "ranks.num_processes()"),
    ("jax.process_index()", "ranks.process_id()"),
    ("jax.device_count()", "ranks.get_device_count()"),
    ("jax.local_device_count()", "1"),
    # JAX's four processes have two devices each.
    ("assertEqual(num_devices, 8)", "assertEqual(num_devices, 4)"),
    ("assertEqual(local_devices, 2)", "assertEqual(local_devices, 1)"),
    ("weight.value.sharding.is_fully_replicated", "equal_on_all_ranks(weight)"),
    ("model.evaluate(dataset)\n", "model.evaluate(dataset)\n"
     "            self.assertTrue(all(map(equal_on_all_ranks, model.weights)))\n"),
)  # fmt: skip


def replaced(path, replacements):
    text = (SOURCES / path).read_text()
    for old, new in replacements:
        assert old in text, f"{path} has no {old!r}"
        text = text.replace(old, new)
    return text


def write(folder):
    """Writes the files of tests and their conftest.py into a folder."""
    library = replaced("distribution/distribution_lib_test.py", [(ONLY_JAX, "False")])
    several = "backend/jax/jax_multi_process_distribution_test.py"
    adapters = "trainers/data_adapters/data_adapter_utils_test.py"
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "library_test.py").write_text(library)
    (folder / "several_test.py").write_text(replaced(several, OF_SEVERAL_PROCESSES))
    (folder / "adapters_test.py").write_text(replaced(adapters, []))
    (folder / "torch_test.py").write_text((HERE / "torch_groups.py").read_text())


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]))
