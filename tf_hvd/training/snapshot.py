"""Save the state that each rank keeps outside variables, and restore it when training resumes.

This state includes:

- the states of Python's and NumPy's random generators, and of generators that are not among the
  model's variables;
- sums of gradients of an incomplete update (`backward_passes_per_step`);
- the position in the rank's data, and other parts that a caller registers.

BackupAndRestore (keras/rank_state.py) stores the state in a file next to Keras' backup. Elastic
states (elastic/state.py) store it in commits.

Both callers save variables themselves, because they have different ways to find variables that
differ between ranks. BackupAndRestore compares them with the first rank's variables. Elastic states
check whether a variable was assigned to.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tf_hvd.training.aggregation import GradientAggregation

_PASSES = "passes"
_Merge = Callable[[Sequence[Any]], Any]


class Snapshot:
    """The state of one rank, as parts with names.

    Args:
      generators: function that returns the state variables of random generators, by name, except
        those among the model's variables.
      aggregations: function that returns the gradient aggregations of all optimizers. None
        (default) if there are no optimizers.
    """

    def __init__(
        self,
        generators: Callable[[], Mapping[str, Any]] = dict,
        aggregations: Callable[[], Sequence[GradientAggregation]] | None = None,
    ) -> None:
        self._generators = generators
        self._parts: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {}
        self._taken: dict[str, Any] = {}  # for parts that are not registered yet
        self._merges: dict[str, _Merge | None] = {}
        self._to_merge: dict[str, list[Any]] = {}  # the same, from another number of ranks
        if aggregations is not None:
            self.follow(
                _PASSES,
                lambda: [each.collect() for each in aggregations()],
                lambda found: _restore_passes(aggregations(), found),
            )

    def follow(
        self,
        name: str,
        collect: Callable[[], Any],
        restore: Callable[[Any], None],
        merge: _Merge | None = None,
    ) -> None:
        """Register a part of the state; it replaces a part with the same name.

        If the state was restored before and contains this part, the part is restored immediately.

        Args:
          name: name of the part.
          collect: function that returns the part.
          restore: function that restores the part from the result of `collect`.
          merge: function that makes this rank's part from the parts of all ranks of a job with
            another number of ranks. It returns None if the part cannot be restored, as without a
            `merge`.
        """
        self._parts[name] = collect, restore
        self._merges[name] = merge
        if name in self._taken:
            restore(self._taken.pop(name))
        self._restore_merged(name)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._parts)

    def collect(self) -> dict[str, Any]:
        return {name: collect() for name, (collect, _) in self._parts.items()}

    def restore(self, collected: Mapping[str, Any]) -> None:
        """Restore the parts of a state; a part that is registered later is restored then."""
        self._taken = dict(collected)
        for name in self._taken.keys() & self._parts.keys():
            self._parts[name][1](self._taken.pop(name))

    def restore_resized(self, everyone: Sequence[Mapping[str, Any]]) -> None:
        """Restore the parts that have a `merge`.

        Args:
          everyone: the results of `collect` on all ranks of a job with another number of ranks.
        """
        names = {name for collected in everyone for name in collected}
        self._to_merge = {name: [each[name] for each in everyone if name in each] for name in names}
        for name in self._to_merge.keys() & self._parts.keys():
            self._restore_merged(name)

    def _restore_merged(self, name: str) -> None:
        found, merge = self._to_merge.pop(name, None), self._merges[name]
        part = merge(found) if found and merge else None
        if part is not None:
            self._parts[name][1](part)

    def random_numbers(self) -> dict[str, Any]:
        states = {name: state.numpy() for name, state in self._generators().items()}
        return {"python": random.getstate(), "numpy": np.random.get_state(), "states": states}

    def restore_random_numbers(self, found: Mapping[str, Any]) -> None:
        """Restore the result of `random_numbers`, if it contains Python's state."""
        if "python" not in found:
            return
        random.setstate(found["python"])
        np.random.set_state(found["numpy"])
        known = self._generators()
        for name in known.keys() & found["states"].keys():
            known[name].assign(found["states"][name])


def _restore_passes(aggregations: Sequence[GradientAggregation], found: Sequence[Any]) -> None:
    for each, collected in zip(aggregations, found, strict=False):
        each.restore(collected)
