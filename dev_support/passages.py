"""Chooses passages of the project's prose for a reader to judge: `passages.py SEED [COUNT]`.

COUNT passages (default: 2) of each kind: README, pages, errors, docstrings, help. The same seed,
such as a commit's hash, chooses the same passages of the same sources.
"""

import ast
import pathlib
import random
import re
import sys
from collections.abc import Callable, Iterator

from plain_english import ROOT, checked_files, docstrings, help_texts, markdown_blocks

MIN_WORDS = 8
Passage = tuple[str, int, str]


def of_pages(paths: list[str]) -> list[Passage]:
    texts = ((path, (ROOT / path).read_text()) for path in paths)
    return [(path, line, block) for path, text in texts for line, block in markdown_blocks(text)]


def of_errors(paths: list[str]) -> list[Passage]:
    """Strings in Python's raise statements and in C++ Status values."""
    found = []
    for path in paths:
        text = (ROOT / path).read_text()
        if path.endswith(".py"):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.Raise) and node.exc is not None:
                    found.append((path, node.lineno, ast.unparse(node.exc)))
        else:
            for made in re.finditer(r"Status::\w+\([^;]*?\"[^;]*;", text):
                line = text.count("\n", 0, made.start()) + 1
                found.append((path, line, " ".join(made.group(0).split())))
    return found


def of_python(
    paths: list[str], blocks_of: Callable[[ast.Module], Iterator[tuple[int, str]]]
) -> list[Passage]:
    trees = ((path, ast.parse((ROOT / path).read_text())) for path in paths)
    return [(path, line, block) for path, tree in trees for line, block in blocks_of(tree)]


def main() -> None:
    seed, count = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2
    paths = checked_files()
    package = [p for p in paths if p.startswith("tf_hvd/") and p.endswith(".py")]
    native = [p for p in paths if pathlib.PurePath(p).parts[0] in ("base", "kernels", "runtime")]
    kinds = {
        "README": of_pages(["README.md"]),
        "pages": of_pages([p for p in paths if p.startswith("docs/") and p.endswith(".md")]),
        "errors": of_errors([*package, *(p for p in native if p.endswith(".cc"))]),
        "docstrings": of_python(package, docstrings),
        "help": of_python(package, help_texts),
    }
    for kind, passages in kinds.items():
        least = 4 if kind == "help" else MIN_WORDS
        long_enough = [p for p in passages if len(p[2].split()) >= least]
        chosen = random.Random(f"{seed} {kind}").sample(sorted(long_enough), count)
        for path, line, text in chosen:
            sys.stdout.write(f"[{kind}] {path}:{line}\n  {text}\n")


if __name__ == "__main__":
    main()
