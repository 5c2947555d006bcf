"""The parts of a wheel: a zip file whose RECORD lists every member with its hash.

Two wheels of the same inputs are the same bytes, so that Bazel's cache and `pip` can tell by the
hash whether anything changed.
"""

import base64
import hashlib
import pathlib
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from typing import Any

from platform_tag import platform_tag

# The earliest time that a zip file can hold.
EPOCH = (1980, 1, 1, 0, 0, 0)
# No CPython ABI is used, so any Python 3; the platform is what auditwheel finds.
TAG = "py3-none-{platform}"


def minors_text(minors: Sequence[str]) -> str:
    """2.21, or 2.18 to 2.21."""
    return minors[0] if len(minors) == 1 else f"{minors[0]} to {minors[-1]}"


def requirement_of(minors: Sequence[str]) -> str:
    """The versions of TensorFlow, as pip takes them: ==2.21.*, or >=2.18,<2.22."""
    if len(minors) == 1:
        return f"=={minors[0]}.*"
    major, last = map(int, minors[-1].split("."))
    return f">={minors[0]},<{major}.{last + 1}"


def metadata_text(
    metadata: dict[str, Any], version: str, minors: Sequence[str], readme: str
) -> str:
    """The METADATA file of the core metadata specification, version 2.4."""
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {metadata['name']}",
        f"Version: {version}",
        f"Summary: {metadata['summary'].format(minors=minors_text(minors))}",
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
            f'Requires-Dist: {text.format(tensorflow=requirement_of(minors))}; extra == "{extra}"'
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


def build_info_text(version: str, compiler: str, builds: dict[str, dict[str, Any]]) -> str:
    """tf_hvd/_build_info.py: what the native libraries were built for and with.

    Args:
      version: of the wheel.
      compiler: of C++.
      builds: what each minor's TensorFlow says of itself, and the name of its library; by
        minor, ascending.
    """
    listed = "".join(f"    {minor!r}: {build!r},\n" for minor, build in builds.items())
    return (
        '"""What this wheel was built for and with. Written by the build."""\n\n'
        f"VERSION = {version!r}\nCXX_COMPILER = {compiler!r}\nBUILDS = {{\n{listed}}}\n"
    )


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


def make_wheel(
    output: pathlib.Path,
    *,
    version: str,
    metadata: dict[str, Any],
    readme: str,
    license_text: bytes,
    sbom: str,
    compiler: str,
    builds: dict[str, dict[str, Any]],
    files: dict[str, bytes],
) -> str:
    """Writes a wheel; its platform is found by looking into it.

    Args:
      output: where to.
      version: of the wheel.
      metadata: what metadata.toml says.
      readme: the page that an index shows.
      license_text: LICENSE.
      sbom: the list of materials.
      compiler: see `build_info_text`.
      builds: see there.
      files: all that is not told by the others, by name.

    Returns:
      The name that the wheel is to have.
    """
    full_name = f"{metadata['name']}-{version}"
    info = f"{full_name}.dist-info"
    texts = {
        f"{info}/METADATA": metadata_text(metadata, version, list(builds), readme),
        f"{info}/entry_points.txt": entry_points_text(metadata["scripts"]),
        f"{info}/sboms/tf_hvd.cdx.json": sbom,
        f"{metadata['name']}/_build_info.py": build_info_text(version, compiler, builds),
    }
    members = files | {name: text.encode() for name, text in texts.items()}
    members[f"{info}/licenses/LICENSE"] = license_text
    platform = platform_of(full_name, members, info)
    members[f"{info}/WHEEL"] = wheel_text(platform).encode()
    write_wheel(output, members.items(), info)
    return f"{full_name}-{TAG.format(platform=platform)}.whl"
