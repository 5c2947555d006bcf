"""Texts about TensorFlow versions that a wheel supports. This module does not import TensorFlow."""

import os
import sys
from collections.abc import Sequence

# Minor versions that the release has a library for; `./dev wheel` builds a wheel for one of them.
MINORS = ("2.18", "2.19", "2.20", "2.21")


def zipped_text(folder: str) -> str:
    """Return the error for a package inside a zip file; "" if the package is installed as files."""
    if os.path.isdir(folder):
        return ""
    return (
        f"tf_hvd cannot run from {os.path.dirname(folder)}: its native library and the programs "
        "that it starts on each machine must be files. Exclude tf_hvd from the zip, and install it "
        "with pip"
    )


def minor(version: str) -> str:
    """Return the minor version: "2.21" for "2.21.0"."""
    return ".".join(version.split(".")[:2])


def named(minors: Sequence[str]) -> str:
    """Return minor versions as text: "2.21", or "2.18 to 2.21"."""
    return minors[0] if len(minors) == 1 else f"{minors[0]} to {minors[-1]}"


def cure(minors: Sequence[str], found: str) -> str:
    """Return the fix for a wheel that supports only `minors`, not the TensorFlow `found`."""
    made = build_hint(minor(found)) if minor(found) in MINORS else build_hint()
    return (
        f"Install TensorFlow {minors[-1]} (pip install 'tensorflow=={minors[-1]}.*', or "
        f"tensorflow-cpu), or build a wheel for this one: {made}"
    )


def build_hint(tensorflow: str = sys.executable) -> str:
    """Return the command that builds a wheel for a minor version or for a Python's TensorFlow."""
    return f"'./dev wheel --tensorflow {tensorflow}' in tf_hvd's source"
