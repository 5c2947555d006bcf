"""How simulate_scale.py prints what it finds: line by line, for a terminal or for a document."""

from collections.abc import Sequence

from absl import flags

_MARKDOWN = flags.DEFINE_bool("markdown", False, "tables as docs/scaling.md has them")


class Table:
    """A table that is printed while it is made: its rows take minutes each."""

    def __init__(self, *head: str):
        self._head, self._widths = head, [len(each) for each in head]
        self._begun = False

    def row(self, *cells: str) -> None:
        """Prints a row, and the head before the first."""
        if not self._begun:
            self._begun = True
            self._widths = [
                max(width, len(cell)) for width, cell in zip(self._widths, cells, strict=True)
            ]
            self._print(self._head)
            if _MARKDOWN.value:
                print("|---" * len(self._head) + "|")
        self._print(cells)

    def _print(self, cells: Sequence[str]) -> None:
        if _MARKDOWN.value:
            print("|", *(f"{cell} |".lstrip() for cell in cells), flush=True)
        else:
            padded = map(str.ljust, cells, self._widths)
            print("  ".join(padded).rstrip(), flush=True)


def percent(part: float) -> str:
    """As "93.8 %"."""
    return f"{100 * part:.1f} %"


def points(part: float) -> str:
    """A difference in percent, as "+0.5", or "−0.5" in a document."""
    text = f"{round(100 * part, 9):+.1f}"  # 3.75 is 3.8, and 3.7499999999999978 as well
    return text.replace("-", "−") if _MARKDOWN.value else text
