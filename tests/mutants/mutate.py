"""Write a copy of a source file with one known flaw.

A copy is made only if the text to be replaced occurs exactly once in the file. A change of
that text therefore requires a check of the flaw.
"""

import argparse
import pathlib
import sys

import tomllib


def mutate(table: pathlib.Path, name: str, source: pathlib.Path) -> str:
    """Return the text of `source` with the table's flaw `name` applied.

    Args:
        table: TOML file with a section for each flaw: its `source` file, the `sound` text and the
            `flawed` text that replaces it.
        name: section of the table.
        source: file to apply the flaw to.

    Raises:
        ValueError: unknown flaw, wrong source, or the text does not occur exactly once.
    """
    flaws = tomllib.loads(table.read_text(encoding="utf-8"))
    if name not in flaws:
        raise ValueError(f"{table} has no {name}")
    flaw = flaws[name]
    text = source.read_text(encoding="utf-8")
    if source.name != flaw["source"]:
        raise ValueError(f"{name} is a flaw in {flaw['source']}, not in {source.name}")
    count = text.count(flaw["sound"])
    if count != 1:
        raise ValueError(
            f"{name}: the text to replace occurs {count} times in {source}, not once:\n"
            f"{flaw['sound']}"
        )
    return text.replace(flaw["sound"], flaw["flawed"])


def main() -> None:
    """Read the command line and write the copy."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=pathlib.Path)
    parser.add_argument("mutant")
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    flags = parser.parse_args()
    try:
        text = mutate(flags.table, flags.mutant, flags.source)
    except ValueError as error:
        sys.exit(f"mutate.py: {error}")
    flags.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
