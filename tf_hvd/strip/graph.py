"""The nodes of a serialized GraphDef: who they are, what they read, and which are ours."""

from __future__ import annotations

import bisect
import itertools
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import node_def_pb2, versions_pb2

from tf_hvd.core.printable import printable
from tf_hvd.strip.builder import INNER, Builder, unused
from tf_hvd.strip.errors import DamagedError, StripError
from tf_hvd.strip.rules import PREFIX, RULES, Meaning, meaning_of, rewrite, rule_of
from tf_hvd.strip.wire import BYTES, VARINT, Field, Pieces, fields, read_varint

NODE, LIBRARY, VERSION, VERSIONS, DEBUG_INFO = 1, 2, 3, 4, 5
_KINDS = {NODE: BYTES, LIBRARY: BYTES, VERSION: VARINT, VERSIONS: BYTES, DEBUG_INFO: BYTES}
_NODE_TAG = NODE << 3 | BYTES
# How many bytes pass between two signs of progress.
_TICK = 1 << 20


@dataclass(frozen=True)
class Found:
    """An op of tf_hvd or Horovod in a graph.

    Attributes:
      op: the op's type.
      node: the node's name.
      function: the function that it is in; empty for the graph itself.
      meaning: what its value tells of the job.
    """

    op: str
    node: str
    function: str
    meaning: Meaning

    def __str__(self) -> str:
        where = f" in function '{self.function}'" if self.function else ""
        return printable(f"{self.op} '{self.node}'{where}")


def parse(kind: Any, data: bytes | bytearray, field: Field) -> Any:
    """The message of type `kind` in a field."""
    return kind.FromString(bytes(memoryview(data)[field.value : field.end]))


