"""Kills what tests that were interrupted have left running: end_marked.py MARK.

Whatever they start has the mark in its environment, in a process group of its own or not.
"""

import contextlib
import os
import sys

import psutil

NAME = "TF_HVD_TESTS_MARK"


def marked(mark: str) -> list[psutil.Process]:
    """The processes with this mark, but for this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(NAME) == mark:
                found.append(process)
    return found


def main() -> None:
    # What is being ended may be starting more.
    for _ in range(10):
        found = marked(sys.argv[1])
        if not found:
            return
        for process in found:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(found, timeout=5)


if __name__ == "__main__":
    main()
