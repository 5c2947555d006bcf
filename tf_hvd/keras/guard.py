"""Stops training that would go wrong in silence.

In a job of more than one rank it looks at two things:

- An update by an optimizer that is not distributed, in a tf.function (`fit` is one)
  that has computed the gradients and holds no collective that could have reduced
  them: seen when TensorFlow builds the function, before anything is trained.
- The ranks' weights at the end of the first epoch of each `fit`: 64 bits for each
  trainable variable, compared by one small collective.

Not looked at: variables that each rank has for itself (`register_local_var`), and
all that is not trained: moving statistics, metrics, seeds.

`unguarded()` and TF_HVD_GUARD=off turn it off.
"""

import contextlib
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd import basics, collectives, config
from tf_hvd.keras import agreement, compat, late, together
from tf_hvd.process_sets import ProcessSet, global_process_set

_log = logging.getLogger(__name__)

# One of them in a function may be what reduced the gradients.
_REDUCES = (
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodReducescatter",
)
# A tape puts what it computes under this name scope.
_BACKPROP = "gradient_tape/"

_OFF = (
    "If each rank is to train by itself, do it under `with tf_hvd.keras.unguarded():`, or set "
    "TF_HVD_GUARD=off."
)


class GuardError(Exception):
    """Training was stopped: the ranks did not train one model.

    Not a RuntimeError, for AutoGraph passes on the type of direct subclasses only.
    """


class _Off(threading.local):
    depth = 0


_off = _Off()


@contextlib.contextmanager
def unguarded() -> Iterator[None]:
    """Within it this thread's training is not watched: each rank may train what it likes."""
    _off.depth += 1
    try:
        yield
    finally:
        _off.depth -= 1


def watches() -> bool:
    """Whether training is watched: more than one rank, and not turned off."""
    return (
        _off.depth == 0 and basics.is_initialized() and basics.size() > 1 and config.guard() == "on"
    )


def before_update(optimizer: Any) -> None:
    """Any Keras optimizer is about to apply gradients.

    Raises:
      GuardError: nothing can have reduced them.
    """
    if compat.distribution_of(optimizer) is not None or not watches():
        return
    if _unreduced(compat.enclosing_graphs()):
        kind = type(optimizer).__name__
        raise GuardError(
            f"this job has {basics.size()} ranks, and {kind} would apply gradients that were not "
            "reduced over them, so that each rank would train a model of its own. Wrap it: "
            f"optimizer = tf_hvd.keras.DistributedOptimizer({kind}(...)). One that was wrapped and "
            "then made again (from_config, deepcopy, load_model) must be wrapped again; "
            f"tf_hvd.keras.load_model does so. {_OFF}"
        )


def _unreduced(graphs: Sequence[Any]) -> bool:
    """Whether gradients are computed in these functions, and nothing reduces them there."""
    operations = [op for graph in graphs for op in graph.get_operations()]
    if not any(_BACKPROP in op.name for op in operations):
        return False  # from elsewhere, and not known to be unreduced
    if any(op.type in _REDUCES for op in operations):
        return False
    return not any(_calls_a_reduction(graph) for graph in graphs)


def _calls_a_reduction(graph: Any) -> bool:
    """Whether a function that `graph` calls, at any depth, holds a reduction."""
    return any(
        node.op in _REDUCES
        for function in graph.as_graph_def().library.function
        for node in function.node_def
    )


def _leaves(model: Any) -> list[Any]:
    optimizer = getattr(model, "optimizer", None)
    return [] if optimizer is None else list(compat.leaves(optimizer))


def _counts(optimizer: Any) -> tuple[int, int] | None:
    """Updates that Keras counts and reductions; None if they are not counted."""
    distribution = compat.distribution_of(optimizer)
    updates = None if distribution is None else distribution.updates
    if updates is None or not agreement.takes_part(distribution.process_set):
        return None
    return int(optimizer.iterations.numpy()), updates


