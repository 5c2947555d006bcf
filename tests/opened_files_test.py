"""Who opens files: what is written is made beside its name, and what others wrote is looked at.

The tables are the list of the places that do without the helpers, each with its reason.
"""

import re

import pytest
from architecture_test import CPP, OURS, all_faults

# What C++ writes goes through PutFile (runtime/events/rank_file.h).
CPP_FILES = {
    "base/processes.cc": "reads /proc",
    "runtime/api/launcher_watch.cc": "reads /proc",
    "runtime/events/rank_file.cc": "is PutFile",
    "runtime/events/timeline.cc": "takes a timeline's lock: follows no link, waits for no pipe",
    "runtime/transport/mpi_library/library.cc": "reads the user's MPI library, a regular file",
    "runtime/transport/segment/segment.cc": "makes shared memory, by O_EXCL",
}


def cpp_faults(path: str, text: str) -> list[str]:
    """Files that are made by their own name, where others may have put a link or a pipe."""
    found = re.search(r"\b(?:fopen|[io]?fstream|O_CREAT|creat|mkstemp|mkdtemp)\b(?! *>)", text)
    return [f"{path} has {found[0]}"] if found and path not in CPP_FILES else []


def test_cpp_opens_no_file_by_itself():
    assert all_faults(cpp_faults, CPP, *OURS) == []


@pytest.mark.parametrize("text", ["open(path, O_WRONLY | O_CREAT)", "std::ofstream file(path);"])
def test_the_rule_finds_a_fault(text):
    assert cpp_faults("runtime/events/metrics.cc", text)
    assert not cpp_faults("runtime/events/metrics.cc", "#include <fstream>\nPutFile(x);")
