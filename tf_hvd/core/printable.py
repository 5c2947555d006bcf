"""Text of others as a terminal may show it: names in a model, an exception, a recording."""


def printable(text: str) -> str:
    r"""`text` in one line, with `\x1b` and the like for what a terminal would obey or not show."""
    if text.isprintable():  # as nearly all is: a recording has thousands of texts
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
