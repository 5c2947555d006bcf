"""Evidence that takes too long for every day: `./dev prove NAME [--short]`.

Each proof is a function `prove(short)` of its module, or `prove_NAME` in a module with another
name. It returns a table, or raises an AssertionError that names the failure. Without --short the
table is written into a page of docs/, with the commit that it was made on.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import importlib
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "evidence.md"
# Proofs with their table on another page.
PAGES = {
    "faults": ROOT / "docs" / "failures.md",
    "call": ROOT / "docs" / "life_of_an_allreduce.md",
}
# Proofs with a heading that is not their name.
HEADINGS = {"call": "Files and forms"}
# Proofs in a module with another name.
MODULES = dict.fromkeys(("seeds", "fuzz", "wheels"), "programs") | {
    "coverage": "line_coverage",
    "keras": "keras_results",
}
# The same as in dev_support/prove.sh.
NAMES = (
    "kills",
    "soak",
    "seeds",
    "faults",
    "fuzz",
    "wheels",
    "coverage",
    "call",
    "elastic",
    "sizes",
    "keras",
)


@dataclasses.dataclass
class Table:
    """The results, row by row."""

    claim: str
    """A sentence about the meaning of the rows."""
    columns: Sequence[str]
    rows: list[Sequence[object]] = dataclasses.field(default_factory=list)

    def add(self, *row: object) -> None:
        self.rows.append(row)
        print("  ".join(map(str, row)), flush=True)

    def markdown(self) -> str:
        lines = [self.columns, ["---"] * len(self.columns), *self.rows]
        return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


def with_section(page: str, heading: str, text: str) -> str:
    """The page, in which `text` replaces the proof's section or is added at the end."""
    section = f"## {heading}\n\n{text}"
    old = re.compile(rf"^## {heading}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    if old.search(page):
        return old.sub(lambda _: section + "\n", page).rstrip() + "\n"
    return f"{page.rstrip()}\n\n{section}"


def commit() -> str:
    git = ["git", "-c", "safe.directory=*"]
    sha = subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], cwd=ROOT, text=True)
    written = [f":!{page.relative_to(ROOT)}" for page in (PAGE, *PAGES.values())]
    status = [*git, "status", "--porcelain", "--", ".", *written]
    changed = subprocess.check_output(status, cwd=ROOT, text=True)
    return f"{sha.strip()}{' with changes' if changed else ''}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="./dev prove")
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--short", action="store_true", help="run a few cases, write no page")
    arguments = parser.parse_args()
    make(arguments.name, arguments.short)


def make(name: str, short: bool) -> None:
    """Makes a proof's table and, except in the short form, writes it."""
    module = importlib.import_module(MODULES.get(name, name))
    prove = getattr(module, f"prove_{name}" if name in MODULES else "prove")
    started = time.monotonic()
    table = prove(short)
    minutes = (time.monotonic() - started) / 60
    assert table.rows, "the proof ran no cases"
    if not short:
        made = (
            f"`./dev prove {name}`, {datetime.date.today()}, commit {commit()}, "
            f"{os.cpu_count()} cores, {minutes:.0f} min."
        )
        text = f"{table.claim}\n\n{table.markdown()}\n{made}\n"
        page = PAGES.get(name, PAGE)
        heading = HEADINGS.get(name, name)
        page.write_text(with_section(page.read_text(), heading, text))
    print(f"{name}: {table.claim}")


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).parent))
    main()
