"""Design rules that a compiler does not check.

Each rule is a function from a file's path and text to a list of faults. So it is tested twice: it
finds nothing in the checkout, and it finds the faults that it exists for.
"""

import ast
import functools
import graphlib
import pathlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator

import plain_english
import pytest

# It puts the program's folder on the path, which in a lane (conftest.py) is the checkout.
PATH = list(sys.path)
import lizard  # noqa: E402

sys.path[:] = PATH

ROOT = pathlib.Path(__file__).resolve().parent.parent
CPP = (".h", ".cc", ".cu.cc")

# The floors of C++, lowest first: a folder may include folders on lower floors. The visibility in
# the folders' BUILD files is narrower still.
FLOORS = (
    "base",
    "compute",
    "runtime/request",
    "runtime/events",
    "runtime/contract",
    "runtime/transport/segment",
    "runtime/agreement",
    "runtime/transport/mpi_library",
    "runtime/transport/liveness",
    "runtime/transport/p2p",
    "runtime/transport/gpu",
    "runtime/transport/shm",
    "runtime/execution",
    "runtime/transport/routing",
    "runtime/transport/loopback",
    "runtime/transport/mpi",
    "runtime/api",
    "kernels",
    "kernels/xla",
)  # fmt: skip
# Ops are separate from all of them: they have only signatures.
OPS = "ops"
# Folders' permitted includes of other projects.
OTHERS = {
    "kernels": (
        "tensorflow/", "tsl/profiler/", "xla/stream_executor/stream.h", "absl/", "Eigen/",
        "unsupported/Eigen/",
    ),
    "kernels/xla": ("tensorflow/", "xla/", "absl/"),
    OPS: ("tensorflow/", "absl/"),
}  # fmt: skip
# Headers of other libraries, and the only folders that may include them.
INCLUDED_ONLY_BY = {
    "mpi.h": "runtime/transport/mpi_library/shim",
    # The library is built without CUDA: its tables of functions are compared with these.
    "nccl.h": "tests/gpu/nccl_api_test",
    "cuda.h": "tests/gpu/cuda_api_test",
    "cuda_runtime.h": "tests/gpu/",
}

CPP_GETENV = ("base/config.cc",)
PYTHON_ENVIRON = (
    "tf_hvd/core/config.py", "tf_hvd/launch/", "tf_hvd/horovod/horovodrun.py",
)  # fmt: skip
# The C API's only caller, the launcher's calls to the kernel, and libraries that `bench` measures.
CTYPES = ("tf_hvd/core/_native.py", "tf_hvd/launch/job/signals.py", "tf_hvd/bench/native.py")
CTYPES += ("tf_hvd/launch/machine/keeper.py", "tf_hvd/observe/recording.py")
# Files that BUILD selects, or that exist to hide a difference.
CONDITIONAL = (
    "runtime/transport/mpi_library/shim", "kernels/tf_compat.h", "compute/portable.h",
)  # fmt: skip

MACHINE_PATHS = re.compile(
    r"(?<![\w./}$-])/(?:" + "|".join(["work", "root", "home", "tmp"]) + r")/"
)
IMAGE_PATHS = re.compile(r"/(home/(mpiuser|\$\{user\})|tmp/(tf_hvd|sum\.py))")
NO_PATHS = re.compile(r"(?!)")

MAX_FILE, MAX_TEST_FILE, MAX_FUNCTION, MAX_COMPLEXITY = 600, 600, 60, 15


checkout = functools.cache(plain_english.checkout_files)


def files(suffixes: tuple[str, ...], *folders: str) -> Iterator[tuple[str, str]]:
    """Path and text of the files below these folders; fails if there are none."""
    chosen = [name for name in checkout() if name.endswith(suffixes) and name.startswith(folders)]
    assert chosen, f"no {suffixes} below {folders}: the rule would check nothing"
    for name in chosen:
        yield name, (ROOT / name).read_text()


