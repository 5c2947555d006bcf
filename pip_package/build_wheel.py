"""Writes the wheel for one minor version of TensorFlow.

Run by Bazel, which must know the names of outputs in advance. The wheel's own name contains the
platform, so it is written to a separate file.
"""

import argparse
import json
import pathlib
import tomllib

from sbom import sbom_text
from wheel_file import make_wheel


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
    parser.add_argument(
        "--c-libraries",
        default="",
        help="versions of C libraries other than the machine's, as name=version,...",
    )
    parser.add_argument("--mpi-versions", type=json.loads, required=True)
    parser.add_argument("--nvrtc-version", required=True)
    parser.add_argument("--cxx11-abi", type=int, required=True)
    parser.add_argument("--native", type=pathlib.Path, action="append", default=[])
    parser.add_argument("--python", type=pathlib.Path, nargs="*", default=[])
    return parser.parse_args()


def built_with(arguments: argparse.Namespace) -> dict[str, str]:
    """The versions in the software bill of materials."""
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
    minor = ".".join(arguments.tf_version.split(".")[:2])
    build = {
        "library": f"_tf_hvd_{minor}.so",
        "tensorflow": arguments.tf_version,
        "compiler": arguments.tf_compiler,
        "cxx11_abi": arguments.cxx11_abi,
    }
    files = {path.as_posix(): path.read_bytes() for path in arguments.python}
    for path in arguments.native:
        of_minor = path.name.startswith("_tf_hvd")
        packed = f"{path.stem}_{minor}.so" if of_minor else path.name
        files[f"{metadata['name']}/{packed}"] = path.read_bytes()
    name = make_wheel(
        arguments.output,
        version=arguments.version,
        metadata=metadata,
        readme=arguments.readme.read_text(),
        license_text=arguments.license.read_bytes(),
        sbom=sbom_text(arguments.version, built_with(arguments)),
        compiler=arguments.cxx_compiler,
        builds={minor: build},
        files=files,
    )
    arguments.output_name.write_text(name + "\n")


main()
