"""A graph's function library. In its FunctionDefs, edges contain the ops' output names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tf_hvd.strip.builder import Builder, unused
from tf_hvd.strip.errors import DamagedError
from tf_hvd.strip.graph import Found
from tf_hvd.strip.rules import RULES, meaning_of, rewrite, rule_of


def called_functions(node: Any) -> Iterator[str]:
    """Yield the names of the functions that a node refers to, in its attributes or as its op."""
    yield node.op
    for value in node.attr.values():
        kind = value.WhichOneof("value")
        if kind == "func":
            yield value.func.name
        elif kind == "list":
            yield from (function.name for function in value.list.func)


class Library:
    def __init__(self, library: Any) -> None:
        self.ours: list[Found] = []
        self._functions = {function.signature.name: function for function in library.function}
        self._all = library.function
        for function in library.function:
            self.ours += [
                Found(node.op, node.name, function.signature.name, meaning_of(node))
                for node in function.node_def
                if rule_of(node) is not None
            ]

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, name: str) -> bool:
        return name in self._functions

    def reached(self, names: Iterable[str]) -> list[Found]:
        """Return the tf_hvd ops that the results of the named functions depend on.

        This includes ops in functions that the named functions call.
        """
        seen: set[str] = set()
        waiting = [name for name in names if name in self]
        result: list[Found] = []
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            for node in _needed(self._functions[name]):
                if rule_of(node) is not None:
                    result.append(Found(node.op, node.name, name, meaning_of(node)))
                waiting.extend(called for called in called_functions(node) if called in self)
        return result

    def rewrite(self) -> None:
        names = {found.function for found in self.ours}
        for function in self._all:
            if function.signature.name in names:
                rewrite_function(function)


def _needed(function: Any) -> Iterator[Any]:
    nodes = {node.name: node for node in function.node_def}
    waiting = [edge.partition(":")[0] for edge in function.ret.values()]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen or name not in nodes:
            continue
        seen.add(name)
        yield nodes[name]
        edges = (edge for edge in nodes[name].input if not edge.startswith("^"))
        waiting.extend(edge.partition(":")[0] for edge in edges)


def rewrite_function(function: Any) -> None:
    arguments = {argument.name for argument in function.signature.input_arg}
    taken = arguments | {node.name for node in function.node_def}
    ops: dict[str, str] = {}
    nodes: list[Any] = []

    for node in function.node_def:
        if rule_of(node) is None:
            nodes.append(node)
            continue
        ops[node.name] = node.op
        build = Builder(node, lambda name: unused(name, taken), True, arguments)
        nodes.extend(rewrite(build))
    for node in nodes:
        for i, edge in enumerate(node.input):
            node.input[i] = _renamed(edge, ops)
    for key, edge in dict(function.ret).items():
        function.ret[key] = _renamed(edge, ops)
    copies = [type(node).FromString(node.SerializeToString()) for node in nodes]
    del function.node_def[:]
    function.node_def.extend(copies)


def _renamed(edge: str, ops: dict[str, str]) -> str:
    """Return an edge from a replaced node, rewritten for the output of the replacement."""
    name, *rest = edge.split(":")
    if name not in ops or not rest:
        return edge
    first = RULES[ops[name]].outputs.get(rest[0])
    # Edges within a replacement already have the new form.
    if first is None:
        return edge
    number = rest[1] if len(rest) > 1 else "0"
    if not number.isdecimal():
        raise DamagedError(f"an edge reads output '{number}' of node '{name}'")
    return f"{name}:output:{first + int(number)}"
