"""Builds the image of containers/tf_hvd.def with debootstrap and chroot, without an engine.

python tests/containers/image.py FOLDER runs the file's %files, %post and %test.
"""

from __future__ import annotations

import argparse
import glob
import os
import pathlib
import re
import shlex
import shutil
import ssl
import subprocess
import sys
from collections.abc import Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEFINITION = ROOT / "containers" / "tf_hvd.def"
MIRROR = "http://deb.debian.org/debian"
# Files of this machine that %post needs to reach Debian and PyPI; copied, since the image may
# change them.
_OF_THE_MACHINE = ("/etc/resolv.conf", "/etc/hosts")
_TRUSTED = "/run/trusted.crt"


def why_not() -> str:
    """Why this machine cannot build an image; empty if it can."""
    if os.geteuid() != 0:
        return "only root can build an image"
    missing = [tool for tool in ("debootstrap", "chroot", "unshare") if not shutil.which(tool)]
    return f"missing: {', '.join(missing)}" if missing else ""


def sections(text: str) -> dict[str, str]:
    """The sections of a definition by name; the header is named `header`."""
    pieces = re.split(r"^%(\w+)\n", "%header\n" + text, flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def release_of(header: str) -> str:
    """The name of the base image's Debian release."""
    names = {"12": "bookworm", "13": "trixie"}
    found = re.search(r"^Bootstrap: docker\nFrom: debian:(\d+)-slim$", header, flags=re.MULTILINE)
    if not found:
        raise ValueError(f"not a Debian image: {header!r}")
    return names[found[1]]


def _copy_files(lines: str, root: pathlib.Path) -> None:
    for line in filter(None, map(str.strip, lines.splitlines())):
        source, to = line.split()
        found = glob.glob(str(ROOT / source))
        if not found:
            raise FileNotFoundError(f"{source}: run ./dev wheel")
        folder = root / to.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        for file in found:
            shutil.copy(file, folder)


def enter(root: pathlib.Path, command: Sequence[str]) -> list[str]:
    """The command line that runs a command in the image, in new mount and process namespaces."""
    mounts = [f"mount -t proc proc {root}/proc", f"mount --rbind /dev {root}/dev"]
    script = "; ".join(["set -e", *mounts, f'exec chroot {root} "$@"'])
    namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
    return [*namespaces, "sh", "-c", script, "sh", *command]


def environment() -> dict[str, str]:
    """The environment of a container's first process, plus pip's settings for its index here."""
    path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {"PATH": path, "HOME": "/root", "TF_CPP_MIN_LOG_LEVEL": "3", "PIP_CERT": _TRUSTED}


def run(root: pathlib.Path, script: str, environ: Mapping[str, str] | None = None) -> None:
    """Run a section's text as Apptainer does, with sh, up to the first error."""
    command = enter(root, ["/bin/sh", "-ec", script])
    done = subprocess.run(
        command,
        env=dict(environ or environment()),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}:\n{done.stdout[-4000:]}")


def make(root: pathlib.Path) -> None:
    """Build the image: its base, %files and %post."""
    parts = sections(DEFINITION.read_text())
    release = release_of(parts["header"])
    command = ["debootstrap", "--variant=minbase", release, str(root), MIRROR]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for path in filter(os.path.exists, _OF_THE_MACHINE):
        shutil.copy(path, root / path.lstrip("/"))
    trusted = os.environ.get("PIP_CERT") or ssl.get_default_verify_paths().openssl_cafile
    shutil.copy(trusted, root / _TRUSTED.lstrip("/"))
    _copy_files(parts["files"], root)
    run(root, parts["post"])


def test(root: pathlib.Path) -> None:
    """Run the definition's %test."""
    run(root, sections(DEFINITION.read_text())["test"])


def variables(root: pathlib.Path) -> dict[str, str]:
    """The variables that %environment sets."""
    exports = sections(DEFINITION.read_text())["environment"] + "\nenv -0"
    command = enter(root, ["/bin/sh", "-ec", exports])
    told = subprocess.run(command, env=environment(), check=True, capture_output=True, text=True)
    pairs = (entry.split("=", 1) for entry in told.stdout.split("\0") if entry)
    return {name: text for name, text in pairs if name not in ("PWD", "_")}


def main() -> int:
    """Build an image and test it."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument(
        "folder", type=pathlib.Path, help="folder for the image, which must not exist"
    )
    options = parser.parse_args()
    reason = why_not()
    if reason:
        print(f"no image here: {reason}", file=sys.stderr)
        return 2
    make(options.folder.resolve())
    test(options.folder.resolve())
    print(f"chroot {shlex.quote(str(options.folder))} has tf_hvd in /opt/tf_hvd")
    return 0


if __name__ == "__main__":
    sys.exit(main())
