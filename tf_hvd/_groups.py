"""What the grouped collectives share: one request for each dtype among the members."""

from collections.abc import Callable, Sequence
from typing import Any

# Runs the collective on the members with these numbers, under this name and with
# these names of the members; returns one result for each.
Call = Callable[[list[int], str | None, list[str]], list[Any]]


def suffixed(name: str | None, suffix: str) -> str | None:
    """`name` with a suffix; None for the default name stays None."""
    return None if name is None else f"{name}_{suffix}"


def check_member_names(member_names: Sequence[str] | None, count: int) -> list[str] | None:
    """The names as a list.

    Raises:
      ValueError: there is not one for each of the `count` members.
    """
    if member_names is None:
        return None
    names = [member_names] if isinstance(member_names, str) else list(member_names)
    if len(names) != count:
        raise ValueError(
            f"member_names has {len(names)} names for {count} tensors; give one for each, or none."
        )
    return names


def run_by_dtype(
    tensors: dict[int, Any], name: str | None, member_names: list[str] | None, call: Call
) -> dict[int, Any]:
    """Runs a grouped collective once for each dtype.

    Args:
      tensors: the members by their number in the user's list, as they are sent.
      name: name of the request; where there are several, the dtypes' names follow.
      member_names: one for each tensor of the user's list, or None.
      call: what runs the members of one dtype.

    Returns:
      The results by the same numbers.
    """
    groups: dict[str, list[int]] = {}
    for number, tensor in tensors.items():
        groups.setdefault(tensor.dtype.name, []).append(number)
    results: dict[int, Any] = {}
    for dtype, members in groups.items():
        names = [] if member_names is None else [member_names[i] for i in members]
        request = suffixed(name, dtype) if len(groups) > 1 else name
        results.update(zip(members, call(members, request, names), strict=True))
    return results
