"""The tf_hvd ops that the outputs depend on, and the user's consent to replace the ops."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from tf_hvd.strip.errors import StripError
from tf_hvd.strip.functions import Library, called_functions
from tf_hvd.strip.graph import Found, Graph, node_name
from tf_hvd.strip.rules import Meaning

_SHOWN = 3
_OFFERED = 3


def find_outputs(graph: Graph, names: Iterable[str]) -> list[int]:
    """Return the numbers of the nodes that a user named, as nodes or as tensors.

    Raises:
      StripError: a name does not exist; the text suggests similar names.
    """
    places = []
    for name in names:
        place = graph.place(node_name(name))
        if place is None:
            raise StripError(f"node '{node_name(name)}' does not exist{_offer(graph, name)}")
        places.append(place)
    return places


def _offer(graph: Graph, name: str) -> str:
    if not graph.names:
        return ", because the graph is empty; save the graph again"
    wanted = node_name(name)
    last = wanted.rpartition("/")[2]
    # Try names that share a part first, because a comparison with 200,000 names is slow.
    near = [known for known in graph.names if last and last in known]
    close = difflib.get_close_matches(wanted, near, _OFFERED, 0.3)
    close = close or difflib.get_close_matches(wanted, graph.names, _OFFERED)
    if not close:
        return "; --outputs takes names of nodes of the graph, such as " + f"'{graph.names[-1]}'"
    return "; did you mean " + " or ".join(f"'{known}'" for known in close) + "?"


def needed_by(
    graph: Graph, library: Library, places: Sequence[int], functions: Sequence[str]
) -> list[Found]:
    """Return the tf_hvd ops that the nodes at `places` or the results of `functions` depend on."""
    seen = graph.reached(places, control=False)
    found = [found for place, found in graph.ours.items() if seen[place]]
    names = list(functions)
    if len(library):
        for place, needed in enumerate(seen):
            if needed:
                names.extend(called_functions(graph.node(place)))
    return found + library.reached(names)


def listed(found: Sequence[Found]) -> str:
    words = ", ".join(str(one) for one in found[:_SHOWN])
    more = len(found) - _SHOWN
    return words + (f" and {more} more" if more > 0 else "")


def check_consent(
    graph: Graph,
    library: Library,
    places: Sequence[int],
    functions: Sequence[str],
    assume_single_process: bool,
) -> None:
    """Raise an error if the outputs' meaning would change without the user's consent.

    The outputs are the nodes at `places` and the results of `functions`. If both are empty, every
    node may be an output.

    Raises:
      StripError: an output depends on results of other processes.
    """
    if assume_single_process:
        return
    flag = "--assume-single-process (in Python: assume_single_process=True)"
    if places or functions:
        needed = needed_by(graph, library, places, functions)
        needed = [found for found in needed if found.meaning != Meaning.ROOT]
        if needed:
            raise StripError(
                f"the outputs depend on results of other processes, by {listed(needed)}; if this "
                "is a Keras model, export it without augmentation layers such as RandomFlip; "
                f"otherwise accept the values of a single process with {flag}"
            )
        return
    changed = [f for f in [*graph.ours.values(), *library.ours] if f.meaning == Meaning.JOB]
    if changed:
        raise StripError(
            f"the outputs of this graph are unknown, and a single process computes other values "
            f"than a job in {listed(changed)}; name the outputs for inference with --outputs (in "
            f"Python: outputs=), or accept the values of a single process with {flag}"
        )
