"""Which wheel goes with which TensorFlow. Imports nothing of TensorFlow's."""

import os
import sys
from collections.abc import Sequence

# What the release carries a library for; `./dev wheel` makes wheels for one of them.
MINORS = ("2.18", "2.19", "2.20", "2.21")


def zipped_text(folder: str) -> str:
    """What to say where the package's folder is in a zip; empty where it is installed."""
    if os.path.isdir(folder):
        return ""
    return (
        f"tf_hvd cannot run from {os.path.dirname(folder)}: its native library and what it starts "
        "on each machine must be files. Leave tf_hvd out of the zip, and install it with pip"
    )


def minor(version: str) -> str:
    """2.21 of 2.21.0."""
    return ".".join(version.split(".")[:2])


def named(minors: Sequence[str]) -> str:
    """2.21, or 2.18 to 2.21."""
    return minors[0] if len(minors) == 1 else f"{minors[0]} to {minors[-1]}"


def cure(minors: Sequence[str], found: str) -> str:
    """What to install where a wheel for `minors` meets a TensorFlow that it has no library for."""
    made = making(minor(found)) if minor(found) in MINORS else making()
    return (
        f"Install TensorFlow {minors[-1]} (pip install 'tensorflow=={minors[-1]}.*', or "
        f"tensorflow-cpu), or make a wheel for this one: {made}"
    )


def making(tensorflow: str = sys.executable) -> str:
    """How to make a wheel for a minor version, or for the TensorFlow of a Python."""
    return f"'./dev wheel --tensorflow {tensorflow}' in tf_hvd's source"
