"""Only tf_hvd/core/files.py and PutFile open files; exceptions are listed here with a reason.

CONTRIBUTING.md, "Files", explains the list.
"""

import ast
import pathlib
import re
import sys
from collections.abc import Iterator

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parent))

from architecture_test import CPP, OURS, all_faults

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Calls that open files, in addition to `open` and `np.load`: methods, and functions of modules.
OPENS = {
    "open", "read_text", "read_bytes", "write_text", "write_bytes", "mmap", "memfd_create",
    "mkstemp", "mkdtemp", "TemporaryFile", "NamedTemporaryFile", "TemporaryDirectory",
    "GFile", "ZipFile", "File", "savez", "savefig",
}  # fmt: skip
FILES = "tf_hvd/core/files.py"
# Calls that need not use FILES, by file, and the reason: see CONTRIBUTING.md, "Files".
PRIVATE_FOLDER = "a new, private folder"
ANY_FILE_SYSTEM = "paths that only TensorFlow opens; written under an unguessable name"
OPENED_ELSEWHERE = {
    "tf_hvd/bench/native.py": {
        "tempfile.mkstemp": "memory for a measurement: a new file, the user's own",
        "os.open": "the same, on the other ranks",
        "mmap.mmap": "the same",
    },
    "tf_hvd/bench/plot.py": {"figure.savefig": "writes to a file that files.writing has opened"},
    "tf_hvd/elastic/commit_file.py": {"mmap.mmap": "memory without a name"},
    "tf_hvd/keras/models.py": {
        "zipfile.ZipFile": "a model that Keras has already loaded",
        "archive.open": "a part of it",
        "h5py.File": "the same in the older form",
    },
    "tf_hvd/keras/plain_values.py": {"np.savez": "in memory", "np.load": "from memory"},
    "tf_hvd/keras/rank_state.py": {"tf.io.gfile.GFile": ANY_FILE_SYSTEM},
    "tf_hvd/keras/resume.py": {
        "tf.io.gfile.GFile": ANY_FILE_SYSTEM,
        "tempfile.TemporaryDirectory": PRIVATE_FOLDER,
    },
    "tf_hvd/launch/commands/doctor.py": {"tempfile.TemporaryFile": "a file without a name"},
    "tf_hvd/launch/job/leftovers.py": {"open": "its own pipe, by descriptor"},
    "tf_hvd/launch/job/run_function.py": {"tempfile.mkdtemp": PRIVATE_FOLDER},
    "tf_hvd/launch/job/session.py": {"tempfile.mkdtemp": PRIVATE_FOLDER},
    "tf_hvd/launch/machine/commits.py": {"os.memfd_create": "memory without a name"},
    "tf_hvd/launch/machine/proc.py": {"open": "the kernel's files"},
    "tf_hvd/launch/machine/rank.py": {
        "os.open": "memory if the kernel lacks memfd: a new file that is unlinked at once",
    },
    "tf_hvd/strip/formats.py": {
        "zipfile.ZipFile": "in memory",
        "archive.open": "a part of it",
    },
    "tf_hvd/strip/files.py": {"tf.io.gfile.GFile": ANY_FILE_SYSTEM},
}

# C++ code writes files through PutFile (runtime/events/rank_file.h).
CPP_OPENED_ELSEWHERE = {
    "base/processes.cc": "the kernel's files",
    "runtime/api/launcher_watch.cc": "the kernel's files",
    "runtime/events/rank_file.cc": "PutFile itself",
    "runtime/events/timeline.cc": "a timeline's lock: follows no link and waits for no pipe",
    "runtime/transport/mpi_library/library.cc": "the user's MPI library, a regular file",
    "runtime/transport/segment/segment.cc": "shared memory: a new one",
}


def cpp_faults(path: str, text: str) -> list[str]:
    """The same rule for C++: files that are created, or read as streams."""
    found = re.search(r"\b(?:fopen|[io]?fstream|O_CREAT|creat|mkstemp|mkdtemp)\b(?! *>)", text)
    known = path in CPP_OPENED_ELSEWHERE
    return [f"{path} has {found[0]}: use PutFile"] if found and not known else []


def opening_calls(text: str) -> Iterator[ast.Call]:
    """Calls that open a file, except the kernel's files and folders."""
    for node in ast.walk(ast.parse(text)):
        name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        method = name.rpartition(".")[1:]
        if name not in ("open", "np.load") and not (method[0] and method[1] in OPENS):
            continue
        words = [ast.unparse(each) for each in node.args]
        kernels = re.match(r"f?['\"]/(proc|sys)/|os\.devnull$", words[0] if words else "")
        if not kernels and "O_DIRECTORY" not in " ".join(words):
            yield node


def file_faults(path: str, text: str) -> list[str]:
    """Files that are opened without the precautions of FILES."""
    known = OPENED_ELSEWHERE.get(path, {})
    return [
        f"{path}:{node.lineno} calls {ast.unparse(node.func)}: use {FILES}"
        for node in opening_calls(text)
        if path != FILES and ast.unparse(node.func) not in known
    ]


def test_no_file_is_opened_without_precautions():
    found = sorted((ROOT / "tf_hvd").rglob("*.py"))
    assert len(found) > 150
    faults = [
        fault
        for path in found
        for fault in file_faults(str(path.relative_to(ROOT)), path.read_text())
    ]
    faults += all_faults(cpp_faults, CPP, *OURS)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("path", OPENED_ELSEWHERE)
def test_listed_exceptions_exist(path):
    made = {ast.unparse(node.func) for node in opening_calls((ROOT / path).read_text())}
    assert made == set(OPENED_ELSEWHERE[path])


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tf_hvd/launch/job/run.py", "open(path)\n"),
        ("tf_hvd/launch/job/run.py", "os.open(path, os.O_RDONLY)\n"),
        ("tf_hvd/launch/job/run.py", "Path(path).read_text()\n"),
        ("tf_hvd/launch/job/session.py", "tempfile.mkstemp()\n"),
        ("tf_hvd/keras/x.py", "np.load(path)\n"),
    ],
)
def test_the_rule_finds_a_fault(path, text):
    assert file_faults(path, text)


@pytest.mark.parametrize("text", ["open(path, O_WRONLY | O_CREAT)", "std::ofstream file(path);"])
def test_the_rule_for_cpp_finds_a_fault(text):
    assert cpp_faults("runtime/events/metrics.cc", text)
    assert not cpp_faults("runtime/events/metrics.cc", "#include <fstream>\nPutFile(x);")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (FILES, "open(path)\n"),
        ("tf_hvd/core/x.py", 'open("/proc/self/maps")\n'),
        ("tf_hvd/core/x.py", "os.open(path, os.O_RDONLY | os.O_DIRECTORY)\n"),
        ("tf_hvd/core/x.py", "with files.opened(path) as file: pass\n"),
        ("tf_hvd/core/x.py", 'read_text(path, "it")\n'),
    ],
)
def test_the_rule_lets_pass(path, text):
    assert not file_faults(path, text)
