"""Functions that format rank numbers for messages."""

from collections.abc import Iterable, Sequence


def ranks_text(ranks: Sequence[int], most: int | None = None) -> str:
    """Return at most `most` ranks as text: "rank 3", "ranks 0, 1, 7", "ranks 0, 1 and 6 more"."""
    shown = ranks[:most]
    more = f" and {len(ranks) - len(shown)} more" if len(shown) < len(ranks) else ""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, shown))}{more}"


def runs(numbers: Iterable[int]) -> list[list[int]]:
    """Split ascending numbers into groups of consecutive numbers."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return found


def named(ranks: Iterable[int]) -> str:
    """Return all ranks as text: "rank 3", "ranks 0, 1 and 7", "ranks 0 to 6"."""
    numbers = sorted(ranks)
    if len(numbers) == 1:
        return f"rank {numbers[0]}"
    parts = []
    for run in runs(numbers):
        parts += [f"{run[0]} to {run[-1]}"] if len(run) > 2 else [str(each) for each in run]
    return "ranks " + " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
