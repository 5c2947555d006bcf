"""Draws the pictures of README.md and docs/concepts.md: `dev_support/pictures.py docs/images`.

Plain SVG with boxes and text. A test compares the committed files with this output.
"""

import pathlib
import sys
from xml.sax.saxutils import escape

COLOURS = ["#4063d8", "#389826", "#cb3c33", "#9558b2"]  # by rank, 0 to 3
RESULT = "#5f6770"
BOX, GAP = 34, 6
FONT = 'font-family="Helvetica, Arial, sans-serif"'

# Three ranks, before and after: each box's text and the rank that gives its colour.
COLLECTIVES = {
    "allreduce (Sum)": (
        [[("1", 0)], [("2", 1)], [("3", 2)]],
        [[("6", None)], [("6", None)], [("6", None)]],
    ),
    "allgather": (
        [[("a", 0)], [("b", 1)], [("c", 2)]],
        [[("a", 0), ("b", 1), ("c", 2)]] * 3,
    ),
    "broadcast (from rank 0)": (
        [[("a", 0)], [], []],
        [[("a", 0)]] * 3,
    ),
    "alltoall": (
        [[(f"{letter}{i}", rank) for i in range(3)] for rank, letter in enumerate("abc")],
        [[(f"{letter}{i}", rank) for rank, letter in enumerate("abc")] for i in range(3)],
    ),
    "reducescatter (Sum)": (
        [[(str(10**i * (rank + 1)), rank) for i in range(3)] for rank in range(3)],
        [[(str(10**i * 6), None)] for i in range(3)],
    ),
}


def text(x, y, words, size=13, anchor="start", colour="#222", weight="normal"):
    return (
        f'<text x="{x}" y="{y}" {FONT} font-size="{size}" text-anchor="{anchor}" '
        f'fill="{colour}" font-weight="{weight}">{escape(words)}</text>'
    )


def box(x, y, words, colour, width=BOX, height=BOX - 8):
    middle = x + width / 2
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="4" fill="{colour}"/>'
        + text(middle, y + height / 2 + 5, words, anchor="middle", colour="#fff")
    )


def arrow(x, y, length):
    end = x + length
    return f'<path d="M{x} {y}H{end}m-7 -5l7 5l-7 5" fill="none" stroke="#222" stroke-width="1.5"/>'


def line(x, y, to_x, to_y):
    return f'<path d="M{x} {y}L{to_x} {to_y}" fill="none" stroke="#222" stroke-width="1.5"/>'


def picture(width, height, parts):
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}">',
            f'<rect width="{width}" height="{height}" rx="8" fill="#fafafa"/>',
            *parts,
            "</svg>\n",
        ]
    )


def collectives():
    """Each rank's values before and after a collective."""
    parts, top = [], 14
    for name, (before, after) in COLLECTIVES.items():
        parts.append(text(16, top + 14, name, size=14, weight="bold"))
        for rank in range(3):
            y = top + 24 + rank * (BOX - 4)
            parts.append(text(16, y + 18, f"rank {rank}", colour=COLOURS[rank]))
            for row, left in ((before, 80), (after, 290)):
                for place, (words, owner) in enumerate(row[rank]):
                    colour = RESULT if owner is None else COLOURS[owner]
                    parts.append(box(left + place * (BOX + GAP), y, words, colour))
        parts.append(arrow(220, top + 24 + BOX - 4 + 13, 50))
        top += 24 + 3 * (BOX - 4) + 22
    return picture(430, top, parts)


def ranks():
    """Four ranks on two machines, and the numbers of each rank."""
    parts = []
    for machine, name in enumerate("ab"):
        left = 16 + machine * 300
        parts.append(
            f'<rect x="{left}" y="16" width="284" height="166" rx="8" fill="#fff" '
            'stroke="#999" stroke-width="1.5"/>'
        )
        parts.append(text(left + 12, 38, f"machine {name}", size=14, weight="bold"))
        for place in range(2):
            rank = machine * 2 + place
            x = left + 12 + place * 134
            parts.append(box(x, 52, f"rank() = {rank}", COLOURS[rank], width=126))
            local = [f"local_rank() = {place}", "local_size() = 2"]
            across = [f"cross_rank() = {machine}", "cross_size() = 2"]
            for line, words in enumerate(["size() = 4", *local, *across]):
                parts.append(text(x + 4, 97 + line * 18, words, size=12))
    return picture(616, 198, parts)


def training():
    """A step on four ranks: each has its share of the data, and all make the same update."""
    row, top = BOX + GAP, 16
    middle = top + 2 * row - GAP - 1
    parts = [box(420, middle - 26, "allreduce (Average)", RESULT, 144, 52)]
    for rank, colour in enumerate(COLOURS):
        y = top + rank * row
        centre = y + (BOX - 8) / 2
        parts += [
            box(16, y, f"batch of rank {rank}", colour, 112),
            arrow(132, centre, 24),
            box(160, y, "model", colour, 52),
            arrow(216, centre, 24),
            box(244, y, f"gradients {rank}", colour, 104),
            line(352, centre, 416, middle),
            line(568, middle, 592, centre),
            box(596, y, "same update", RESULT, 92),
        ]
    return picture(704, top + 4 * row + 4, parts)


PICTURES = {"collectives.svg": collectives, "ranks.svg": ranks, "training.svg": training}


def main():
    folder = pathlib.Path(sys.argv[1])
    for name, draw in PICTURES.items():
        (folder / name).write_text(draw())


if __name__ == "__main__":
    main()
