"""Which of our ops the values that a user wants depend on, and whether that was asked for."""

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
    """The nodes that a user names, as nodes or as tensors.

    Raises:
      StripError: one does not exist; the text has names like it.
    """
    places = []
    for name in names:
        place = graph.place(node_name(name))
        if place is None:
            raise StripError(f"there is no node '{node_name(name)}'{_offer(graph, name)}")
        places.append(place)
    return places


def _offer(graph: Graph, name: str) -> str:
    if not graph.names:
        return ", nor any other: the graph is empty; save it again"
    wanted = node_name(name)
    last = wanted.rpartition("/")[2]
    # Names that share a part first: comparing with 200,000 names takes its time.
    near = [known for known in graph.names if last and last in known]
    close = difflib.get_close_matches(wanted, near, _OFFERED, 0.3)
    close = close or difflib.get_close_matches(wanted, graph.names, _OFFERED)
    if not close:
        return "; --outputs takes names of nodes of the graph, such as " + f"'{graph.names[-1]}'"
    return "; did you mean " + " or ".join(f"'{known}'" for known in close) + "?"


def needed_by(
    graph: Graph, library: Library, places: Sequence[int], functions: Sequence[str]
) -> list[Found]:
    """Our ops that the values of these nodes, and the results of these functions, need."""
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
    """Refuses to change what the outputs mean, unless that is wanted.

    Outputs are the nodes at `places` and the results of `functions`; with neither, any node.

    Raises:
      StripError: an output depends on what other processes computed.
    """
    if assume_single_process:
        return
    flag = "--assume-single-process (in Python: assume_single_process=True)"
    if places or functions:
        needed = needed_by(graph, library, places, functions)
        needed = [found for found in needed if found.meaning != Meaning.ROOT]
        if needed:
            raise StripError(
                f"the outputs depend on what other processes compute, by {listed(needed)}; "
                f"{flag} makes them what one process computes by itself"
            )
        return
    changed = [f for f in [*graph.ours.values(), *library.ours] if f.meaning == Meaning.JOB]
    if changed:
        raise StripError(
            f"which nodes are outputs is not known, and one process has other values than a job "
            f"of several in {listed(changed)}; name what inference needs with --outputs (in "
            f"Python: outputs=), or take the values of one process with {flag}"
        )
