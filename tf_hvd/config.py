"""Settings of the Python side that come from the environment.

The one table of them, and the only place in the package's Python that reads
`os.environ` for a setting. The native side has a table of its own
(runtime/config.cc); `python -m tf_hvd.config --markdown` prints both, which is
what docs/config.md holds.
"""

import argparse
import dataclasses
import os
import sys


@dataclasses.dataclass(frozen=True)
class IntSetting:
    """An integer from the environment; `minimum` is the smallest legal value."""

    name: str
    default: int
    minimum: int
    meaning: str

    def read(self) -> int:
        """The value in the environment now, or the default.

        Raises:
          ValueError: the text is not an integer, or is below `minimum`.
        """
        text = os.environ.get(self.name, "").strip()
        if not text:
            return self.default
        try:
            value = int(text)
        except ValueError:
            value = self.minimum - 1
        if value < self.minimum:
            raise ValueError(
                f"{self.name}={text!r} is not a whole number of at least {self.minimum}; "
                f"unset it to get the default, {self.default}."
            )
        return value


BUCKET_BYTES = IntSetting(
    name="TF_HVD_BUCKET_BYTES",
    default=32 << 20,
    minimum=1,
    meaning=(
        "Bytes of gradients that the optimizer and the tape put in one bucket (one collective). "
        "Must be the same on all ranks. A larger gradient has a bucket of its own."
    ),
)

SETTINGS = (BUCKET_BYTES,)


def bucket_bytes() -> int:
    """Size limit of a gradient bucket, in bytes (`TF_HVD_BUCKET_BYTES`)."""
    return BUCKET_BYTES.read()


def python_markdown() -> str:
    """The table of this module as Markdown."""
    rows = [f"| `{s.name}` | {s.default} | {s.meaning} |" for s in SETTINGS]
    return "\n".join(["| variable | default | meaning |", "|---|---|---|", *rows]) + "\n"


def markdown() -> str:
    """The whole of docs/config.md: the native side's table, then this one."""
    # Imported here: reading a setting must not need the native library.
    from tf_hvd import _native

    return (
        f"{_native.config_markdown().strip()}\n\n"
        "## Python\n\n"
        "Read by the Python side, when an optimizer or a tape reduces gradients.\n\n"
        f"{python_markdown()}\n"
        "This page is made by `python -m tf_hvd.config --markdown`; a test compares the two.\n"
    )


def main(argv: list[str]) -> int:
    """Prints the tables. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tf_hvd.config", description=__doc__)
    parser.add_argument(
        "--markdown", action="store_true", required=True, help="print docs/config.md"
    )
    parser.parse_args(argv)
    sys.stdout.write(markdown())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
