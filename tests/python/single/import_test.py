"""Errors of `import tf_hvd` if the package and TensorFlow do not match.

One process imports copies of the installed package one after the other, each with one
fault, because TensorFlow loads slowly.
"""

import json
import shutil
import sys

import pytest
from finished import finished

from tf_hvd.core import _native, wheels

IMPORT_EACH = """
import json, sys
from tensorflow.python.framework import auto_control_deps

ours = auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS
inside = "tensorflow.python.ops.control_flow_v2_func_graphs"
__import__(inside)
kept = sys.modules[inside]
results = {}
for case, folder in json.loads(sys.argv[1]).items():
    sys.modules[inside] = None if case == "moved" else kept
    if case == "no set":
        del auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS
    sys.path.insert(0, folder)
    try:
        import tf_hvd
        results[case] = "imported " + tf_hvd.__version__
    except ImportError as error:
        results[case] = f"{type(error).__name__}: {error}"
    sys.path.pop(0)
    auto_control_deps.MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS = ours
    for name in [name for name in sys.modules if name.startswith("tf_hvd")]:
        del sys.modules[name]
print(json.dumps(results))
"""


def copy_package(folder, **changes):
    """A copy of the installed package; `changes` are lines of its _build_info."""
    package = folder / "tf_hvd"
    shutil.copytree(
        _native.DIRECTORY, package, ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    for library in _native.DIRECTORY.glob("*.so"):
        (package / library.name).symlink_to(library)
    with (package / "_build_info.py").open("a") as file:
        file.writelines(f"{name} = {value!r}\n" for name, value in changes.items())
    return package


@pytest.fixture(scope="module")
def outcome(tmp_path_factory):
    """The output of each case, by name."""
    root = tmp_path_factory.mktemp("copies")
    copy_package(root / "older", BUILDS={"2.20": {}})
    copy_package(root / "newer", BUILDS={"2.22": {}})
    copy_package(root / "moved", BUILDS={"2.22": {}})
    copy_package(root / "several", BUILDS={"2.18": {}, "2.19": {}, "2.20": {}})
    (copy_package(root / "source tree") / "_build_info.py").unlink()
    library = copy_package(root / "broken") / _native.build["library"]
    library.unlink()
    library.write_bytes(b"no library")
    copy_package(root / "no set")
    # Last, because it registers its ops.
    copy_package(root / "patch", VERSION="9.8.7")
    folders = {path.name: str(path) for path in sorted(root.iterdir(), key=lambda p: p.name)}
    folders["patch"] = folders.pop("patch")
    result = finished([sys.executable, "-P", "-c", IMPORT_EACH, json.dumps(folders)])
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize(
    ("case", "minor"), [("older", "2.20"), ("newer", "2.22"), ("moved", "2.22")]
)
def test_wheel_for_another_tensorflow(outcome, case, minor):
    """Also for a TensorFlow with moved internals, which used to raise an unrelated import error."""
    assert outcome[case].startswith("HorovodVersionMismatchError")
    assert f"was built for TensorFlow {minor} but TensorFlow" in outcome[case]
    assert f"pip install 'tensorflow=={minor}.*'" in outcome[case]
    assert f"'./dev wheel --tensorflow {_native.minor}'" in outcome[case]
    assert "\n" not in outcome[case]


def test_release_without_a_library_for_this_tensorflow(outcome):
    assert "was built for TensorFlow 2.18 to 2.20 but" in outcome["several"]
    assert "pip install 'tensorflow==2.20.*'" in outcome["several"]


def test_wheel_with_an_unsupported_tensorflow():
    text = wheels.cure(["2.18", "2.21"], "2.22.0-dev20261101")
    assert text == (
        "Install TensorFlow 2.21 (pip install 'tensorflow==2.21.*', or tensorflow-cpu), or build a "
        f"wheel for this one: './dev wheel --tensorflow {sys.executable}' in tf_hvd's source"
    )


def test_a_copy_of_another_version_is_fine(outcome):
    assert outcome["patch"] == "imported 9.8.7"


def test_source_tree(outcome):
    assert "source tree" in outcome["source tree"]
    assert "./dev build" in outcome["source tree"]


def test_library_that_cannot_be_loaded(outcome):
    assert outcome["broken"].startswith("ImportError: TensorFlow")
    assert _native.build["library"] in outcome["broken"]
    assert f"'./dev wheel --tensorflow {sys.executable}'" in outcome["broken"]


def test_tensorflow_without_its_set_of_ops_that_must_run(outcome):
    assert outcome["no set"].startswith("ImportError")
    assert "MUST_RUN_ORDER_INSENSITIVE_STATEFUL_OPS" in outcome["no set"]


def test_a_python_without_tensorflow(tmp_path):
    """Python's own error names a module that the program itself may not have imported."""
    (tmp_path / "tf_hvd").symlink_to(_native.DIRECTORY)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import tf_hvd"
    result = finished([sys.executable, "-P", "-S", "-c", code])
    last = result.stderr.splitlines()[-1]
    assert f"ModuleNotFoundError: {sys.executable} has tf_hvd but no TensorFlow: pip" in last
