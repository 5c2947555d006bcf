"""The file of one step of the first hour: what its parts said, as it came, between marks.

A part's program writes to the file itself, so that whatever ends this process, or the machine,
leaves what was said until then; the next call reads there what it need not do again.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
from typing import IO

from gpu_parts import Part
from gpu_programs import Outcome

BEGUN, ENDED = "== begun ", "== ended "
MARK = re.compile(r"^== (begun|ended) (\{.*\})$\n?", re.MULTILINE)
# Another call may change these; all other results stay.
OPEN = ("not run", "cut short")
TRIES = 2


@dataclasses.dataclass
class Entry:
    """What is known of a part."""

    name: str
    result: str = "cut short"
    figure: str = "it was ended with the call"
    seconds: float = 0.0
    tries: int = 0
    output: str = ""

    @property
    def done(self) -> bool:
        """A part that was cut short twice is not tried again: others have more use of the time."""
        return self.result not in OPEN or (self.result == "cut short" and self.tries >= TRIES)


class StepLog:
    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def entries(self) -> dict[str, Entry]:
        """By name, of the last time that each part was begun."""
        text = self.path.read_text(errors="replace") if self.path.exists() else ""
        found: dict[str, Entry] = {}
        marks = list(MARK.finditer(text))
        ends = [mark.start() for mark in marks[1:]] + [len(text)]
        for mark, until in zip(marks, ends, strict=False):
            try:
                told = json.loads(mark[2])
            except ValueError:  # a program's own line that looks like a mark
                continue
            entry = found.setdefault(told["part"], Entry(told["part"]))
            if mark[1] == "begun":
                entry.result, entry.figure = Entry.result, Entry.figure
                entry.tries += 1
                entry.output = text[mark.end() : until].strip("\n")
            else:
                entry.result, entry.figure = told["result"], told["figure"]
                entry.seconds = told["seconds"]
        return found

    def begin(self, part: Part) -> IO[bytes]:
        """Where its program is to write."""
        self.write(BEGUN, {"part": part.name, "command": part.command, **part.environment})
        return self.path.open("ab")

    def said_since(self, place: int) -> str:
        with self.path.open("rb") as file:
            file.seek(place)
            return file.read().decode(errors="replace")

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def end(self, name: str, outcome: Outcome, seconds: float) -> None:
        told = {"result": outcome.result, "figure": outcome.figure, "seconds": round(seconds, 1)}
        self.write(ENDED, {"part": name, **told})

    def note(self, name: str, outcome: Outcome) -> None:
        """Of a part that nothing was begun for, unless it is known already."""
        known = self.entries().get(name)
        if known and (known.result, known.figure) == (outcome.result, outcome.figure):
            return
        self.end(name, outcome, 0)

    def write(self, mark: str, told: dict[str, object]) -> None:
        before = "\n" if self.size() and self.said_since(self.size() - 1) != "\n" else ""
        with self.path.open("a") as file:
            file.write(f"{before}{mark}{json.dumps(told)}\n")
            file.flush()
            os.fsync(file.fileno())
