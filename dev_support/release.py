"""Check a release before it is published: `python3 dev_support/release.py COMMAND`.

- check [TAG]: check that the version, the changelog and the tag agree.
- wheel PATH: check that PATH is the portable wheel of this version.
- notes: print the changelog of this version.

The version is written in pip_package/version.bzl only. .github/workflows/release.yml calls this
script, and tests/release_test.py tests it. It needs only Python's standard library.
"""

import argparse
import pathlib
import re
import sys
import tomllib
import zipfile
from email.parser import Parser

ROOT = pathlib.Path(__file__).resolve().parent.parent
PLATFORM = "manylinux_2_27_x86_64"  # of ./dev wheel --portable


class ReleaseError(Exception):
    """The release must not be published; the text says why."""


def version_of(root: pathlib.Path) -> str:
    text = (root / "pip_package/version.bzl").read_text()
    return re.search(r'^VERSION = "(\d+\.\d+\.\d+)"$', text, re.MULTILINE)[1]


def changes_of(root: pathlib.Path, version: str) -> tuple[str, str]:
    """The date of a version in the changelog, or "unreleased", and its changes."""
    text = (root / "CHANGELOG.md").read_text()
    for section in re.split(r"^(?=## )", text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        found = re.fullmatch(r"## \[(.+)\] - (.+)", heading)
        if found and found[1] == version:
            return found[2], body.strip()
    raise ReleaseError(f"CHANGELOG.md has no section '## [{version}] - DATE'. Add one.")


def check(root: pathlib.Path, tag: str) -> str:
    """Returns a line that describes the release.

    Raises:
      ReleaseError: the tag is not the version's, or the changelog has no date for it.
    """
    version = version_of(root)
    date, _ = changes_of(root, version)
    if not tag:
        return f"{version}, {date}"
    if tag != f"v{version}":
        raise ReleaseError(
            f"The tag is {tag}, but pip_package/version.bzl has {version}. Push the tag v{version}."
        )
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", date):
        raise ReleaseError(
            f"CHANGELOG.md has '{date}' as the date of {version}. Write its date as YYYY-MM-DD."
        )
    return f"{version}, {date}, tag {tag}"


def check_wheel(root: pathlib.Path, wheel: pathlib.Path) -> str:
    """Returns the wheel's name and size.

    Raises:
      ReleaseError: its name or its metadata are not those of the release.
    """
    version = version_of(root)
    name = f"tf_hvd-{version}-py3-none-{PLATFORM}.whl"
    if wheel.name != name:
        raise ReleaseError(f"The wheel is {wheel.name}, not {name}. Build it by ./dev wheel "
                           "--release --portable.")  # fmt: skip
    with zipfile.ZipFile(wheel) as archive:
        text = archive.read(f"tf_hvd-{version}.dist-info/METADATA").decode()
    metadata = Parser().parsestr(text)
    source = tomllib.loads((root / "pip_package/metadata.toml").read_text())
    if metadata["Version"] != version or metadata.get_all("Classifier") != source["classifiers"]:
        raise ReleaseError(
            f"The metadata of {wheel.name} is not that of this checkout. Rebuild it."
        )
    return f"{name}, {wheel.stat().st_size} bytes"


def main() -> None:
    parser = argparse.ArgumentParser(description="Check a release before it is published.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check").add_argument("tag", nargs="?", default="")
    commands.add_parser("wheel").add_argument("path", type=pathlib.Path)
    commands.add_parser("notes")
    given = parser.parse_args()
    try:
        if given.command == "check":
            said = check(ROOT, given.tag)
        elif given.command == "wheel":
            said = check_wheel(ROOT, given.path)
        else:
            said = changes_of(ROOT, version_of(ROOT))[1]
    except ReleaseError as error:
        sys.exit(f"release.py: {error}")
    print(said)


if __name__ == "__main__":
    main()