class Graph:
    """A GraphDef between two places of some bytes, its nodes numbered in their order.

    A node that is not looked at is one number: where it begins. Who reads from whom is
    found out when it is asked for, with names as numbers and edges as numbers with a bit for
    control: a graph of 200,000 nodes costs tens of megabytes then, not hundreds.
    """

    def __init__(
        self,
        data: bytes | bytearray,
        begin: int,
        end: int,
        tick: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Reads the graph; calls `tick` with the place in the data now and then.

        Raises:
          StripError: it is not a graph, or one that this TensorFlow does not read.
        """
        self.data = data
        self.others: list[Field] = []
        self.ours: dict[int, Found] = {}
        self._begins = array("q")
        self._tick = tick
        # Whether something else is between nodes.
        self._mixed = False
        self._index: _Index | None = None
        self._walk(begin, end)
        self._find_ours()
        # The versions come after the nodes: without them nodes may be missing too.
        if not any(field.number in (VERSION, VERSIONS) for field in self.others):
            self._indexed()

    def __len__(self) -> int:
        return len(self._begins)

    def _walk(self, begin: int, end: int) -> None:
        """Finds the nodes, and tells the rest. As `wire.fields`, but for one kind at speed."""
        data, at, add = self.data, begin, self._begins.append
        while at < end:
            pause = min(end - 1, at + _TICK)
            while at < pause and data[at] == _NODE_TAG:
                add(at)
                size = data[at + 1]
                if size > 0x7F:
                    size, at = read_varint(data, at + 1, end)
                    at += size
                else:
                    at += size + 2
            if at > end:
                raise DamagedError("a node is longer than what holds it")
            self._tick(at)
            if at < end and (data[at] != _NODE_TAG or at == end - 1):
                field = next(fields(data, at, end))
                self._add_other(field)
                at = field.end
        first = min((field.begin for field in self.others), default=end)
        self._mixed = len(self) > 0 and self._begins[-1] > first

    def _end(self, place: int) -> int:
        return self.field(place).end

    def _find_ours(self) -> None:
        word = PREFIX.encode()
        end = self._end(len(self) - 1) if len(self) else 0
        at = self.data.find(word, self._begins[0], end) if len(self) else -1
        while at >= 0:
            place = bisect.bisect_right(self._begins, at) - 1
            if at < self._end(place):
                node = self.node(place)
                if rule_of(node) is not None:
                    self.ours[place] = Found(node.op, node.name, "", meaning_of(node))
            at = max(at + 1, self._end(place))
            at = self.data.find(word, at, end)

    def _add_other(self, field: Field) -> None:
        if _KINDS.get(field.number) != field.kind:
            raise DamagedError(f"there is no field {field.number} of kind {field.kind}")
        if field.number == VERSIONS:
            versions = parse(versions_pb2.VersionDef, self.data, field)
            newest = tf.version.GRAPH_DEF_VERSION
            if versions.min_consumer > newest:
                raise StripError(
                    f"it is a graph for readers of version {versions.min_consumer}, but "
                    f"TensorFlow {tf.__version__} has version {newest}; use a newer TensorFlow"
                )
        self.others.append(field)

    def _indexed(self) -> _Index:
        if self._index is None:
            self._index = _Index(self)
        return self._index

    @property
    def names(self) -> list[str]:
        """The names of all nodes."""
        return self._indexed().names

    def place(self, name: str) -> int | None:
        """The number of the node with this name, None if there is none."""
        return self._indexed().place(name)

    def field(self, place: int) -> Field:
        """Where the node with this number is."""
        begin = self._begins[place]
        size, value = read_varint(self.data, begin + 1, len(self.data))
        return Field(NODE, BYTES, begin, value, value + size)

    def node(self, place: int) -> Any:
        """The node with this number, parsed anew.

        Raises:
          DamagedError: it has no name or no op.
        """
        node = parse(node_def_pb2.NodeDef, self.data, self.field(place))
        if not node.name or not node.op:
            raise DamagedError("a node has no name or no op")
        return node

    def reached(self, roots: Iterable[int], control: bool) -> bytearray:
        """For each node 1 if the roots' values need it, else 0.

        Args:
          roots: numbers of nodes.
          control: follow control edges too.
        """
        index = self._indexed()
        seen = bytearray(len(self))
        waiting = list(roots)
        for place in waiting:
            seen[place] = 1
        while waiting:
            for edge in index.edges(waiting.pop()):
                source = index.places[edge >> 1]
                if not seen[source] and (control or not edge & 1):
                    seen[source] = 1
                    waiting.append(source)
        return seen

    def _namer(self) -> Callable[[str], str]:
        """Makes names for new nodes: with a word that the graph does not have anywhere."""
        numbers = itertools.count(1)
        word = next(
            word
            for word in itertools.chain([INNER], (f"{INNER}_{i}" for i in numbers))
            if self.data.find(word.encode()) < 0
        )
        taken: set[str] = set()

        def new_name(wanted: str) -> str:
            return unused(wanted.replace(f"/{INNER}/", f"/{word}/"), taken)

        return new_name

    def rewritten(
        self,
        library: Callable[[Field, Pieces], None],
        kept: bytearray | None = None,
        tick: Callable[[int], None] = lambda _: None,
    ) -> Pieces:
        """The graph without ops of ours.

        Args:
          library: adds the rewritten field of the function library.
          kept: as `reached` gives it, the nodes to keep; by default all.
          tick: called with the place in the data now and then.
        """
        replaced, moved = self._replacements(kept)
        out = Pieces(self.data)
        readers = self._readers(moved)
        changed = sorted({*replaced, *readers}) if kept is None else range(len(self))
        done = 0
        for place in changed:
            self._keep(out, done, place)
            done = place + 1
            if kept is not None and not kept[place]:
                continue
            if place in replaced:
                nodes = replaced[place]
            elif place in readers or self._is_colocated(place):
                nodes = [self.node(place)]
            else:
                self._keep(out, place, done)
                continue
            for node in nodes:
                _redirect(node, moved)
                self._uncolocate(node, kept)
                out.add(NODE, node.SerializeToString())
            tick(self._end(place))
        self._keep(out, done, len(self))
        for field in self.others:
            if field.number == LIBRARY:
                library(field, out)
            else:
                out.keep(field.begin, field.end)
        return out

    def _keep(self, out: Pieces, first: int, last: int) -> None:
        """Keeps the nodes from `first` to before `last`, in few ranges."""
        if first == last:
            return
        if not self._mixed:
            out.keep(self._begins[first], self._end(last - 1))
            return
        for place in range(first, last):
            out.keep(self._begins[place], self._end(place))

    def _replacements(
        self, kept: bytearray | None
    ) -> tuple[dict[int, list[Any]], dict[str, list[str]]]:
        """The new nodes by place, and where outputs went that are not at their name any more."""
        replaced, moved = {}, {}
        new_name = self._namer() if self.ours else str
        for place, found in self.ours.items():
            if kept is None or kept[place]:
                nodes = rewrite(Builder(self.node(place), new_name, in_function=False))
                replaced[place] = nodes
                if RULES[found.op].outputs and nodes[-1].op == "NoOp":
                    moved[found.node] = [node.name for node in nodes[:-1]]
        return replaced, moved

    def _readers(self, moved: dict[str, list[str]]) -> set[int]:
        if not moved:
            return set()
        index = self._indexed()
        sources = {index.ids[name] << 1 for name in moved}
        return {p for p in range(len(self)) if not sources.isdisjoint(index.edges(p))}

    def _is_colocated(self, place: int) -> bool:
        return self.data.find(b"loc:@", self._begins[place], self._end(place)) >= 0

    def _uncolocate(self, node: Any, kept: bytearray | None) -> None:
        """Drops places beside nodes that are gone."""
        if kept is None or "_class" not in node.attr:
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


def output_number(text: str, outputs: int) -> int:
    """The number at the end of an edge; none is 0.

    Raises:
      DamagedError: it is not the number of one of so many outputs.
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


class _Index:
    """Who is called how, and who reads from whom."""

    def __init__(self, graph: Graph) -> None:
        self.names: list[str] = []
        self.ids: dict[str, int] = {}
        self.places = array("q")  # of an id
        self._edges = array("q")
        self._first_edge = array("q", [0])
        for place in range(len(graph)):
            self._add(graph.node(place), place)
        for number, place in enumerate(self.places):
            if place < 0:
                raise DamagedError(f"a node reads from '{self.names[number]}', which is not there")

    def _add(self, node: Any, place: int) -> None:
        number = self._id(node.name)
        if self.places[number] >= 0:
            raise DamagedError(f"two nodes have the name '{node.name}'")
        self.places[number] = place
        for text in node.input:
            control = text.startswith("^")
            source = self._id(text[1:] if control else text.partition(":")[0])
            self._edges.append(source << 1 | control)
        self._first_edge.append(len(self._edges))

    def _id(self, name: str) -> int:
        number = self.ids.get(name)
        if number is None:
            number = self.ids[name] = len(self.names)
            self.names.append(name)
            self.places.append(-1)
        return number

    def place(self, name: str) -> int | None:
        number = self.ids.get(name)
        return None if number is None else self.places[number]

    def edges(self, place: int) -> array[int]:
        return self._edges[self._first_edge[place] : self._first_edge[place + 1]]
