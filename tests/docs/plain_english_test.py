"""The check of the project's English finds each kind of fault, and passes plain sentences."""

import plain_english
import pytest

LONG = "word " * 26
SHORT = "word " * 25


@pytest.mark.parametrize(
    ("path", "text", "line", "part"),
    [
        ("a.cc", "int x;\n// Whoever calls this\n", 2, "whoever"),
        ("a.h", "// the job goes\n// on\n", 1, "continue"),
        ("a.py", "raise E('nobody has it')\n", 1, "nobody"),
        ("dev", "# so many ranks\n", 1, "so many"),
        ("a.md", f"Short.\n\n{LONG}.\n", 3, "26 words"),
        ("a.md", f"- {SHORT}\n  more.\n", 1, "26 words"),
        ("a.md", f"| a | {LONG} |\n", 1, "26 words"),
        ("a.md", "What ranks have is kept.\n", 1, "opening"),
        ("a.md", "Good. Of these, two remain.\n", 1, "opening"),
        ("a.py", f'def f():\n    """Good.\n\n    {LONG}.\n    """\n', 4, "26 words"),
        (
            "a.py",
            f'def f():\n    """Good.\n\n    Args:\n      x: {LONG}.\n    """\n',
            5,
            "26 words",
        ),
        ("a.py", 'add("--x", help="what a rank has")\n', 1, "opening"),
    ],
)
def test_a_fault_is_found(path, text, line, part):
    found = plain_english.findings(path, text)
    assert [(number, part in message.lower()) for number, message in found] == [(line, True)]


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("a.cc", "// Restarts the rank. alone_ is a member; there is no limit.\n"),
        ("a.md", f"A{SHORT}. A{SHORT}.\n\nWhat is a rank?\n"),
        ("a.md", f"```sh\n{LONG}\n```\n\nSee `{LONG}` for an example.\n"),
        ("a.md", f"| {SHORT} | {SHORT} |\n"),
        ("a.py", f'def f():\n    """Good.\n\n    Example:\n      f({LONG})\n    """\n'),
        ("a.py", f"# {LONG}\n"),
    ],
)
def test_plain_sentences_pass(path, text):
    assert plain_english.findings(path, text) == []
