"""The nodes of a GraphDef: their names, their inputs, and which of them are tf_hvd ops."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tf_hvd.core.printable import printable
from tf_hvd.strip.builder import INNER, Builder, unused
from tf_hvd.strip.errors import DamagedError, StripError
from tf_hvd.strip.rules import RULES, Meaning, meaning_of, rewrite, rule_of


@dataclass(frozen=True)
class Found:
    """An op of tf_hvd or Horovod in a graph."""

    op: str
    node: str
    function: str
    """The name of the function that contains the op; empty for the graph itself."""
    meaning: Meaning

    def __str__(self) -> str:
        where = f" in function '{self.function}'" if self.function else ""
        return printable(f"{self.op} '{self.node}'{where}")


class Graph:
    def __init__(self, message: Any) -> None:
        """Find tf_hvd's ops in a message.

        Raises:
          StripError: the message is not a graph, or this TensorFlow cannot read it.
        """
        self.message = message
        self.ours: dict[int, Found] = {}
        newest = tf.version.GRAPH_DEF_VERSION
        if message.versions.min_consumer > newest:
            raise StripError(
                f"the graph needs GraphDef version {message.versions.min_consumer}, but "
                f"TensorFlow {tf.__version__} has version {newest}; use a newer TensorFlow"
            )
        for place, node in enumerate(message.node):
            if not node.name or not node.op:
                raise DamagedError("a node has no name or no op")
            if rule_of(node) is not None:
                self.ours[place] = Found(node.op, node.name, "", meaning_of(node))
        # The versions follow the nodes: if the versions are missing, nodes may be missing too.
        if not message.HasField("versions") and not message.version:
            if not message.node and not message.library.function:
                raise DamagedError("it has no nodes")
            _ = self._places

    def __len__(self) -> int:
        return len(self.message.node)

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        places: dict[str, int] = {}
        for place, node in enumerate(self.message.node):
            if places.setdefault(node.name, place) != place:
                raise DamagedError(f"two nodes have the name '{node.name}'")
        for node in self.message.node:
            for edge in node.input:
                if node_name(edge) not in places:
                    raise DamagedError(f"a node reads from '{node_name(edge)}', which is missing")
        return places

    @property
    def names(self) -> list[str]:
        return list(self._places)

    def place(self, name: str) -> int | None:
        """Return the number of the node with this name, or None if no node has the name."""
        return self._places.get(name)

    def node(self, place: int) -> Any:
        return self.message.node[place]

    def reached(self, roots: Iterable[int], control: bool) -> bytearray:
        """Return for each node 1 if the roots' values depend on it, else 0.

        If `control` is True, control edges also count as dependencies.
        """
        seen = bytearray(len(self))
        waiting = list(roots)
        for place in waiting:
            seen[place] = 1
        while waiting:
            for edge in self.node(waiting.pop()).input:
                source = self._places[node_name(edge)]
                if not seen[source] and (control or not edge.startswith("^")):
                    seen[source] = 1
                    waiting.append(source)
        return seen

    def _namer(self) -> Callable[[str], str]:
        """Return a function that names new nodes with a word that no existing name contains."""
        names = [node.name for node in self.message.node]
        words = itertools.chain([INNER], (f"{INNER}_{i}" for i in itertools.count(1)))
        word = next(word for word in words if not any(word in name for name in names))
        taken: set[str] = set()

        def new_name(wanted: str) -> str:
            return unused(wanted.replace(f"/{INNER}/", f"/{word}/"), taken)

        return new_name

    def rewritten(self, kept: bytearray | None = None) -> Iterator[Any]:
        """Yield the nodes in order with tf_hvd's ops replaced, modifying the message's nodes."""
        replaced, moved = self._replacements(kept)
        for place, old in enumerate(self.message.node):
            if kept is not None and not kept[place]:
                continue
            for node in replaced.get(place, [old]):
                if moved:
                    _redirect(node, moved)
                if kept is not None:
                    self._uncolocate(node, kept)
                yield node

    def _replacements(
        self, kept: bytearray | None
    ) -> tuple[dict[int, list[Any]], dict[str, list[str]]]:
        """Return the new nodes by place, and the new names of outputs that have moved."""
        replaced, moved = {}, {}
        new_name = self._namer() if self.ours else str
        for place, found in self.ours.items():
            if kept is None or kept[place]:
                nodes = rewrite(Builder(self.node(place), new_name, in_function=False))
                replaced[place] = nodes
                if RULES[found.op].outputs and nodes[-1].op == "NoOp":
                    moved[found.node] = [node.name for node in nodes[:-1]]
        return replaced, moved

    def _uncolocate(self, node: Any, kept: bytearray) -> None:
        """Remove a node's colocation constraints on removed nodes."""
        if "_class" not in node.attr:
            return
        classes = node.attr["_class"].list.s
        left = []
        for text in classes:
            name = text[5:].decode(errors="replace")
            place = self.place(name) if text.startswith(b"loc:@") else None
            if not text.startswith(b"loc:@") or (place is not None and kept[place]):
                left.append(text)
        del classes[:]
        classes.extend(left)
        if not left:
            del node.attr["_class"]


def node_name(edge: str) -> str:
    """Return the name of the node that a tensor or a control edge comes from."""
    return edge.removeprefix("^").partition(":")[0]


def output_number(text: str, outputs: int) -> int:
    """Return the output number at the end of an edge; 0 if the edge has none.

    Raises:
      DamagedError: the node has no output with this number.
    """
    number = int(text) if text.isdecimal() else 0
    if (text and not text.isdecimal()) or number >= outputs:
        raise DamagedError(f"an edge reads output '{text}' of a node with {outputs}")
    return number


def _redirect(node: Any, moved: dict[str, list[str]]) -> None:
    for i, text in enumerate(node.input):
        name, _, index = text.partition(":")
        if name in moved:
            node.input[i] = moved[name][output_number(index, len(moved[name]))] + ":0"