def include_faults(path: str, text: str) -> list[str]:
    """Includes of higher floors, or of projects that the folder may not use."""
    folder = path.rpartition("/")[0]
    if folder not in (*FLOORS, OPS):
        return [f"{path} is in a folder without a floor"]
    lower = FLOORS[: FLOORS.index(folder)] if folder in FLOORS else ()
    faults = []
    for bracket, name in re.findall(r'^\s*#\s*include\s*(["<])([^">]+)[">]', text, re.MULTILINE):
        owner = INCLUDED_ONLY_BY.get(name)
        other = bracket == '"' or (
            "/" in name and not name.startswith(("sys/", "linux/", "net/", "netinet/", "arpa/"))
        )
        known = name.rpartition("/")[0] in (folder, *lower)
        known = known or name.startswith(OTHERS.get(folder, ()))
        if owner is not None and not path.startswith(owner):
            faults.append(f"{path} includes {name}, which only {owner}* may include")
        elif owner is None and other and not known:
            faults.append(f"{path} includes {name}, which {folder} may not include")
        elif name == "Python.h":
            faults.append(f"{path} includes {name}: no CPython ABI is used")
    return faults


def getenv_faults(path: str, text: str) -> list[str]:
    """Environment variables read outside of the file that documents them."""
    found = re.search(r"\b(?:secure_)?getenv\s*\(|(?<!os\.)\benviron\b", text)
    return [f"{path} reads the environment"] if found and path not in CPP_GETENV else []


def mutex_faults(path: str, text: str) -> list[str]:
    """Locks that the thread safety analysis of `./dev lint` cannot check."""
    found = re.search(r"\bstd::(?:\w*mutex|lock_guard|unique_lock|scoped_lock)\b", text)
    return [f"{path} has {found[0]}"] if found and path != "base/mutex.h" else []


def environ_faults(path: str, text: str) -> list[str]:
    """The same rule for Python."""
    names = {"environ", "environb", "getenv", "putenv"}
    found = any(
        (
            isinstance(node, ast.Attribute)
            and node.attr in names
            and isinstance(node.value, ast.Name)
            and node.value.id == "os"
        )
        or (
            isinstance(node, ast.ImportFrom)
            and node.module == "os"
            and any(alias.name in names for alias in node.names)
        )
        for node in ast.walk(ast.parse(text))
    )
    return (
        [f"{path} reads the environment"] if found and not path.startswith(PYTHON_ENVIRON) else []
    )


def conditional_faults(path: str, text: str) -> list[str]:
    """#if on CUDA, NCCL, MPI or TensorFlow's version in files that BUILD does not select."""
    if path.startswith(CONDITIONAL):
        return []
    return [
        f"{path}: {line.strip()}"
        for line in text.splitlines()
        if re.match(r"\s*#\s*(?:if|ifdef|ifndef|elif)\b", line)
        and re.search(r"CUDA|NCCL|MPI(?!LER)|TF_M[AI]JOR|TF_M[AI]NOR|TF_VERSION|TF_GRAPH_DEF", line)
        and not re.match(r"#ifndef TF_HVD_\w+_H_$", line)
    ]


# The packages of tf_hvd that each package may import.
PYTHON_ARROWS = {
    "core": (),
    "collectives": ("core",),
    "strip": ("core", "collectives"),
    "observe": ("core",),
    "training": ("core", "collectives"),
    "keras": ("core", "collectives", "training"),
    "bench": ("core", "collectives", "training", "keras", "observe"),
    "elastic": ("core", "collectives", "training", "keras"),
    "launch": ("core", "bench", "strip", "observe"),
    "horovod": ("core", "collectives", "training", "keras", "elastic", "launch"),
}
# The same for the folders of tf_hvd/launch.
LAUNCH_ARROWS = {
    "machine": (),
    "job": ("machine",),
    "elastic": ("machine", "job"),
    "commands": ("machine", "job", "elastic"),
}


def python_import_faults(path: str, text: str) -> list[str]:
    """Imports of ctypes outside of one file, and of packages on higher floors."""
    faults = []
    _, _, inside = path.partition("tf_hvd/")
    for name in (*imported(text), *imported_by_text(text)):
        for above, arrows in (("", PYTHON_ARROWS), ("launch.", LAUNCH_ARROWS)):
            package = folder_in(inside.replace("/", "."), above)
            other = folder_in(name.removeprefix("tf_hvd."), above)
            allowed = other in (package, *arrows.get(package, ()))
            if package in arrows and other in arrows and not allowed:
                faults.append(f"{path} imports {name}: {package} may not import {other}")
        if name.startswith("ctypes") and path not in CTYPES:
            faults.append(f"{path} imports {name}: only {CTYPES[0]} may use the C API")
    faults += [f"{path} imports {name}" for name in imported(text) if name.startswith("horovod")]
    return faults


