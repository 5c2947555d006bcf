"""Log lines of TensorFlow's native code, shown once where several ranks print the same.

TensorFlow prints four at each start of a rank, whatever is set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tf_hvd.core.ranks_text import runs

# In seconds: how long a line waits for other ranks to print it too, and is compared with theirs;
# and after what pause a rank's repetitions of lines that were shown before are told.
_ALIKE, _TELL = 5.0, 1.0
# Lines that are remembered. No start prints as many.
_MOST = 100
# What a line begins with: time and level, and perhaps the thread. Some messages have another line,
# without.
_STAMP = (
    r"\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?: [{0}]"
    r"|[{0}]\d{{4}} \d\d:\d\d:\d+(?:\.\d+)?(?: +\d+)?"
)
_UNSTAMPED = (
    r"WARNING: All log messages before absl::InitializeLog\(\) is called"
    r"|To enable the following instructions: "
)
_LOG_LINE = re.compile(
    rf"({_STAMP.format('IWEF')}) (?=\S+\.(?:cc|h):\d+\] )|{_UNSTAMPED}|\t \[\[\{{\{{node "
)
CHATTER = re.compile(rf"({_STAMP.format('IW')}) |{_UNSTAMPED}|\W*$")
"""Lines that are not a rank's reason to end: empty ones, and those of lower levels."""
_ADDRESS = re.compile(r"\b0x[0-9a-f]+")


@dataclass
class _Line:
    text: str
    unstamped: str
    since: float
    ranks: list[int]


class LogLines:
    """Collects lines that are equal but for time, thread and addresses, each rank's in its order.

    Args:
        ranks: how many the job has: what all have printed waits no longer. 0: that is not known.
        show: shows a line, or a note, of these ranks.
    """

    def __init__(self, ranks: int, show: Callable[[Sequence[int], str], object]) -> None:
        self._ranks = ranks
        self._show = show
        self._lines: list[_Line] = []  # in the order in which they are shown
        self._shown = 0  # so many of them are, and other ranks may print them yet
        # Whose lines a rank has repeated after they were shown, and how many; since when.
        self._late: dict[int, tuple[int, int]] = {}
        self._late_since = 0.0

    def take(self, who: int, line: str, now: float) -> bool:
        """Takes a line, to be shown sooner or later; False if it is another kind of line."""
        found = _LOG_LINE.match(line)
        if self._ranks == 1 or not found:
            return False
        unstamped = _ADDRESS.sub("", line[len(found[1] or "") :])
        after = self._after(who)
        places = range(after, len(self._lines))
        same = next((at for at in places if self._lines[at].unstamped == unstamped), None)
        if same is None:
            # As early as the rank's order allows: what the others print next may be the same.
            self._lines.insert(max(after, self._shown), _Line(line, unstamped, now, [who]))
        else:
            if same < self._shown:
                self._repeats(who, self._lines[same].ranks[0], now)
            self._lines[same].ranks.append(who)
        self.tick(now)
        return True

    def flush(self, who: int) -> None:
        """Shows what is kept of a rank, before something else of it is shown."""
        self._release(self._after(who))
        if who in self._late:
            self._tell()

    def tick(self, now: float) -> bool:
        """Shows what has waited long enough; True if something is remembered."""
        over = [at for at, line in enumerate(self._lines) if now >= line.since + _ALIKE]
        end = max(self._shown, over[-1] + 1 if over else 0)
        while end < len(self._lines) and self._is_complete(self._lines[end]):
            end += 1
        self._release(end)
        if len(self._lines) > _MOST:
            self.finish()
        shown, waiting = self._lines[: self._shown], self._lines[self._shown :]
        shown = [
            line for line in shown if now < line.since + _ALIKE and not self._is_complete(line)
        ]
        self._lines, self._shown = shown + waiting, len(shown)
        if self._late and now >= self._late_since + _TELL:
            self._tell()
        return bool(self._lines or self._late)

    def finish(self) -> None:
        self._release(len(self._lines))
        self._tell()
        self._lines, self._shown = [], 0

    def _after(self, who: int) -> int:
        """The place behind the last line that a rank has printed."""
        own = (at for at in reversed(range(len(self._lines))) if who in self._lines[at].ranks)
        return next(own, -1) + 1

    def _is_complete(self, line: _Line) -> bool:
        return len(line.ranks) == self._ranks

    def _release(self, end: int) -> None:
        """Shows the first lines, up to a place."""
        for line in self._lines[self._shown : end]:
            if not self._late.keys().isdisjoint(line.ranks):
                self._tell()
            self._show(sorted(line.ranks), line.text)
        self._shown = max(self._shown, end)

    def _repeats(self, who: int, first: int, now: float) -> None:
        known, lines = self._late.get(who, (first, 0))
        if known != first:
            self._tell()
            lines = 0
        self._late[who], self._late_since = (first, lines + 1), now

    def _tell(self) -> None:
        late, self._late = self._late, {}
        for first, lines in dict.fromkeys(late.values()):
            who = sorted(rank for rank, what in late.items() if what == (first, lines))
            number = "line" if lines == 1 else f"{lines} lines"
            self._show(who, f"the same {number} as rank {first}'s")


def label(who: Sequence[int]) -> str:
    """What a line of these ranks begins with: [0], or [ranks 2-5, 7]."""
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs(who)]
    return f"[{'ranks ' * (len(who) > 1)}{', '.join(texts)}] "
