"""Prints a program that uses every name of the API reference, for type checkers."""

import pathlib
import re

PAGE = pathlib.Path(__file__).resolve().parent.parent / "docs" / "api.md"


def names(page: str) -> list[str]:
    """Names after `tf_hvd.` in the reference, without modules and classes used only there."""
    found = re.findall(r"^::: tf_hvd\.(.+)$", page, re.MULTILINE)
    return [name for name in found if not re.match(r"(collectives|core)\.", name)]


def main() -> None:
    """Print the program."""
    print("import tf_hvd as hvd\nimport tf_hvd.keras as hvd_keras\n\nused: list[object] = [")
    for name in names(PAGE.read_text(encoding="utf-8")):
        short = name.removeprefix("keras.")
        print(f"    hvd.{short},\n    hvd_keras.{short},")
    print("]")


if __name__ == "__main__":
    main()