def folder_in(module: str, above: str) -> str:
    """The folder of `above` that contains a module; empty if none does."""
    return module.removeprefix(above).partition(".")[0] if module.startswith(above) else ""


def imported(text: str) -> Iterator[str]:
    """Full names of the modules that a Python text imports, without relative imports."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def imported_by_text(text: str) -> Iterator[str]:
    """The modules named in calls of `import_module`."""
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    named = (node.args[0] for node in calls if ast.unparse(node.func).endswith("import_module"))
    yield from (name.value for name in named if isinstance(name, ast.Constant))


def import_circle(texts: dict[str, str]) -> list[str]:
    """Modules that import each other in a circle; empty if there is none.

    Imports inside functions and calls of `import_module` count. Those of a module's own packages
    do not: Python makes them.
    """
    names = {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): text
        for path, text in texts.items()
    }
    arrows = {
        name: {
            to
            for to in (*imported(text), *imported_by_text(text))
            if to in names and not f"{name}.".startswith(f"{to}.")
        }
        for name, text in names.items()
    }
    try:
        graphlib.TopologicalSorter(arrows).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


# The only files that may use internals of Keras and TensorFlow.
INSIDE = (
    "tf_hvd/keras/compat.py",
    "tf_hvd/keras/distribution/private.py",
    "tf_hvd/core/tensorflow_hooks.py",
)
PRIVATE_MODULES = ("tensorflow.python", "tensorflow.compiler", "keras.src", "tf_keras.src")
# In order: Python's, a folder, an attribute and an op in graphs, Horovod's, ours from another
# file.
NOT_PRIVATE = {
    "_getframe", "_exit", "_run_module_as_main",
    "_as_horovod", "_as_keras", "_class", "_Arg", "_allreduce", "_allreduce_grads",
    "_alltoall_grad", "_LegacyOptimizer",
    "_make_allreduce_grads_fn", "_name", "_DistributedAdasumOptimizer", "_DistributedOptimizer",
    "_hvd_reducer", "_node_name", "_numbers", "_ranks", "_register",
}  # fmt: skip


def private_faults(path: str, text: str) -> list[str]:
    """Private names that we do not define, and modules that are not public.

    Checked as attributes of any object, and as strings for getattr and similar functions.
    """
    if path in INSIDE:
        return []
    tree = ast.parse(text)
    private = re.compile(r"_(?!tf_hvd)[A-Za-z]\w*")
    own = defined(tree) | NOT_PRIVATE
    # Pieces of f-strings are not names.
    pieces = {v for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for v in n.values}
    faults = [
        f"{path} imports {name}, which only {INSIDE} may import"
        for name in imported(text)
        if name.startswith(PRIVATE_MODULES)
    ]
    for node in set(ast.walk(tree)) - pieces:
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "value", "")
        if isinstance(name, str) and private.fullmatch(name) and name not in own:
            faults.append(f"{path}:{node.lineno} uses {name}, which only {INSIDE} may use")
    return faults


def defined(tree: ast.AST) -> set[str]:
    """The names of functions, classes and attributes that a file defines."""
    names = {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    attributes = (n for n in ast.walk(tree) if isinstance(n, ast.Attribute))
    return names | {node.attr for node in attributes if is_self(node.value)}


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def length_faults(path: str, text: str) -> list[str]:
    """Files that are too long to keep in mind."""
    count, limit = text.count("\n"), MAX_TEST_FILE if path.startswith("tests/") else MAX_FILE
    return [f"{path} has {count} lines; at most {limit} are allowed"] if count > limit else []


def function_faults(path: str, text: str) -> list[str]:
    """Functions that are too long or have too many branches."""
    return [
        f"{path}:{function.start_line} {function.name}: {function.nloc} lines,"
        f" complexity {function.cyclomatic_complexity}"
        for function in lizard.analyze_file.analyze_source_code(path, text).function_list
        if function.nloc > MAX_FUNCTION or function.cyclomatic_complexity > MAX_COMPLEXITY
    ]


def path_faults(path: str, text: str) -> list[str]:
    """Paths of a particular machine; paths inside images are allowed."""
    own = IMAGE_PATHS if path.startswith(("containers/", "tests/containers/")) else NO_PATHS
    return [
        f"{path}:{number}: {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if MACHINE_PATHS.search(own.sub("", line))
    ]


def public_methods(node: ast.FunctionDef | ast.ClassDef) -> list[ast.FunctionDef]:
    """Public methods of a class, except those that another library's base class documents."""
    if any(isinstance(base, ast.Attribute) for base in getattr(node, "bases", ())):
        return []
    methods = [each for each in node.body if isinstance(each, ast.FunctionDef)]
    return [each for each in methods if isinstance(node, ast.ClassDef) and each.name[0] != "_"]


