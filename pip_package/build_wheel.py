"""Writes the wheel: a zip file whose RECORD lists every member with its hash.

Run by Bazel, which has to know the names of outputs: the wheel's own name, which has
the platform in it, is written beside it. Two builds of the same inputs are the same
bytes, so that Bazel's cache and `pip` can tell by the hash whether anything changed.
"""

import argparse
import base64
import hashlib
import json
import pathlib
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from typing import Any

from platform_tag import platform_tag
from sbom import sbom_text

# The earliest time that a zip file can hold.
EPOCH = (1980, 1, 1, 0, 0, 0)
# No CPython ABI is used, so any Python 3; the platform is what auditwheel finds.
TAG = "py3-none-{platform}"


def metadata_text(metadata: dict[str, Any], version: str, minor: str, readme: str) -> str:
    """The METADATA file of the core metadata specification, version 2.4."""
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {metadata['name']}",
        f"Version: {version}",
        f"Summary: {metadata['summary'].format(minor=minor)}",
        f"License-Expression: {metadata['license']}",
        "License-File: LICENSE",
        f"Keywords: {','.join(metadata['keywords'])}",
        f"Requires-Python: {metadata['requires-python']}",
    ]
    lines += [f"Classifier: {text}" for text in metadata["classifiers"]]
    lines += [f"Requires-Dist: {requirement}" for requirement in metadata["dependencies"]]
    for extra, requirements in metadata["extras"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [
            f'Requires-Dist: {text.format(minor=minor)}; extra == "{extra}"'
            for text in requirements
        ]
    lines += ["Description-Content-Type: text/markdown", "", readme]
    return "\n".join(lines)


def wheel_text(platform: str) -> str:
    """The WHEEL file."""
    tag = TAG.format(platform=platform)
    return (
        f"Wheel-Version: 1.0\nGenerator: tf_hvd.build_wheel\nRoot-Is-Purelib: false\nTag: {tag}\n"
    )


def entry_points_text(scripts: dict[str, str]) -> str:
    """The entry_points.txt file: the console scripts."""
    return "[console_scripts]\n" + "".join(f"{name} = {to}\n" for name, to in scripts.items())


def build_info_text(arguments: argparse.Namespace) -> str:
    """tf_hvd/_build_info.py: what the native library was built for and with."""
    values = {
        "VERSION": arguments.version,
        "TF_VERSION": arguments.tf_version,
        "TF_COMPILER": arguments.tf_compiler,
        "CXX_COMPILER": arguments.cxx_compiler,
        "CXX11_ABI": arguments.cxx11_abi,
    }
    body = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    return f'"""What this wheel was built for and with. Written by the build."""\n\n{body}'


def hash_of(data: bytes) -> str:
    """A member's hash as RECORD wants it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
    return "sha256=" + digest.rstrip(b"=").decode()


def platform_of(name: str, members: dict[str, bytes], info: str) -> str:
    """The platform part of the tag: looked up in a wheel of no promise."""
    with tempfile.TemporaryDirectory() as folder:
        draft = pathlib.Path(folder) / f"{name}-{TAG.format(platform='linux_x86_64')}.whl"
        write_wheel(draft, members.items(), info)
        return platform_tag(draft)


def write_wheel(path: pathlib.Path, members: Iterable[tuple[str, bytes]], info: str) -> None:
    """Writes the members in order of their names, and RECORD last, as `pip` likes it."""
    record = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in sorted(members):
            record.append(f"{name},{hash_of(data)},{len(data)}\n")
            write_member(wheel, name, data)
        record.append(f"{info}/RECORD,,\n")
        write_member(wheel, f"{info}/RECORD", "".join(record).encode())


def write_member(wheel: zipfile.ZipFile, name: str, data: bytes) -> None:
    """Writes one member with a fixed time and mode."""
    member = zipfile.ZipInfo(name, EPOCH)
    member.compress_type = zipfile.ZIP_DEFLATED
    mode = 0o755 if name.endswith(".so") else 0o644
    member.external_attr = (0o100000 | mode) << 16
    wheel.writestr(member, data)


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
    texts = {
        f"{info}/METADATA": metadata_text(
            metadata, arguments.version, minor, arguments.readme.read_text()
        ),
        f"{info}/entry_points.txt": entry_points_text(metadata["scripts"]),
        f"{info}/sboms/tf_hvd.cdx.json": sbom_text(arguments.version, built_with(arguments)),
        f"{info}/licenses/LICENSE": arguments.license.read_text(),
        f"{name}/_build_info.py": build_info_text(arguments),
    }
    members = {member: text.encode() for member, text in texts.items()}
    for path in arguments.native:
        members[f"{name}/{path.name}"] = path.read_bytes()
    for path in arguments.python:
        members[path.as_posix()] = path.read_bytes()
    platform = platform_of(full_name, members, info)
    members[f"{info}/WHEEL"] = wheel_text(platform).encode()
    write_wheel(arguments.output, members.items(), info)
    arguments.output_name.write_text(f"{full_name}-{TAG.format(platform=platform)}.whl\n")


main()
