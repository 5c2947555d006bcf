"""Checks the project's English: `python dev_support/plain_english.py [FILES]`.

Every tracked text file is checked for the words of WORDS. Markdown, docstrings and help texts
are also checked for long sentences and for openings that hide a sentence's subject. Prints one
line for each finding and exits with 1 if there are any; `--count` prints totals by file.
"""

import argparse
import ast
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
CODE = {"", ".bzl", ".cc", ".cu", ".def", ".h", ".py", ".pyi", ".sh"}
CHECKED = {*CODE, ".cfg", ".md", ".toml", ".yaml", ".yml"}
EXEMPT = {"LICENSE", "dev_support/plain_english.py", "tests/docs/plain_english_test.py"}
MAX_WORDS = 25

COMPARED = "(longer|more|less|greater|later|earlier|larger|smaller|different)"
PRONOUN = "(it|they|there|this|that|these|those|we|he|nothing)"
AFTER_TRAINING = "(that|which|of|in|on|to|is|was|has|and|or)"
AFTER_THERE = "(is|are|to|and|or|no|already|when|if|where|for|at|but|it|which)"
RIGHT_BEFORE_ALONE = (
    "is",
    "are",
    "run",
    "runs",
    "ran",
    "train",
    "trains",
    "left",
    "leave",
    "stands",
)
BEFORE_ALONE = "".join(rf"(?<!\b{verb} )" for verb in RIGHT_BEFORE_ALONE)
# Words of translated prose, and the field's words for them.
WORDS = {
    r"whose": "of which, with, or the noun",
    r"nobody": "no rank, no user, nothing",
    r"somebody": "a user, a program, another thread",
    r"who(m?)ever": "any rank that, a user that",
    r"anew": "again, from the start",
    r"(go|goes|went|gone|going) on": "continue",
    r"(as|so) ever": "as usual",
    r"so (many|long)(?! (as|that)\b)": "N, for this long",
    r"(lie|lies|lay) (in|there|at|on)": "is in, is stored in",
    r"(told|tell|tells) (of|apart)": "reported, distinguished",
    r"(is|are|was|were|be|been) told": "gets an error, is reported",
    r"be (it|they)": "whether",
    r"in vain": "without effect",
    r"under way": "in progress",
    r"by way of": "through",
    r"without end": "indefinitely",
    r"for ever": "indefinitely",
    r"(put|puts|putting) together": "pack, combine",
    r"(take|takes|took|taken) turns": "alternate, are interleaved",
    r"in turns": "interleaved",
    r"(has|have|had) to be": "must be",
    r"(pays|pay off)": "is worth it",
    r"is through(?! (a|an|the|its)\b)": "has finished",
    r"of (its|their|his|our|your) own": "its own, separate",
    rf"{BEFORE_ALONE}(?-i:(?<!\")alone(?![_(]))": "only, on its own, by itself",
    r"the way (there|back)": "the path",
    r"see(s|n)? to it": "ensures",
    rf"(?<!there )is no(?! {COMPARED}\b)": "is not a",
    rf"(?<!there )are no(?! {COMPARED}\b)": "are not",
    rf"(is|are) there(?= {AFTER_THERE}\b|[.,;:)])": "exists, is installed",
    r"has come(?! from\b)": "has arrived, was received",
    rf"(?<=, )for {PRONOUN} (is|are|was|were|has|have|may|can|would)": "because",
    r"hence|whence|thence|whereof|thereof|therein|thereby|hereby|thereupon": "a plain conjunction",
    r"another [\w-]+ than": "a different X from",
    r"an own": "its own, a separate",
    r"(say|says|said|saying) so": "reports this, prints a message",
    rf"a training(?= {AFTER_TRAINING}\b|[.,;:])": "training, a training run",
    r"behind (it|them|the others)": "after",
    r"beside (it|them|the)": "next to, in the background of",
}  # fmt: skip
OPENINGS = re.compile(
    r"(what|whose|who|whoever|whom|of (?!course\b)\S+|left out (is|are)|to a)\b", re.IGNORECASE
)


# A space in WORDS also matches a line break, in a comment or in a string of several lines.
BREAK = r"(?:[ \t]+|\s*\n[ \t]*(?://+|\#+|\*|\")?[ \t]*)"


def compiled(words: str) -> re.Pattern[str]:
    """A pattern that matches these words across a line break."""
    outside_lookarounds = re.split(r"(\(\?(?:<?[=!])(?:[^()]|\([^()]*\))*\))", words)
    parts = [p if p.startswith("(?") else p.replace(" ", BREAK) for p in outside_lookarounds]
    return re.compile(rf"\b(?:{''.join(parts)})\b", re.IGNORECASE)


PATTERNS = {compiled(words): better for words, better in WORDS.items()}


# "name (type): ", or an exception's "tf.errors.InvalidArgumentError: ", in a docstring.
ARGUMENT = r"\**[\w.]+( \([^)]*\))?: "


def word_findings(text: str) -> Iterator[tuple[int, str]]:
    """Words of the list, wherever they are."""
    for pattern, better in PATTERNS.items():
        for found in pattern.finditer(text):
            words = " ".join(found.group(0).split())
            yield text.count("\n", 0, found.start()) + 1, f"'{words}': {better}"