def shown_as(module: ast.Module, name: str) -> ast.ClassDef | None:
    """The first base of a class that only type checkers see; it has the class's documentation."""
    classes = {node.name: node for node in ast.walk(module) if isinstance(node, ast.ClassDef)}
    shown = classes.get(name)
    if shown is None or shown in module.body or not isinstance(shown.bases[0], ast.Name):
        return None
    return classes[shown.bases[0].id]


def undocumented(module: ast.Module, name: str) -> bool | None:
    """Whether the module defines the name without a docstring; None if it does not define it."""
    body = module.body
    if name == "__doc__":
        return ast.get_docstring(module) is None
    behaviour = shown_as(module, name)
    if behaviour is not None:
        return ast.get_docstring(behaviour) is None
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == name:
            parts = [node, *public_methods(node)]
            return any(ast.get_docstring(part) is None for part in parts)
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                text = after.value if isinstance(after, ast.Expr) else None
                return not (isinstance(text, ast.Constant) and isinstance(text.value, str))
    return None


def origin(name: str, module_path: pathlib.Path) -> tuple[pathlib.Path, str]:
    """Follows `from tf_hvd.x import y as name` to the file that defines it."""
    tree = ast.parse(module_path.read_text())
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.module:
            continue
        for alias in node.names:
            if (alias.asname or alias.name) == name and node.module.startswith("tf_hvd"):
                base = ROOT / node.module.replace(".", "/")
                if (base / f"{alias.name}.py").exists():
                    return base / f"{alias.name}.py", "__doc__"
                file = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
                return (file, "") if not file.exists() else origin(alias.name, file)
    return module_path, name


def public_names(package: str = "tf_hvd") -> list[str]:
    """Public names of the package: names imported `as` themselves, or listed."""
    body = ast.parse((ROOT / package / "__init__.py").read_text()).body
    names = (alias for node in body if isinstance(node, ast.ImportFrom) for alias in node.names)
    listed = (node.value for node in body if isinstance(node, ast.Assign))
    lists = [ast.literal_eval(value) for value in listed if isinstance(value, ast.List)]
    return [a.name for a in names if a.asname == a.name] + [n for each in lists for n in each]


def all_faults(rule, suffixes: tuple[str, ...], *folders: str) -> list[str]:
    return [fault for path, text in files(suffixes, *folders) for fault in rule(path, text)]


OURS = ("base/", "compute/", "runtime/", "kernels/", "ops/")
CODE = (*OURS, "tf_hvd", "tests/", "examples/", "benchmarks/", "pip_package/", "third_party/")


@pytest.mark.parametrize(
    ("rule", "suffixes", "folders"),
    [
        (include_faults, CPP, OURS),
        (getenv_faults, CPP, OURS),
        (mutex_faults, CPP, OURS),
        (conditional_faults, CPP, OURS),
        (environ_faults, (".py",), ("tf_hvd/",)),
        (python_import_faults, (".py",), ("tf_hvd/",)),
        (private_faults, (".py",), ("tf_hvd/",)),
        (length_faults, (*CPP, ".py", ".sh", ".bzl"), (*CODE, "build_defs/", "dev_support/")),
        (function_faults, (*CPP, ".py"), CODE),
        (path_faults, ("",), ("",)),
    ],
)
def test_the_checkout_has_no(rule, suffixes, folders):
    if rule is path_faults:
        texts = ((name, (ROOT / name).read_bytes()) for name in checkout())
        faults = [
            fault
            for name, data in texts
            if b"\0" not in data
            for fault in path_faults(name, data.decode(errors="replace"))
        ]
    else:
        faults = all_faults(rule, suffixes, *folders)
    assert not faults, "\n".join(faults)


