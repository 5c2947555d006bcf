"""Writes the wheel for one minor version of TensorFlow.

Run by Bazel, which has to know the names of outputs: the wheel's own name, which has
the platform in it, is written beside it.
"""

import argparse
import json
import pathlib
import tomllib

from sbom import sbom_text
from wheel_file import build_info_text, entry_points_text, finish, library_of, metadata_text


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--output-name", type=pathlib.Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--metadata", type=pathlib.Path, required=True)
    parser.add_argument("--readme", type=pathlib.Path, required=True)
    parser.add_argument("--license", type=pathlib.Path, required=True)
    parser.add_argument("--tf-version", required=True)
    parser.add_argument("--tf-compiler", required=True)
    parser.add_argument("--cxx-compiler", required=True)
    parser.add_argument("--c-libraries", default="", help="name=version,..., not the machine's")
    parser.add_argument("--mpi-versions", type=json.loads, required=True)
    parser.add_argument("--nvrtc-version", required=True)
    parser.add_argument("--cxx11-abi", type=int, required=True)
    parser.add_argument("--native", type=pathlib.Path, action="append", default=[])
    parser.add_argument("--python", type=pathlib.Path, nargs="*", default=[])
    return parser.parse_args()


def built_with(arguments: argparse.Namespace) -> dict[str, str]:
    """What the list of materials tells."""
    return {
        "tensorflow": arguments.tf_version,
        "tensorflow compiler": arguments.tf_compiler,
        "compiler": arguments.cxx_compiler,
        "c libraries": arguments.c_libraries,
        "nvrtc": arguments.nvrtc_version,
        **arguments.mpi_versions,
    }


def main() -> None:
    arguments = parse_arguments()
    metadata = tomllib.loads(arguments.metadata.read_text())
    name = metadata["name"]
    full_name = f"{name}-{arguments.version}"
    info = f"{full_name}.dist-info"
    minor = ".".join(arguments.tf_version.split(".")[:2])
    builds = {
        minor: {
            "tensorflow": arguments.tf_version,
            "compiler": arguments.tf_compiler,
            "cxx11_abi": arguments.cxx11_abi,
        }
    }
    texts = {
        f"{info}/METADATA": metadata_text(
            metadata, arguments.version, [minor], arguments.readme.read_text()
        ),
        f"{info}/entry_points.txt": entry_points_text(metadata["scripts"]),
        f"{info}/sboms/tf_hvd.cdx.json": sbom_text(arguments.version, built_with(arguments)),
        f"{info}/licenses/LICENSE": arguments.license.read_text(),
        f"{name}/_build_info.py": build_info_text(
            arguments.version, arguments.cxx_compiler, builds
        ),
    }
    members = {member: text.encode() for member, text in texts.items()}
    for path in arguments.native:
        packed = library_of(minor) if path.name == "_tf_hvd.so" else path.name
        members[f"{name}/{packed}"] = path.read_bytes()
    for path in arguments.python:
        members[path.as_posix()] = path.read_bytes()
    arguments.output_name.write_text(finish(arguments.output, full_name, members, info) + "\n")


main()
