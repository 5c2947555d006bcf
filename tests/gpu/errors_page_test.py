"""The table of errors in docs/gpus.md has all that the code for GPUs may say, and nothing else.

A text of the code is what a call that makes an error is given: its literals, with `{}` for what
is filled in. A row quotes a part of a text, with examples for that, and "..." for what is left out.
"""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
SOURCES = [
    *sorted((ROOT / "runtime/transport/gpu").glob("*.cc")),
    ROOT / "kernels/gpu_memory.cc",
]
# What these say of GPUs is in the table as well.
ALSO = [ROOT / "runtime/executor.cc", ROOT / "runtime/request.cc"]
CALLS = re.compile(
    r"\b(?:FailedPrecondition|InvalidArgument|Aborted|Unavailable|Internal|WithContext)\("
)
EXAMPLES = re.compile(
    r"rank \d+|NCCL_ALGO=\w+|NCCL_ALGO|CUDA_ERROR_\w+|\b(?:cu|nccl)[A-Z]\w+|\d+(?:\.\d+)*"
)
LEAST = 10  # of a text that says something


def argument(text, start):
    """What stands in the parentheses that open before `start`."""
    depth, in_literal = 1, False
    for end in range(start, len(text)):
        if text[end] == '"' and text[end - 1] != "\\":
            in_literal = not in_literal
        elif not in_literal:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
        if depth == 0:
            return text[start:end]
    raise AssertionError("parentheses that do not close")


def filled(expression):
    """The literals of a C++ expression, with {} for all that stands between them."""
    literals = r'"((?:[^"\\]|\\.)*)"'
    parts = re.split(literals, expression)
    last = len(parts) - 1
    text = ""
    for i, part in enumerate(parts):
        if i % 2:
            text += part
        elif 0 < i < last and part.strip():
            text += "{}"
        elif i == 0 and re.search(r"\w", part.replace("std::string(", "")):
            text = "{}"
    return text


def texts(source):
    """All that a file may say, but for bugs of ours and for places that are named."""
    found = []
    for call in CALLS.finditer(source):
        given = argument(source, call.end())
        if re.search(r"\btext\b", given):  # which was begun before
            begun = source.rindex("std::string text", 0, call.start())
            given = source[source.index("=", begun) + 1 : call.start()] + given
        text = filled(given)
        long = re.sub(r"\{\}|\W", "", text)
        if len(long) >= LEAST and not text.startswith("bug in tf_hvd"):
            found.append(text)
    return found


def rows(page):
    """The quoted pieces of each row of the table, with {} for examples."""
    table = page.partition("\n## Errors\n")[2].partition("\n## ")[0]
    found = {}
    for line in re.findall(r"^\| (?!text|---)(.*?) \|", table, re.MULTILINE):
        for quote in re.findall(r'"([^"]+)"', line):
            pieces = [EXAMPLES.sub("{}", piece).strip() for piece in quote.split("...")]
            found[quote] = [piece for piece in pieces if len(piece) >= LEAST]
    return found


def says(text, pieces):
    return any(piece in text for piece in pieces)


def unexplained(source, page):
    return [t for t in texts(source) if not any(says(t, p) for p in rows(page).values())]


def test_each_error_is_in_the_table():
    page = (ROOT / "docs/gpus.md").read_text()
    missing = [text for path in SOURCES for text in unexplained(path.read_text(), page)]
    assert not missing, "docs/gpus.md, Errors: what is a user to do?"


def test_each_row_is_of_an_error():
    page = (ROOT / "docs/gpus.md").read_text()
    said = [text for path in [*SOURCES, *ALSO] for text in texts(path.read_text())]
    said += [filled(path.read_text()) for path in ALSO]
    assert len(rows(page)) >= 8
    gone = [quote for quote, pieces in rows(page).items() if not any(says(t, pieces) for t in said)]
    assert not gone, "nothing says it any more"


def test_what_is_missing_is_found():
    source = """
      std::string text = std::string(call) + " failed: ";
      text += " (" + meaning + ")";
      return Aborted(text + "; NCCL_DEBUG=WARN says more");
      return FailedPrecondition("rank " + std::to_string(3) +
                                " has no GPU (number " + number + "), and needs one");
      return Internal("bug in tf_hvd: nothing serves it");
      status.WithContext("GPU " + number);
    """
    assert texts(source) == [
        "{} failed: {} ({}){}; NCCL_DEBUG=WARN says more",
        "rank {} has no GPU (number {}), and needs one",
    ]
    page = (
        '# P\n\n## Errors\n\n| text | cure |\n|---|---|\n| "{}" | do |\n\n## Next\n\n| "x" | y |\n'
    )
    assert rows(page.format("... has no GPU (number 0), and")) == {
        "... has no GPU (number 0), and": ["has no GPU (number {}), and"]
    }
    first, second = texts(source)
    assert unexplained(source, page.format("... has no GPU (number 0), and")) == [first]
    assert unexplained(source, page.format("ncclSend failed: ...; NCCL_DEBUG=WARN says")) == [
        second
    ]
    assert unexplained(source, page.format("something else")) == [first, second]
