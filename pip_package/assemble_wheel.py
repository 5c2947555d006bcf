"""Combines wheels for one minor version of TensorFlow each into the release's wheel.

    assemble_wheel.py --dist DIR --version VERSION WHEEL...

All wheels must be built from the same source: except for the libraries for TensorFlow and their
metadata, all files must be equal. Prints the wheel's path.
"""

import argparse
import pathlib
import shutil
import sys
import tomllib
import zipfile
from typing import Any

from sbom import merged_sbom
from wheel_file import make_wheel

HERE = pathlib.Path(__file__).resolve().parent
BUILD_INFO = "tf_hvd/_build_info.py"


class Part:
    """A wheel for one minor version."""

    def __init__(self, path: pathlib.Path) -> None:
        with zipfile.ZipFile(path) as wheel:
            members = {name: wheel.read(name) for name in wheel.namelist()}
        self.path = path
        self.sbom = _ending(members, "/sboms/tf_hvd.cdx.json").decode()
        self.license = _ending(members, "/licenses/LICENSE")
        self.build: dict[str, Any] = {}
        exec(members.pop(BUILD_INFO), self.build)
        inside = {name: data for name, data in members.items() if ".dist-info/" not in name}
        endings = tuple(f"_{minor}.so" for minor in self.build["BUILDS"])
        libraries = [name for name in inside if name.endswith(endings)]
        self.libraries = {name: inside.pop(name) for name in libraries}
        self.common = inside


def _ending(members: dict[str, bytes], ending: str) -> bytes:
    (data,) = [data for name, data in members.items() if name.endswith(ending)]
    return data


def differences(parts: list[Part]) -> list[str]:
    """Reasons why the wheels do not belong together."""
    first, found = parts[0], []
    for part in parts[1:]:
        names = first.common.keys() | part.common.keys()
        other = [name for name in sorted(names) if first.common.get(name) != part.common.get(name)]
        if other:
            found.append(f"{part.path.name} differs from {first.path.name} in {', '.join(other)}")
        if part.build["CXX_COMPILER"] != first.build["CXX_COMPILER"]:
            found.append(
                f"{part.path.name} was built by a different compiler than {first.path.name}"
            )
        if part.libraries.keys() & first.libraries.keys():
            found.append(f"{part.path.name} is for the same TensorFlow as {first.path.name}")
    return found


def assemble(parts: list[Part], version: str, dist: pathlib.Path) -> pathlib.Path:
    """Write the combined wheel into `dist`."""
    builds = {minor: build for part in parts for minor, build in part.build["BUILDS"].items()}
    ascending = sorted(builds, key=lambda minor: tuple(map(int, minor.split("."))))
    draft = dist / f".{version}.zip"
    name = make_wheel(
        draft,
        version=version,
        metadata=tomllib.loads((HERE / "metadata.toml").read_text()),
        readme=(HERE.parent / "README.md").read_text(),
        license_text=parts[0].license,
        sbom=merged_sbom([part.sbom for part in parts], version),
        compiler=parts[0].build["CXX_COMPILER"],
        builds={minor: builds[minor] for minor in ascending},
        files=parts[0].common | {n: data for part in parts for n, data in part.libraries.items()},
    )
    return pathlib.Path(shutil.move(draft, dist / name))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dist", type=pathlib.Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("wheels", type=pathlib.Path, nargs="+")
    arguments = parser.parse_args()
    parts = [Part(path) for path in arguments.wheels]
    if found := differences(parts):
        print("\n".join(found), file=sys.stderr)
        return 1
    print(assemble(parts, arguments.version, arguments.dist))
    return 0


if __name__ == "__main__":
    sys.exit(main())
