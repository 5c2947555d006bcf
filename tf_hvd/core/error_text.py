"""What an exception says, in one line: for ranks and a launcher that were not there."""

import re
import textwrap
from collections.abc import Sequence

LONGEST = 600
"""Characters."""

# What TensorFlow puts before the text of an error, or before those of several, and after it.
_BEFORE = re.compile(r"^(\(0\) [A-Z_]+: )?(\{\{function_node .*?\}\} )?")
AFTER = re.compile(r"\s*\[Op:\w+\]( name:.*)?$")
_SEVERAL = re.compile(r"^\d+ root error\(s\) found\.$")


def short(text: str) -> str:
    """The line of an exception that says what happened, after its type.

    Args:
      text: "ValueError: " and its message, which may be long: TensorFlow's have headings,
        tracebacks and nodes.
    """
    return shorten(_gist(text))


def shorten(line: str) -> str:
    """As much of it as others are told."""
    return textwrap.shorten(line, LONGEST, placeholder=" ...")


def _gist(text: str) -> str:
    """The line of an exception that says what happened, after its type."""
    kind, _, message = text.partition(": ")
    lines = [
        line.strip() for line in message.partition("\nOriginal stack trace for")[0].splitlines()
    ]
    told = (line for line in lines[_heading(lines) :] if line and not _SEVERAL.match(line))
    found = AFTER.sub("", _BEFORE.sub("", next(told, message.strip())))
    return found if found.startswith(kind) else f"{kind}: {found}"


def _heading(lines: Sequence[str]) -> int:
    """How many lines of an exception come before its text.

    TensorFlow's and Keras' begin with a heading, and a traceback may follow: the text comes after
    that and an empty line; in a session, after that and the names of nodes.
    """
    frames = [number for number, line in enumerate(lines) if line.startswith('File "')]
    nodes = [number for number, line in enumerate(lines) if line.startswith("Node: '")]
    if nodes:
        return nodes[-1] + 1
    if frames:
        return lines.index("", frames[-1]) if "" in lines[frames[-1] :] else frames[-1]
    return 1 if lines and lines[0].endswith((":", "().")) else 0