class Watch:
    """Watches one `fit` of a model."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._checked = False
        self._counts = [_counts(leaf) for leaf in _leaves(model)]

    def epoch_end(self) -> None:
        """An epoch has ended: after the first one, compares the weights.

        Raises:
          GuardError: on all ranks.
        """
        if self._checked or not watches() or not tf.executing_eagerly():
            return
        self._checked = True
        self._check_counts()
        found = [compat.distribution_of(leaf) for leaf in _leaves(self._model)]
        distribution = found[0] if found else None
        variables = self._model.trainable_variables
        if distribution is None:
            check_weights([v for v in variables if not compat.has_own_values(v)])
        else:
            check_weights(distribution.shared(variables), distribution.process_set)

    def _check_counts(self) -> None:
        for leaf, before in zip(_leaves(self._model), self._counts, strict=False):
            after = _counts(leaf)
            if before is None or after is None:
                continue
            calls, updates = after[0] - before[0], after[1] - before[1]
            if updates == 0 and calls > 0:
                raise GuardError(
                    f"{type(leaf).__name__} counts {calls} updates and reduced no gradient: its "
                    "class makes updates past the methods that tf_hvd hooks into. Use an optimizer "
                    "of Keras, or do not wrap this one and reduce with "
                    f"tf_hvd.DistributedGradientTape in a train_step of your own. {_OFF}"
                )


def check_weights(variables: Sequence[Any], process_set: ProcessSet = global_process_set) -> None:
    """Compares the bits of variables between ranks; all ranks must call it.

    Args:
      variables: tf.Variables or Keras variables, or a Keras model for its trainable
        ones: the same number on all ranks.
      process_set: the ranks that are compared.

    Raises:
      GuardError: they differ; on all ranks, with the same text.
    """
    variables = list(getattr(variables, "trainable_variables", variables))
    if not variables or not agreement.takes_part(process_set):
        return
    values = agreement.fingerprints(variables)
    wrong = agreement.unequal(values, process_set, "tf_hvd_guard_weights").numpy()
    if not wrong.any():
        return
    first = int(wrong.argmax())
    everyone = collectives.allgather(
        values[first : first + 1], name="tf_hvd_guard_first", process_set=process_set
    ).numpy()
    ranks = process_set.ranks or []
    like = [rank for rank, value in zip(ranks, everyone, strict=True) if value == everyone[0]]
    unlike = [rank for rank in ranks if rank not in like]
    raise GuardError(
        f"the ranks' weights differ in {int(wrong.sum())} of {len(variables)} variables, first in "
        f"{agreement.name_of(variables[first])}: {_listed(unlike)} not as {_listed(like)}. "
        f"{agreement.CAUSES} {_OFF}"
    )


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(str(rank) for rank in ranks[:8])
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}{more}"


class _Said:
    no_jit = False


def no_jit(model: Any) -> bool:
    """Whether a model that would be compiled by XLA holds collectives; says so once."""
    distributed = compat.distribution_of(getattr(model, "optimizer", None)) is not None
    if not distributed and not watches():
        return False
    if not _Said.no_jit and basics.is_initialized() and basics.rank() == 0:
        _Said.no_jit = True
        _log.warning(
            'jit_compile="auto" means False here: collectives cannot be compiled by XLA in this '
            "version of tf_hvd."
        )
    return True


class _Guard:
    """The functions above, as tf_hvd.keras.compat calls them."""

    before_update = staticmethod(before_update)
    watches = staticmethod(watches)
    train_begin = Watch
    surround = staticmethod(together.surround)
    no_jit = staticmethod(no_jit)


class _Installed:
    done = False


def install() -> None:
    """Makes Keras and tf_keras, imported or not yet, call the guard. Once."""
    if _Installed.done:
        return
    _Installed.done = True
    for name in ("keras", "tf_keras"):
        late.when_imported(name, lambda module: compat.patch(module, _Guard))


__all__ = ["GuardError", "check_weights", "install", "unguarded", "watches"]
