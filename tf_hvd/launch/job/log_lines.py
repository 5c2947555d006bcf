"""Show TensorFlow's native log lines and Python's warnings once for several ranks.

TensorFlow prints four of these lines whenever a rank starts, whatever the settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tf_hvd.core.ranks_text import runs

# In seconds: the time for which a line is held and compared with other ranks' lines; and the pause
# after which a rank's repetitions of shown lines are reported.
_ALIKE, _TELL = 5.0, 1.0
# The maximum number of remembered lines, which exceeds the number that a start prints.
_MOST = 100
# The beginning of a log line: the time, the level and possibly the thread. Some messages have a
# second line without this beginning.
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
"""Matches lines that do not explain a rank's end: empty lines and lower-level log lines."""
# A warning printed by Python. The program's source line usually follows, indented by two spaces.
_WARNING = re.compile(r"\S.*:\d+: \w*Warning: ")
_ADDRESS = re.compile(r"\b0x[0-9a-f]+")


@dataclass
class _Line:
    text: str
    unstamped: str
    since: float
    ranks: list[int]


class LogLines:
    """Merges lines that differ only in time, thread and addresses, and keeps each rank's order.

    Args:
        ranks: number of ranks in the job; 0 if unknown. A line that all ranks have printed is
            shown immediately.
        show: called with a list of ranks and a line or note to show.
    """

    def __init__(self, ranks: int, show: Callable[[Sequence[int], str], object]) -> None:
        self._ranks = ranks
        self._show = show
        self._lines: list[_Line] = []  # in the order in which they are shown
        self._shown = 0  # the number of lines shown that other ranks may still print
        # By rank: the rank with the lines that it repeated, their number, and since when.
        self._late: dict[int, tuple[int, int]] = {}
        self._late_since = 0.0
        # The warning in a rank's last line; the program's source line may follow.
        self._warning: dict[int, str] = {}

    def take(self, who: int, line: str, now: float) -> bool:
        """Take a log line or a warning, to show now or later; return False for any other line."""
        found, warning = _LOG_LINE.match(line), self._warning.pop(who, "")
        rest = warning and line.startswith("  ")
        if self._ranks == 1 or not (found or rest or _WARNING.match(line)):
            return False
        unstamped = _ADDRESS.sub("", line[len(found[1] or "") if found else 0 :])
        if rest:  # it belongs to this warning only, even if its text is common
            unstamped = f"{warning}\n{unstamped}"
        elif not found:
            self._warning[who] = unstamped
        after = self._after(who)
        places = range(after, len(self._lines))
        same = next((at for at in places if self._lines[at].unstamped == unstamped), None)
        if same is None:
            # As early as the rank's order allows, because other ranks may print the same next.
            self._lines.insert(max(after, self._shown), _Line(line, unstamped, now, [who]))
        else:
            if same < self._shown:
                self._repeats(who, self._lines[same].ranks[0], now)
            self._lines[same].ranks.append(who)
        self.tick(now)
        return True

    def flush(self, who: int) -> None:
        """Show a rank's held lines before another line from that rank is shown."""
        self._release(self._after(who))
        if who in self._late:
            self._tell()

    def tick(self, now: float) -> bool:
        """Show lines that have waited long enough; return whether lines are still remembered."""
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
        """Return the index of the line after the last line that a rank has printed."""
        own = (at for at in reversed(range(len(self._lines))) if who in self._lines[at].ranks)
        return next(own, -1) + 1

    def _is_complete(self, line: _Line) -> bool:
        return len(line.ranks) == self._ranks

    def _release(self, end: int) -> None:
        """Show the lines before an index."""
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
    """Return the label of a line from these ranks, such as `[0] ` or `[ranks 2-5, 7] `."""
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs(who)]
    return f"[{'ranks ' * (len(who) > 1)}{', '.join(texts)}] "
