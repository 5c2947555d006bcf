"""What an exception says, in one line: for ranks and a launcher that were not there."""

import contextlib
import os
import re
import textwrap
from collections.abc import Sequence

from tf_hvd.core.printable import printable

LONGEST = 600
"""Characters."""
PROGRAM_ENDED = "its program has ended"
"""Why a rank has left that came to the end of its program."""
TRACEBACK = "Traceback (most recent call last):"

# What TensorFlow puts before the text of an error, or before those of several, and after it.
_BEFORE = re.compile(r"^(\(0\) [A-Z_]+: )?(\{\{function_node .*?\}\} )?")
AFTER = re.compile(r"\s*\[Op:\w+\]( name:.*)?$")
# Lines above that text, which do not say what happened.
_TITLE = re.compile(
    r"(in user code|Graph execution error):$|Exception encountered when calling .*\.$"
    r"|\d+ root error\(s\) found\.$"
)
_CODE = re.compile(r"^[ \t]*```.*?(?:^[ \t]*```[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_BOLD = re.compile(r"\x1b\[[01]m")
_WORD = re.compile(r"\w")
# Characters of a line that may be broken in the middle of a sentence.
_NARROWEST = 40
FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+)(, in (?P<function>.+))?$')
# What Python prints of a program that it cannot read has frames at most before it.
_UNREADABLE = re.compile(r"(SyntaxError|IndentationError|TabError)\b")
# Of Python and what is installed for it; and of this package, which may lie elsewhere.
_INSTALLED = re.compile(r"^<|/(site|dist)-packages/|/lib/python3\.\d+/")
_OWN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
# What AutoGraph has made of a user's function, in a file that goes with the process; and what it
# says of the function itself.
_GENERATED = re.compile(r"/__autograph_generated_file\w*\.py$")
_CONVERTED = re.compile(r'^ +File "(.+)", line (\d+), in (\S+)(?:  \*{1,2})?$', re.MULTILINE)


def of(error: BaseException) -> str:
    """An exception's type and text, as the last line of Python's traceback has it."""
    try:
        text = str(error)
    except Exception:
        text = "<exception str() failed>"
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def short(text: str) -> str:
    """The line of an exception that says what happened, after its type.

    Messages may be long: TensorFlow's have headings, tracebacks and nodes.
    """
    kind, _, message = text.partition(": ")
    found = line_of(message)
    if not found:  # as of a debugger that was left
        return kind
    return shorten(found if found.startswith(kind) else f"{kind}: {found}")


def shorten(line: str) -> str:
    return printable(textwrap.shorten(line, LONGEST, placeholder=" ..."))


def printed(lines: Sequence[str]) -> tuple[str, str]:
    """What a traceback says, as Python has printed it, and the user's own line that it ends in.

    Returns:
      The exception as `short` has it, or the last line where there is none; and the place, empty
      if there is none.
    """
    starts = [number for number, line in enumerate(lines) if line == TRACEBACK]
    last = lines[starts[-1] + 1 if starts else 0 :]
    number = next((n for n, line in enumerate(last) if line and not line.startswith(" ")), None)
    if number is None or not (starts or _UNREADABLE.match(last[number])):
        return lines[-1].strip(), ""
    kind, colon, message = last[number].partition(": ")
    # What follows an exception without a message is none.
    message = "\n".join([message, *last[number + 1 :]]) if colon else ""
    frames = [*filter(None, map(FRAME.match, last[:number]))]
    where = place([(each["file"], each["line"], each["function"]) for each in frames], message)
    kind = kind.rpartition(".")[2]
    return short(f"{kind}: {message}") if colon else kind, where


def place(frames: Sequence[tuple[str, int | str | None, str | None]], message: str) -> str:
    """The innermost line of the user's own in a traceback; empty if there is none.

    Of each frame, the innermost last, there are file, line and function.
    """
    for file, line, function in reversed(frames):
        if _GENERATED.search(file):
            own = [each for each in _CONVERTED.findall(message) if not is_others(each[0])]
            if own:
                return _place(*own[-1])
        elif not is_others(file):
            return _place(file, line, function)
    return ""


def is_others(file: str) -> bool:
    """Whether a file is Python's or an installed package's, or AutoGraph has made it."""
    # Cheapest first: frames of every traced op are asked about, most of them this package's.
    return file.startswith(_OWN) or bool(_INSTALLED.search(file) or _GENERATED.search(file))


def from_here(file: str) -> str:
    """A file's name without the folder that this process is in."""
    with contextlib.suppress(OSError):  # the folder may be gone
        return file.removeprefix(os.path.join(os.getcwd(), ""))
    return file


def _place(file: str, line: int | str | None, function: str | None) -> str:
    where = f"{from_here(file)}, line {line}"
    return f"{where}, in {function}" if function else where


def line_of(message: str) -> str:
    """The first sentence of a message that says what happened, with the rest of its line.

    Without what TensorFlow's and Keras' messages have besides: headings, code, bold type.
    """
    text = message.partition("\nOriginal stack trace for")[0]
    lines = [line.strip() for line in _CODE.sub("", _BOLD.sub("", text)).splitlines()]
    lines = lines[_heading(lines) :]
    telling = (n for n, line in enumerate(lines) if _WORD.search(line) and not _TITLE.match(line))
    first = next(telling, None)
    if first is None:
        return message.strip()
    told = _BEFORE.sub("", lines[first])
    for line in lines[first + 1 :]:
        if told.endswith(":") and ". " in told:  # a list or code follows
            return told[: told.rindex(". ") + 1]
        # A sentence that was broken to fit a page.
        broken = len(told) >= _NARROWEST and told[-1] not in ".!?" and line[:1].islower()
        if not (told.endswith(":") or broken):
            break
        told = f"{told} {line}".rstrip()
    return AFTER.sub("", told)


def _heading(lines: Sequence[str]) -> int:
    """How many lines of an exception come before its text.

    In TensorFlow's and Keras' a traceback may: the text comes after that and an empty line; in a
    session, after that and the names of nodes.
    """
    frames = [number for number, line in enumerate(lines) if line.startswith('File "')]
    nodes = [number for number, line in enumerate(lines) if line.startswith("Node: '")]
    if nodes:
        return nodes[-1] + 1
    if frames:
        return lines.index("", frames[-1]) if "" in lines[frames[-1] :] else frames[-1]
    return 0
