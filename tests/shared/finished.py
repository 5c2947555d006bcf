"""A process that a test starts and waits for."""

import subprocess


def finished(command, **options):
    """It, once it has ended, however that was; what it has printed is text."""
    usual = {"capture_output": True, "text": True, "timeout": 600, "check": False}
    return subprocess.run(list(map(str, command)), **{**usual, **options})
