"""Kills processes that interrupted tests have left running: end_marked.py MARK.

All processes that tests start have the mark in their environment, also in other process groups.
"""

import contextlib
import os
import sys

import psutil

NAME = "TF_HVD_TESTS_MARK"


def marked(mark: str) -> list[psutil.Process]:
    """Processes with this mark, except this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(NAME) == mark:
                found.append(process)
    return found


def main() -> None:
    # Repeat, because processes that are being killed may start more.
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
