"""Numbers of ranks, for people."""

from collections.abc import Iterable, Sequence


def ranks_text(ranks: Sequence[int], most: int | None = None) -> str:
    """Ranks as a sentence has them: "rank 3", "ranks 0, 1, 7".

    Args:
      ranks: their numbers.
      most: how many are named: "ranks 0, 1 and 6 more".
    """
    shown = ranks[:most]
    more = f" and {len(ranks) - len(shown)} more" if len(shown) < len(ranks) else ""
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(map(str, shown))}{more}"


def runs(numbers: Iterable[int]) -> list[list[int]]:
    """Ascending numbers, in groups of which each number follows the one before."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1:
            found[-1].append(number)
        else:
            found.append([number])
    return found
