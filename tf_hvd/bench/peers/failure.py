"""What a program that failed says of it, among all that it and its launcher have printed."""

import itertools
import re
from collections.abc import Sequence

_LONGEST = 400
# As horovodrun and mpirun put it before a rank's lines.
_LABEL = re.compile(r"\[\d+(,\d+)?\]<std\w+>:? ?")
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("The above exception was", "During handling of the above")
# TensorFlow's and Python's own lines that are no failure.
_REMARKS = re.compile(r"\d{4}-\d\d-\d\d .*: [IW] |[IW]\d{4} |WARNING: |\S+: \w*Warning: ")


def failure_in(text: str) -> str:
    """The exception of the first traceback, else the first paragraph with words; may be empty."""
    lines = [_LABEL.sub("", line.rstrip()) for line in text.splitlines()]
    return (_exception(lines) or _paragraph(lines))[:_LONGEST]


def _exception(lines: Sequence[str]) -> str:
    """What the first traceback ends with; of exceptions that caused each other the last."""
    found, inside = "", False
    for line in lines:
        if line == _TRACEBACK:
            inside = True
        elif inside:
            if line and not line[0].isspace():
                found, inside = line, False
        elif found and line and not line.startswith(_CHAINED):
            break
    return found


def _paragraph(lines: Sequence[str]) -> str:
    """Launchers wrap their texts, between lines of dashes."""
    said = [line for line in lines if not _REMARKS.match(line)]
    first = itertools.dropwhile(lambda line: not _has_words(line), said)
    return " ".join(line.strip() for line in itertools.takewhile(_has_words, first))


def _has_words(line: str) -> bool:
    return any(each.isalpha() for each in line)
