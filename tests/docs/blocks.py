"""Finds the code blocks of README.md, CONTRIBUTING.md and docs/, and how each block is tested.

A comment before a block of Python or of commands says how:

- `<!-- runs: SETUP -->`: Python, with the names that SETUP of
  tests/python/parallel/docs_test.py provides, in a job of two ranks; `runs: continues` with the
  names of the previous block.
- `<!-- runs: separately on N ranks -->`: Python, in a separate job. `runs: script`: Python, in a
  separate process.
- `<!-- file: NAME -->`: a file that commands of the same page run.
- `<!-- runs: commands -->`: a shell runs them, in order, in one folder for each page.
  `runs: commands that fail`: their exit code is not 0.
- `<!-- runs: in FILE -->`: a test that reads the page.
- `<!-- not run: REASON -->`. Options of commands are parsed nevertheless.

Blocks of `text` are output of programs, formulas, and files without code.
"""

import dataclasses
import pathlib
import re

from markdown_it import MarkdownIt

ROOT = pathlib.Path(__file__).resolve().parents[2]
CODE = ("python", "sh", "console")
COMMANDS = ("commands", "commands that fail")
TAG = re.compile(r"<!-- (runs|not run|file): (\S.*?) -->\s*")
SEPARATE = re.compile(r"separately on (\d) ranks")
ELSEWHERE = re.compile(r"in (tests/\S+_test\.py)")
# Lines that are code, whatever the language of the block.
LOOKS_LIKE_CODE = re.compile(
    r"^(\$ |(tf_hvd (run|bench|doctor|strip-ops)|horovodrun|mpirun|pip|python) \S*[^\s:]( |$)"
    r"|import \w+$|from \w+ import )",
    re.MULTILINE,
)


@dataclasses.dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    kind: str  # "runs", "not run", "file", or "" without a comment
    how: str
    text: str

    def __str__(self):
        return f"{self.page}:{self.line}"


def blocks_of(page, text):
    """Fenced and indented blocks, in order."""
    found = []
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for before, token in zip([None, *tokens], tokens, strict=False):
        if token.type not in ("fence", "code_block"):
            continue
        tag = before and before.type == "html_block" and TAG.fullmatch(before.content)
        kind, how = tag.groups() if tag else ("", "")
        language = token.info.strip() if token.type == "fence" else "indented"
        found.append(Block(page, token.map[0] + 1, language, kind, how, token.content))
    return found


def all_blocks():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [
        block
        for page in pages
        for block in blocks_of(str(page.relative_to(ROOT)), page.read_text())
    ]


def has_own_process(block):
    """Whether a block of Python runs outside the job of two ranks."""
    return block.how == "script" or bool(
        SEPARATE.fullmatch(block.how) or ELSEWHERE.fullmatch(block.how)
    )


def python_groups(blocks):
    """Groups of blocks for the job of two ranks: a block, and the blocks that continue it."""
    groups = []
    for block in blocks:
        if block.language != "python" or block.kind != "runs":
            continue
        if block.how == "continues":
            groups[-1].append(block)
        elif not has_own_process(block):
            groups.append([block])
    return groups


def _language_fault(block):
    if block.language not in (*CODE, "text"):
        return f"a block is python, sh, console or text, not {block.language!r}"
    if block.language == "text":
        return "code in a block of text" if LOOKS_LIKE_CODE.search(block.text) else ""
    return "" if block.kind else "the block says neither how it runs nor why it does not"


def _file_fault(block, blocks):
    used = [b.text for b in blocks if b.page == block.page and b.how in COMMANDS]
    return (
        ""
        if any(block.how in text for text in used)
        else f"no command of the page runs {block.how}"
    )


def _reason_fault(block):
    paths = re.findall(r"tests/[\w./]*\w", block.how)
    gone = [path for path in paths if not (ROOT / path).exists()]
    return f"{', '.join(gone)} does not exist" if gone else ""


def _run_fault(block, setups):
    elsewhere = ELSEWHERE.fullmatch(block.how)
    if elsewhere:
        file = ROOT / elsewhere.group(1)
        reads = file.is_file() and block.page in file.read_text()
        return "" if reads else f"{elsewhere.group(1)} does not read the page"
    if block.language == "python":
        known = block.how in (*setups, "continues") or has_own_process(block)
        return "" if known else f"there is no set-up {block.how!r}"
    known = block.language == "sh" and block.how in COMMANDS
    return "" if known else "commands run as `sh`, by `runs: commands`"


def faults(blocks, setups):
    """The faults in the comments of blocks."""
    found = []
    for block in blocks:
        fault = _language_fault(block)
        if block.language != "text" and not fault:
            fault = {
                "file": lambda block=block: _file_fault(block, blocks),
                "not run": lambda block=block: _reason_fault(block),
                "runs": lambda block=block: _run_fault(block, setups),
            }[block.kind]()
        if fault:
            found.append(f"{block}: {fault}")
    return found
