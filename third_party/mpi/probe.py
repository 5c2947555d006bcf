"""Prints the paths of the headers and launchers of the two MPI families, for Bazel.

Both wheels put mpi.h at the same path, so one environment holds only one of them.
The other may be below it, in <prefix>/mpi/<family>, where ./dev installs it, or
in TF_HVD_OPENMPI_PREFIX or TF_HVD_MPICH_PREFIX.
"""

import os
import pathlib
import re
import sys

# Macros that only the family's own mpi.h defines.
MARKERS = {"openmpi": "#define OMPI_MAJOR_VERSION", "mpich": "#define MPICH_VERSION"}


def find(family: str) -> pathlib.Path | None:
    """Return the prefix with this family's include/mpi.h."""
    named = os.environ.get(f"TF_HVD_{family.upper()}_PREFIX")
    environment = pathlib.Path(sys.prefix)
    candidates = [pathlib.Path(named)] if named else [environment / "mpi" / family, environment]
    for prefix in candidates:
        header = prefix / "include" / "mpi.h"
        if header.exists() and MARKERS[family] in header.read_text():
            return prefix
    return None


def version(prefix: pathlib.Path) -> str:
    """Return the version in the prefix's mpi.h."""
    text = (prefix / "include" / "mpi.h").read_text()
    mpich = re.search(r'#define MPICH_VERSION "(.*)"', text)
    if mpich:
        return mpich[1]
    numbers = re.findall(r"#define OMPI_(?:MAJOR|MINOR|RELEASE)_VERSION (\d+)", text)
    return ".".join(numbers)


def main() -> None:
    for family in MARKERS:
        prefix = find(family)
        print(f"{family}={prefix or ''}")
        print(f"{family}_version={version(prefix) if prefix else ''}")


main()
