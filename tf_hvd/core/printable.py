"""A function that makes untrusted text safe for a terminal, such as names in a recording."""


def printable(text: str) -> str:
    r"""Return `text` as one line, with escapes such as `\x1b` for unprintable characters."""
    if text.isprintable():  # the usual case: a recording has thousands of texts
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
