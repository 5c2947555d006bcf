"""Prints the results of simulate_scale.py line by line, for a terminal or for a document."""

from collections.abc import Sequence

from absl import flags

_MARKDOWN = flags.DEFINE_bool("markdown", False, "print tables in the Markdown of docs/scaling.md")


class Table:
    """A table that is printed row by row, since each row takes minutes."""

    def __init__(self, *head: str):
        self._head, self._widths = head, [len(each) for each in head]
        self._begun = False

    def row(self, *cells: str) -> None:
        """Print a row, and the head before the first row."""
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
    """A fraction as text, for example "93.8 %"."""
    return f"{100 * part:.1f} %"


def points(part: float) -> str:
    """A difference in percent as text: "+0.5", or "−0.5" in a document."""
    text = f"{round(100 * part, 9):+.1f}"  # so that both 3.75 and 3.7499999999999978 give 3.8
    return text.replace("-", "−") if _MARKDOWN.value else text