def test_no_modules_import_each_other_in_a_circle():
    assert import_circle(dict(files((".py",), "tf_hvd/"))) == []
    circle = {"p/__init__.py": "from p import a\n", "p/a.py": "def f():\n    from p.b import x\n"}
    assert import_circle(circle | {"p/b.py": "from p import c\n", "p/c.py": ""}) == []
    for back in ("import p.a\n", 'importlib.import_module("p.a")\n'):
        assert import_circle(circle | {"p/b.py": back}) == ["p.a", "p.b", "p.a"]


LONG = "int F() {\n" + "  x();\n" * 61 + "}\n"
BRANCHY = "def f(x):\n" + "    if x: pass\n" * 16


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (
            include_faults,
            "runtime/execution/cycle.cc",
            '#include "tensorflow/core/framework/op.h"\n',
        ),
        (
            include_faults,
            "runtime/contract/world.cc",
            '#include "runtime/transport/segment/edge.h"\n',
        ),
        (include_faults, "runtime/cycle.cc", "#include <vector>\n"),
        (include_faults, "kernels/reduction_kernels.cc", '#include "ops/common.h"\n'),
        (include_faults, "runtime/api/runtime.cc", "#include <mpi.h>\n"),
        (include_faults, "kernels/x.cc", "#include <Python.h>\n"),
        (getenv_faults, "runtime/api/runtime.cc", 'auto* x = std::getenv("X");\n'),
        (mutex_faults, "runtime/api/runtime.cc", "std::mutex mutex;\n"),
        (conditional_faults, "runtime/api/runtime.cc", "#if TF_HVD_HAVE_NCCL\n"),
        (conditional_faults, "kernels/x.cc", "#if TF_MINOR_VERSION > 20\n"),
        (environ_faults, "tf_hvd/core/basics.py", 'import os\nos.environ["X"]\n'),
        (environ_faults, "tf_hvd/core/basics.py", "from os import getenv\n"),
        (python_import_faults, "tf_hvd/core/basics.py", "import ctypes\n"),
        (python_import_faults, "tf_hvd/core/basics.py", "from tf_hvd.launch import main\n"),
        (python_import_faults, "tf_hvd/launch/job/a.py", "import tf_hvd.launch.elastic.hosts\n"),
        (python_import_faults, "tf_hvd/keras/fit.py", "from tf_hvd import horovod\n"),
        (python_import_faults, "tf_hvd/keras/x.py", 'import_module("tf_hvd.elastic.fit")\n'),
        (private_faults, "tf_hvd/keras/x.py", "super()._save_model(x)\n"),
        (private_faults, "tf_hvd/core/basics.py", "from tensorflow.python.eager import context\n"),
        (private_faults, "tf_hvd/keras/x.py", 'getattr(optimizer, "_built", False)\n'),
        (length_faults, "runtime/x.cc", "\n" * 601),
        (function_faults, "runtime/x.cc", LONG),
        (function_faults, "tf_hvd/x.py", BRANCHY),
        (path_faults, "README.md", 'a = "/' + 'root/.cache"\n'),
    ],
)
def test_the_rule_finds_a_fault(rule, path, text):
    assert rule(path, text)


@pytest.mark.parametrize(
    ("rule", "path", "text"),
    [
        (
            include_faults,
            "runtime/execution/cycle.cc",
            "#include <sys/mman.h>\n#include <vector>\n",
        ),
        (include_faults, "runtime/transport/mpi_library/shim.cc", "#include <mpi.h>\n"),
        (include_faults, "runtime/contract/world.cc", '#include "compute/buffer_ops.h"\n'),
        (getenv_faults, "base/config.cc", 'std::getenv("X")\n'),
        (mutex_faults, "base/mutex.h", "std::mutex mutex;\n"),
        (conditional_faults, "runtime/x.h", "#ifndef TF_HVD_RUNTIME_TRANSPORT_MPI_WORLD_H_\n"),
        (environ_faults, "tf_hvd/launch/job/run.py", "import os\nos.environ\n"),
        (private_faults, "tf_hvd/keras/compat.py", "optimizer._built\n"),
        (private_faults, "tf_hvd/keras/x.py", "self._mine = 1\nother._mine\n"),
        (path_faults, "README.md", "../shared/" + "work/ https://x/" + "home/ build/tmp/x\n"),
    ],
)
def test_the_rule_lets_pass(rule, path, text):
    assert rule(path, text) == []


