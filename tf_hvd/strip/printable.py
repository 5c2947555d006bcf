"""Names as a terminal may show them: whoever has made a model has chosen them."""


def printable(text: str) -> str:
    r"""`text` in one line, with `\x1b` and the like for what a terminal would obey or not show."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
