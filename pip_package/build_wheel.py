"""Writes the wheel: a zip file whose RECORD lists every member with its hash.

Run by Bazel. Two builds of the same inputs are the same bytes, so that Bazel's
cache and `pip` can tell by the hash whether anything changed.
"""

import argparse
import base64
import hashlib
import pathlib
import tomllib
import zipfile
from collections.abc import Iterable
from typing import Any

# The earliest time that a zip file can hold.
EPOCH = (1980, 1, 1, 0, 0, 0)
TAG = "py3-none-linux_x86_64"


def metadata_text(metadata: dict[str, Any], version: str, readme: str) -> str:
    """The METADATA file of the core metadata specification, version 2.1."""
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {metadata['name']}",
        f"Version: {version}",
        f"Summary: {metadata['summary']}",
        f"License: {metadata['license']}",
        f"Requires-Python: {metadata['requires-python']}",
    ]
    lines += [f"Classifier: {text}" for text in metadata["classifiers"]]
    lines += [f"Requires-Dist: {requirement}" for requirement in metadata["dependencies"]]
    for extra, requirements in metadata["extras"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {text}; extra == "{extra}"' for text in requirements]
    lines += ["Description-Content-Type: text/markdown", "", readme]
    return "\n".join(lines)


def wheel_text() -> str:
    """The WHEEL file: no CPython ABI is used, so any Python 3 of this platform."""
    return (
        f"Wheel-Version: 1.0\nGenerator: tf_hvd.build_wheel\nRoot-Is-Purelib: false\nTag: {TAG}\n"
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
    parser.add_argument("--version", required=True)
    parser.add_argument("--metadata", type=pathlib.Path, required=True)
    parser.add_argument("--readme", type=pathlib.Path, required=True)
    parser.add_argument("--license", type=pathlib.Path, required=True)
    parser.add_argument("--tf-version", required=True)
    parser.add_argument("--tf-compiler", required=True)
    parser.add_argument("--cxx-compiler", required=True)
    parser.add_argument("--cxx11-abi", type=int, required=True)
    parser.add_argument("--native", type=pathlib.Path, action="append", default=[])
    parser.add_argument("--python", type=pathlib.Path, nargs="*", default=[])
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    metadata = tomllib.loads(arguments.metadata.read_text())
    name = metadata["name"]
    info = f"{name}-{arguments.version}.dist-info"
    texts = {
        f"{info}/METADATA": metadata_text(
            metadata, arguments.version, arguments.readme.read_text()
        ),
        f"{info}/WHEEL": wheel_text(),
        f"{info}/entry_points.txt": entry_points_text(metadata["scripts"]),
        f"{info}/LICENSE": arguments.license.read_text(),
        f"{name}/_build_info.py": build_info_text(arguments),
    }
    members = {member: text.encode() for member, text in texts.items()}
    for path in arguments.native:
        members[f"{name}/{path.name}"] = path.read_bytes()
    for path in arguments.python:
        members[path.as_posix()] = path.read_bytes()
    write_wheel(arguments.output, members.items(), info)


main()
