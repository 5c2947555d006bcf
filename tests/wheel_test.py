"""What is in the wheel, and what the shared objects in it show and want."""

import base64
import csv
import email
import hashlib
import io
import pathlib
import re
import struct
import subprocess
import sys
import tomllib
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
EM_CUDA = 190  # the machine of an ELF file for NVIDIA's GPUs
NATIVE = [
    "_tf_hvd.so",
    "libtf_hvd_limits.so",
    "libtf_hvd_mpi_mpich.so",
    "libtf_hvd_mpi_openmpi.so",
]


@pytest.fixture(scope="module")
def wheel():
    version = re.search(r'"([\d.]+)"', (ROOT / "pip_package/version.bzl").read_text())[1]
    with zipfile.ZipFile(ROOT / f"dist/tf_hvd-{version}-py3-none-linux_x86_64.whl") as file:
        yield file


def member(wheel, ending):
    (name,) = [name for name in wheel.namelist() if name.endswith(ending)]
    return wheel.read(name)


def test_record_names_every_member_with_its_hash(wheel):
    rows = list(csv.reader(io.StringIO(member(wheel, "RECORD").decode())))
    assert sorted(row[0] for row in rows) == sorted(wheel.namelist())
    for name, recorded, size in rows[:-1]:
        data = wheel.read(name)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert (recorded, size) == (f"sha256={digest}", str(len(data))), name


def test_every_python_file_of_the_checkout_is_in_it(wheel):
    ours = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tf_hvd").rglob("*.py")}
    packed = {name for name in wheel.namelist() if name.endswith(".py")}
    assert packed == ours | {"tf_hvd/_build_info.py"}
    assert "tf_hvd/py.typed" in wheel.namelist()  # type checkers may read them


def test_metadata(wheel):
    said = tomllib.loads((ROOT / "pip_package/metadata.toml").read_text())
    metadata = email.message_from_bytes(member(wheel, "METADATA"))
    assert metadata["Name"] == "tf_hvd"
    assert metadata.get_all("Provides-Extra") == ["cpu", "gpu", "openmpi", "mpich", "bench"]
    required = metadata.get_all("Requires-Dist")
    assert set(said["dependencies"]) < set(required)
    assert 'tensorflow-cpu==2.21.*; extra == "cpu"' in required
    assert 'tensorflow[and-cuda]==2.21.*; extra == "gpu"' in required


def test_build_info_is_of_this_build(wheel):
    information = {}
    exec(member(wheel, "_build_info.py"), information)
    import tensorflow as tf

    assert information["TF_VERSION"] == tf.__version__
    assert information["CXX11_ABI"] == tf.sysconfig.CXX11_ABI_FLAG
    assert information["CXX_COMPILER"]


@pytest.fixture(params=NATIVE)
def library(request, wheel, tmp_path):
    return pathlib.Path(wheel.extract(f"tf_hvd/{request.param}", tmp_path))


def lines_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def test_only_the_c_interface_is_visible(library):
    names = [line.split()[-1] for line in lines_of("nm", "-D", "--defined-only", str(library))]
    assert names
    assert [name for name in names if not name.startswith("tf_hvd_")] == []


def test_no_library_of_this_machine_is_wanted(library):
    dynamic = lines_of("readelf", "-d", str(library))
    assert [line for line in dynamic if "RPATH" in line or "RUNPATH" in line] == []
    wanted = {re.search(r"\[(.*)\]", line)[1] for line in dynamic if "NEEDED" in line}
    allowed = {"libc", "libm", "libstdc++", "libgcc_s", "ld-linux-x86-64", "libpthread", "librt"}
    allowed |= {"libdl"} | ({"libtensorflow_framework"} if library.name == "_tf_hvd.so" else set())
    assert {name.split(".so")[0] for name in wanted} <= allowed


def test_no_name_of_mpi_is_left_to_the_linker(library):
    undefined = [
        line.split()[-1] for line in lines_of("nm", "-D", "--undefined-only", str(library))
    ]
    assert [name for name in undefined if re.match(r"(MPI|PMPI|ompi|opal)_", name)] == []


def test_machine_without_a_gpu_needs_nothing_of_cuda(library):
    undefined = [
        line.split()[-1] for line in lines_of("nm", "-D", "--undefined-only", str(library))
    ]
    assert [name for name in undefined if re.match(r"(cu[A-Z]|cuda|nccl|nvrtc)", name)] == []
    wanted = lines_of("readelf", "-d", str(library))
    assert [line for line in wanted if re.search(r"NEEDED.*lib(cu|nccl|nv)", line)] == []


def test_code_for_gpus(wheel):
    """Machine code for each architecture, and PTX for those that come later."""
    library = member(wheel, "/_tf_hvd.so")
    capabilities = set()
    for found in re.finditer(rb"\x7fELF\x02\x01", library):
        machine = struct.unpack_from("<H", library, found.start() + 18)[0]
        flags = struct.unpack_from("<I", library, found.start() + 48)[0]
        if machine == EM_CUDA:
            # Where the capability stands in the flags has changed with 10.0.
            capabilities.add(flags & 0xFF if flags & 0xFF > 2 else flags >> 8 & 0xFF)
    assert capabilities == {60, 70, 75, 80, 86, 89, 90, 100, 103, 120}
    assert re.findall(rb"\.target (sm_\d+)", library) == [b"sm_90"]


def test_size(wheel):
    size = pathlib.Path(wheel.filename).stat().st_size
    assert size < 4 << 20, "code for GPUs takes half a megabyte of it"


def test_the_installed_package_is_the_wheels():
    where = [sys.executable, "-P", "-c", "import tf_hvd; print(tf_hvd.__file__)"]
    (file,) = lines_of(*where)
    assert "site-packages" in pathlib.Path(file).parts


def test_the_console_scripts(wheel):
    scripts = member(wheel, "entry_points.txt").decode().splitlines()
    assert scripts == [
        "[console_scripts]",
        "tf_hvd = tf_hvd.cli.main:main",
        "horovodrun = tf_hvd.cli.horovodrun:main",
    ]
    for name in ("tf_hvd", "horovodrun"):
        script = pathlib.Path(sys.executable).parent / name
        assert (
            "usage: " + name
            in subprocess.run([script, "--help"], check=True, capture_output=True, text=True).stdout
        )
