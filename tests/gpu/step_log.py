"""The file of one step of the first hour: the output of its parts as it came, between marks.

A part's program writes to the file itself. So the output remains if this process or the machine
ends, and the next call reads in it which parts need not run again.
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
# Results that another call may change; all others are final.
OPEN = ("not run", "cut short")
TRIES = 2


@dataclasses.dataclass
class Entry:
    """The known state of a part."""

    name: str
    result: str = "cut short"
    figure: str = "it ended with the call"
    seconds: float = 0.0
    tries: int = 0
    output: str = ""

    @property
    def done(self) -> bool:
        """A part that was cut short twice is not tried again, to leave time for other parts."""
        return self.result not in OPEN or (self.result == "cut short" and self.tries >= TRIES)


class StepLog:
    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def entries(self) -> dict[str, Entry]:
        """Entries by name, from the last time that each part began."""
        text = self.path.read_text(errors="replace") if self.path.exists() else ""
        found: dict[str, Entry] = {}
        marks = list(MARK.finditer(text))
        ends = [mark.start() for mark in marks[1:]] + [len(text)]
        for mark, until in zip(marks, ends, strict=False):
            try:
                values = json.loads(mark[2])
            except ValueError:  # a program's line that looks like a mark
                continue
            entry = found.setdefault(values["part"], Entry(values["part"]))
            if mark[1] == "begun":
                entry.result, entry.figure = Entry.result, Entry.figure
                entry.tries += 1
                entry.output = text[mark.end() : until].strip("\n")
            else:
                entry.result, entry.figure = values["result"], values["figure"]
                entry.seconds = values["seconds"]
        return found

    def begin(self, part: Part) -> IO[bytes]:
        """Begin a part and return the file for its program's output."""
        self.write(BEGUN, {"part": part.name, "command": part.command, **part.environment})
        return self.path.open("ab")

    def said_since(self, place: int) -> str:
        with self.path.open("rb") as file:
            file.seek(place)
            return file.read().decode(errors="replace")

    def size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0

    def end(self, name: str, outcome: Outcome, seconds: float) -> None:
        values = {"result": outcome.result, "figure": outcome.figure, "seconds": round(seconds, 1)}
        self.write(ENDED, {"part": name, **values})

    def note(self, name: str, outcome: Outcome) -> None:
        """Record a part that was not started, unless it is already known."""
        known = self.entries().get(name)
        if known and (known.result, known.figure) == (outcome.result, outcome.figure):
            return
        self.end(name, outcome, 0)

    def write(self, mark: str, values: dict[str, object]) -> None:
        before = "\n" if self.size() and self.said_since(self.size() - 1) != "\n" else ""
        with self.path.open("a") as file:
            file.write(f"{before}{mark}{json.dumps(values)}\n")
            file.flush()
            os.fsync(file.fileno())
