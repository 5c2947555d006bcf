"""Writes a copy of a source file with one known flaw in it.

A copy is made only if the text to be replaced is in the file exactly once: who changes
that text must look at the flaw again.
"""

import argparse
import pathlib
import sys

import tomllib


def mutate(table: pathlib.Path, name: str, source: pathlib.Path) -> str:
    """Gives the text of `source` with the flaw `name` of the table in it.

    The table has for each flaw its `source`, the text that is `sound`, and what is there
    instead, `flawed`.
    """
    flaws = tomllib.loads(table.read_text(encoding="utf-8"))
    if name not in flaws:
        raise ValueError(f"{table} has no {name}")
    flaw = flaws[name]
    text = source.read_text(encoding="utf-8")
    if source.name != flaw["source"]:
        raise ValueError(f"{name} is a flaw of {flaw['source']}, not of {source.name}")
    count = text.count(flaw["sound"])
    if count != 1:
        raise ValueError(
            f"{name}: the text to replace is {count} times in {source}, not once:\n{flaw['sound']}"
        )
    return text.replace(flaw["sound"], flaw["flawed"])


def main() -> None:
    """Reads the command line and writes the copy."""
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
