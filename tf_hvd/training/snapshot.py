"""The state that each rank has for itself: collected, and restored when a training resumes.

Keras' BackupAndRestore (keras/rank_state.py) and elastic states (elastic/state.py) keep it, the one
in a file beside Keras' backup, the other in commits:

- the random numbers of Python and NumPy, and of generators outside of the model's variables;
- sums of gradients of an update that is not complete (`backward_passes_per_step`);
- the place in the rank's data, and what else somebody follows.

Variables are collected by those who keep them, as they know which ones differ from rank to rank:
resume compares them with the first rank's, where names may be others than before; elastic states
look whether they were assigned to, and have one name for each in all starts.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tf_hvd.training.aggregation import GradientAggregation

_PASSES = "passes"


class Snapshot:
    """The state of one rank, in named parts.

    Args:
      generators: gives the variables of random numbers that are not among the model's, by name.
      aggregations: gives what adds up the passes of each optimizer; None: there is no optimizer.
    """

    def __init__(
        self,
        generators: Callable[[], Mapping[str, Any]] = dict,
        aggregations: Callable[[], Sequence[GradientAggregation]] | None = None,
    ) -> None:
        self._generators = generators
        self._parts: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {}
        self._taken: dict[str, Any] = {}  # for parts that are not followed yet
        if aggregations is not None:
            self.follow(
                _PASSES,
                lambda: [each.collect() for each in aggregations()],
                lambda found: _restore_passes(aggregations(), found),
            )

    def follow(self, name: str, collect: Callable[[], Any], restore: Callable[[Any], None]) -> None:
        """Has a part collected, in place of one of the same name.

        One that was taken before is restored at once.
        """
        self._parts[name] = collect, restore
        if name in self._taken:
            restore(self._taken.pop(name))

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._parts)

    def collect(self) -> dict[str, Any]:
        return {name: collect() for name, (collect, _) in self._parts.items()}

    def restore(self, collected: Mapping[str, Any]) -> None:
        """Takes parts back; those that are not followed yet as soon as they are."""
        self._taken = dict(collected)
        for name in self._taken.keys() & self._parts.keys():
            self._parts[name][1](self._taken.pop(name))

    def random_numbers(self) -> dict[str, Any]:
        states = {name: state.numpy() for name, state in self._generators().items()}
        return {"python": random.getstate(), "numpy": np.random.get_state(), "states": states}

    def restore_random_numbers(self, found: Mapping[str, Any]) -> None:
        """Takes back what `random_numbers` gave, if that is in it."""
        if "python" not in found:
            return
        random.setstate(found["python"])
        np.random.set_state(found["numpy"])
        there = self._generators()
        for name in there.keys() & found["states"].keys():
            there[name].assign(found["states"][name])


def _restore_passes(aggregations: Sequence[GradientAggregation], found: Sequence[Any]) -> None:
    for each, collected in zip(aggregations, found, strict=False):
        each.restore(collected)