def markdown_blocks(text: str) -> Iterator[tuple[int, str]]:
    """Paragraphs, list items, headings and table cells, with the line they begin at."""
    block: list[str] = []
    start = 0
    fence = ""
    for number, line in enumerate([*text.splitlines(), ""], 1):
        stripped = line.strip()
        if fence:
            fence = "" if stripped.startswith(fence) else fence
            continue
        if opened := re.match(r"(`{3,}|~{3,})", stripped):
            fence = opened.group(1)
            stripped = ""
        starts = re.match(r"([-*+]|\d+[.)]|#+|>)\s+|\|", stripped)
        if block and (not stripped or starts):
            yield start, " ".join(block)
            block = []
        if stripped.startswith("|"):
            for cell in re.split(r"(?<!\\)\|", stripped.strip("|")):
                yield number, cell.strip()
        elif (stripped and not re.match(r"(    |\t)", line)) or block:
            if stripped.startswith(("<", "[//]", "--8<--", ":::")) and not block:
                continue
            start = start if block else number
            block.append(re.sub(r"^([-*+]|\d+[.)]|#+|>)\s+", "", stripped))


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Prose of docstrings, without examples, each argument separately."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if not isinstance(node, documented) or ast.get_docstring(node, clean=False) is None:
            continue
        constant = node.body[0].value  # type: ignore[attr-defined]
        yield from prose_blocks(constant.value, constant.lineno)


def help_texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Texts that argparse prints with --help."""
    for node in ast.walk(tree):
        is_help = isinstance(node, ast.keyword) and node.arg in ("help", "description", "epilog")
        if is_help and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from prose_blocks(node.value.value, node.value.lineno)


def prose_blocks(text: str, first: int) -> Iterator[tuple[int, str]]:
    """Blocks of a docstring: those that are indented more than the one before are code."""
    block: list[str] = []
    start, code_indent = first, -1
    for number, line in enumerate([*text.split("\n"), ""], first):
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if code_indent >= 0 and stripped and indent <= code_indent:
            code_indent = -1
        header = re.fullmatch(
            r"(Examples?|Args|Arguments|Returns|Raises|Yields|Attributes|Source|Note)s?:", stripped
        )
        item = re.match(rf"([-*]|\d+\.)\s+|{ARGUMENT}", stripped)
        if block and (not stripped or header or item or code_indent >= 0):
            yield start, " ".join(block)
            block = []
        if (header and stripped.startswith("Example")) or stripped.endswith("::"):
            code_indent = indent
        elif stripped and not header and code_indent < 0 and not stripped.startswith((">>>", "|")):
            start = start if block else number
            body = re.sub(r"^([-*]|\d+\.)\s+", "", stripped)
            block.append(re.sub(rf"^{ARGUMENT}", "", body) if item else body)


def sentences(block: str) -> Iterator[str]:
    plain = re.sub(r"`+[^`]*`+", "CODE", block)
    plain = re.sub(r"CODE(, CODE)+(,? (and|or) CODE)?", "CODE", plain)  # a list of names
    plain = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", plain)
    plain = re.sub(r"https?://\S+|<[^>]*>", "LINK", plain)
    plain = plain.replace("**", "").replace("e.g.", "eg").replace("i.e.", "ie").replace("vs.", "vs")
    yield from re.split(r"(?<=[.!?])[)\"']*\s+(?=[\"'(\[*]*[A-Z0-9])", plain)


def sentence_findings(blocks: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    for number, block in blocks:
        for sentence in sentences(block):
            words = [w for w in sentence.split() if re.search(r"[A-Za-z0-9]", w)]
            if len(words) > MAX_WORDS:
                yield number, f"{len(words)} words: {sentence[:60]}..."
            is_question = sentence.rstrip("*_)").endswith("?")
            if OPENINGS.match(sentence.lstrip("\"'(*_")) and not is_question:
                yield number, f"opening: {sentence[:60]}"


def findings(path: str, text: str) -> list[tuple[int, str]]:
    """The line and the text of each fault of one file."""
    found = list(word_findings(text))
    if path.endswith(".md"):
        found += sentence_findings(markdown_blocks(text))
    elif path.endswith((".py", ".pyi")):
        tree = ast.parse(text)
        found += sentence_findings(docstrings(tree))
        found += sentence_findings(help_texts(tree))
    return sorted(found)


def checkout_files() -> list[str]:
    """Tracked and untracked files of the checkout, except ignored ones, sorted."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard"]
    names = set(subprocess.check_output(command, cwd=ROOT, text=True).splitlines())
    return sorted(name for name in names if (ROOT / name).is_file())


def checked_files() -> list[str]:
    suffix = {name: pathlib.PurePath(name).suffix for name in checkout_files()}
    return [name for name in suffix if suffix[name] in CHECKED and name not in EXEMPT]


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the project's English.")
    parser.add_argument("--count", action="store_true", help="print totals by file")
    parser.add_argument("files", nargs="*", help="files or folders (default: all tracked files)")
    given = parser.parse_args()
    chosen = tuple(str(pathlib.Path(f).resolve().relative_to(ROOT)) for f in given.files)
    total = 0
    for path in checked_files():
        if chosen and not any(path == c or path.startswith(c + "/") or c == "." for c in chosen):
            continue
        try:
            found = findings(path, (ROOT / path).read_text())
        except UnicodeDecodeError:
            continue
        total += len(found)
        if given.count and found:
            sys.stdout.write(f"{len(found):6} {path}\n")
        elif not given.count:
            sys.stdout.writelines(f"{path}:{line}: {text}\n" for line, text in found)
    if given.count:
        sys.stdout.write(f"{total:6} in all\n")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