@pytest.mark.parametrize(
    ("package", "name"),
    [
        (package, name)
        for package in ("tf_hvd", "tf_hvd/elastic", "tf_hvd/keras")
        for name in public_names(package)
    ],
)
def test_public_name_is_documented(package, name):
    folder = ROOT / package / name / "__init__.py"
    if folder.exists():
        assert ast.get_docstring(ast.parse(folder.read_text())), f"{name} has no docstring"
        return
    file, defined = origin(name, ROOT / package / "__init__.py")
    missing = undocumented(ast.parse(file.read_text()), defined)
    assert missing is not None, f"{name} is not defined in {file.relative_to(ROOT)}"
    assert not missing, f"{name} of {file.relative_to(ROOT)} has no docstring"


def test_there_are_public_names():
    assert {"init", "allreduce", "DistributedOptimizer"} <= set(public_names())
    assert {"allreduce", "callbacks"} <= set(public_names("tf_hvd/keras"))
    assert {"run", "State"} <= set(public_names("tf_hvd/elastic"))
    tree = ast.parse("def f(): pass\nx = 1\ny = 2\n'''Two.'''\n")
    assert [undocumented(tree, name) for name in "fxyz"] == [True, True, False, None]
    classes = """
class A:
    'A.'
    def f(self): pass
class B(other.B):
    'B.'
    def f(self): pass
"""
    assert [undocumented(ast.parse(classes), name) for name in "AB"] == [True, False]


def test_configuration_page_is_the_librarys_table():
    printed = subprocess.run(
        [sys.executable, "-P", ROOT / "dev_support" / "config_page.py"],
        check=True,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert "TF_HVD_MPI_LIBRARY" in printed.stdout
    assert (ROOT / "docs/config.md").read_text() == printed.stdout


def unbuilt_tests(sources: list[str], build: str) -> list[str]:
    """Test files of a folder that its BUILD file neither globs nor names."""
    if "tf_hvd_cc_tests(" in build:
        return []
    quoted = set(re.findall(r'"(\w+)(?:\.cc)?"', build))  # a target has the file of its name
    return [name for name in sources if name[:-3] not in quoted]


def test_every_cc_test_is_built():
    folders: dict[pathlib.Path, list[str]] = {}
    for path, _ in files(("_test.cc",), "tests/"):
        folders.setdefault((ROOT / path).parent, []).append(pathlib.Path(path).name)
    for folder, sources in folders.items():
        build = folder / "BUILD"
        assert not unbuilt_tests(sources, build.read_text() if build.exists() else ""), folder
    build = 'name = "c_test", srcs = ["a_test.cc"]'
    assert unbuilt_tests(["a_test.cc", "b_test.cc", "c_test.cc"], build) == ["b_test.cc"]


def test_wheel_requires_what_it_imports():
    metadata = tomllib.loads((ROOT / "pip_package/metadata.toml").read_text())
    required = {re.split(r"[<>=\[]", text)[0] for text in metadata["dependencies"]}
    distributions = {"absl": "absl-py", "google": "protobuf"}
    extras = {"tensorflow", "keras", "tf_keras", "mpi4py", "tf_hvd", "tf_hvd_command"}
    # Modules that files of launch/ import when they run as files.
    extras |= {"commits", "contract", "files", "keeper", "lines", "messages", "proc", "rank_output"}
    extras.add("rank_signals")
    roots = {
        name.split(".")[0] for _, text in files((".py",), "tf_hvd/") for name in imported(text)
    }
    found = {distributions.get(name, name) for name in roots - sys.stdlib_module_names - extras}
    assert found == required
