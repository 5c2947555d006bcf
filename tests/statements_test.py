"""Each statement of docs/errors.md and docs/keras.md has a test.

`statements.toml` says which test shows what. A row of a table, an item of a list or a
paragraph of a page that no entry quotes has none: write the test and the entry, or
take the statement out of the page.
"""

import pathlib
import re
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TABLE = tomllib.loads((ROOT / "tests/statements.toml").read_text())


def plain(text):
    """In one line."""
    return " ".join(text.split())


def blocks(page):
    """Rows, items and paragraphs that state something; not headings and examples."""
    found, current = [], ""
    page = re.sub(r"^ *```.*?^ *```$|^<!--.*?-->$", "", page, flags=re.MULTILINE | re.DOTALL)
    for line in [*page.splitlines(), ""]:
        if line.startswith("|---"):
            current = ""  # was a heading
        if line.startswith(("    ", "#", "|---")) and not current:
            continue
        starts = re.match(r"\||- |\d+\. ", line)
        if (not line or starts or line.startswith("#")) and current:
            found.append(current)
            current = ""
        if line.strip() and not line.startswith("#"):
            current += " " + line
    return [plain(text) for text in found]


def unproved(page, quotes):
    """Blocks of which no part is quoted."""
    return [text for text in blocks(page) if not any(plain(q) in text for q in quotes)]


def has_test(name):
    """Whether `file::test` is there; of C++, `file::Suite.Test`."""
    path, _, test = name.partition("::")
    file = ROOT / path
    if not file.exists():
        return False
    text = file.read_text()
    if path.endswith(".cc"):
        suite, _, case = test.partition(".")
        return bool(re.search(rf"^TEST(_F|_P)?\({suite}, {case}\)", text, re.MULTILINE))
    return bool(re.search(rf"^def {test}\(", text, re.MULTILINE))


@pytest.mark.parametrize("page", list(TABLE))
def test_each_statement_has_a_test(page):
    text = (ROOT / page).read_text()
    entries = TABLE[page]
    gone = [quote for quote in entries if plain(quote) not in plain(text)]
    assert not gone, f"{page} does not say it any more"
    missing = [name for names in entries.values() for name in names if not has_test(name)]
    assert not missing, "these tests are gone"
    assert not unproved(text, entries), f"statements of {page} without an entry"


def test_each_way_to_start_a_job_that_was_run_has_a_test():
    table = (ROOT / "docs/running.md").read_text().partition("|---")[2].partition("\n\n")[0]
    rows = [line.split(" |") for line in table.splitlines()[1:]]
    assert len(rows) > 10
    for way, *families, test, _ in rows:
        name = test.strip(" `")
        assert has_test(name) if name else families == [" not run"] * 2, way


def test_a_statement_without_a_test_is_found():
    page = (
        "# Page\n\nOne\nand two.\n\n| a | b |\n|---|---|\n| c | d |\n\n- item\n  on\n\n    code\n"
        "\n<!-- runs: job -->\n```python\ncode\n\nmore\n```\n"
    )
    assert blocks(page) == ["One and two.", "| c | d |", "- item on"]
    assert unproved(page, ["and two", "item"]) == ["| c | d |"]
    assert has_test("tests/statements_test.py::test_a_statement_without_a_test_is_found")
    assert not has_test("tests/statements_test.py::test_of_nothing")
    assert has_test("tests/runtime/request_test.cc::Request.MismatchOfMembers")
    assert not has_test("tests/runtime/request_test.cc::Request.Nothing")
