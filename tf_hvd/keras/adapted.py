"""Layers with a state that data gives them: alike on all ranks, and made so.

Normalization, Discretization, StringLookup, IntegerLookup and TextVectorization take their mean,
boundaries or vocabulary from `adapt`, from their constructor, or from a file. Ranks that have each
adapted to its own share train with equal weights on unequal inputs, and predict differently.

- Every such layer is noted when it is made (tf_hvd.keras.patches), by a weak reference. Nothing
  else is hooked: whatever sets the state (`adapt`, `set_vocabulary`, a file, the constructor),
  the comparison reads the state that the layer has then. A rank may adapt alone; that calls no
  collective.
- `fit` and `broadcast_variables` compare digests of all layers that are alive, since a layer may
  be in a dataset's `map` and in no model. Layers that were made within `unguarded()` are left out.
- `broadcast_adapted` copies one rank's state, and `adapt` adapts to the data of all ranks.
"""

import functools
import gc
import itertools
import re
import weakref
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tf_hvd.collectives import variables
from tf_hvd.collectives.objects import allgather_object
from tf_hvd.core import basics, error_text
from tf_hvd.core.process_sets import ProcessSet, global_process_set
from tf_hvd.core.tensorflow_hooks import tf_variable
from tf_hvd.keras import compat
from tf_hvd.keras.adapted_state import KINDS, kind_of
from tf_hvd.training import agreement, guard

_numbers = itertools.count()
# In the order in which they were made.
_layers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_models: weakref.WeakSet[Any] = weakref.WeakSet()

_COMPILED = ("train_function", "test_function", "predict_function")
_CURE = (
    "Give all ranks the same state before training: hvd.broadcast_adapted(layers) copies that of "
    "rank 0, hvd.adapt(layer, dataset) adapts to the data of all ranks."
)


def note_layer(layer: Any) -> None:
    # One that is made in a graph of v1 has its table there, where nobody can read it.
    if tf.executing_eagerly() and not guard.is_unguarded():
        _layers[next(_numbers)] = layer


def note_model(model: Any) -> None:
    """A model is about to compile a function, which will hold the state of its layers."""
    _models.add(model)


# The comparison.


class Layer(NamedTuple):
    kind: str
    family: str
    """Its name without the number that this process has counted."""
    name: str
    digest: str
    """Empty: it has no state yet."""
    shown: str


def _outermost(known: Sequence[Any]) -> list[Any]:
    """Those of the layers that are not in another one, as a lookup is in a TextVectorization."""
    pairs = [(layer, compat.lookup_of(layer)) for layer in known]
    inside = {id(lookup) for layer, lookup in pairs if lookup is not layer}
    return [layer for layer in known if id(layer) not in inside]


def layers() -> list[Layer]:
    """All layers of this process that are alive, in the order in which they were made."""
    found = []
    with tf.init_scope():
        if not tf.executing_eagerly():
            return []
        for layer in _outermost(list(_layers.values())):
            kind = kind_of(layer)
            try:
                digest, shown = KINDS[kind].digest(layer)
            except Exception as error:  # the other ranks wait for what this one says
                digest, shown = "unreadable", f"unreadable ({type(error).__name__}: {error})"
            family = re.sub(r"_\d+$", "", layer.name)
            found.append(Layer(kind, family, layer.name, digest, shown))
    return found


def _unequal(everyone: Sequence[Sequence[Layer]]) -> tuple[int, int, Layer, Layer | None] | None:
    """Two places and their layers that should be alike and are not; None if there are none.

    The second place has perhaps no layer that could be the first's.
    """
    for key in dict.fromkeys((each.kind, each.family) for mine in everyone for each in mine):
        lists = [[each for each in mine if (each.kind, each.family) == key] for mine in everyone]
        fewest = min(range(len(lists)), key=lambda place: len(lists[place]))
        for place, mine in enumerate(lists):
            if len(mine) == len(lists[fewest]):
                for a, b in zip(lists[fewest], mine, strict=True):
                    if a.digest != b.digest:
                        return fewest, place, a, b
                continue
            # This rank has more of them, such as those of a model that it alone evaluates.
            left = Counter(each.digest for each in mine)
            for each in lists[fewest]:
                if not left[each.digest]:
                    return fewest, place, each, None
                left[each.digest] -= 1
    return None


def check(everyone: Sequence[Sequence[Layer]], process_set: ProcessSet) -> None:
    """Raises, on all ranks, if their layers are not alike; called on all with the same."""
    if _unequal(everyone) is None:
        return
    gc.collect()  # a model that a rank has dropped may be there still, on this rank alone
    everyone = allgather_object(layers(), name="adapted_layers", process_set=process_set)
    found = _unequal(everyone)
    if found is None:
        return
    ranks = process_set.ranks or ()
    sides = sorted(((found[0], found[2]), (found[1], found[3])), key=lambda side: side[0])
    known: Any = sides[0][1] or sides[1][1]
    alike = len({layer and layer.shown for _, layer in sides}) == 1
    told = [f"{_state(layer, known, alike)} on rank {ranks[place]}" for place, layer in sides]
    raise guard.GuardError(
        f"{_CURE}\nThe ranks' {known.kind} layer {known.name!r} has different states: "
        f"{' and '.join(told)}.\nCreate a layer that belongs to one rank only within `with "
        f"tf_hvd.keras.unguarded():`.\n{guard.OFF}"
    )


def _state(layer: Layer | None, known: Layer, alike: bool) -> str:
    if layer is None:
        return "none like it"
    digest = f", digest {layer.digest[:8]}" * alike
    named = "" if layer.name == known.name else f" ({layer.name!r})"
    return f"{layer.shown}{digest}{named}" if layer.digest else f"not adapted{named}"


def _follow_variables(broadcast: Sequence[Any]) -> None:
    kind, sent = KINDS["Normalization"], set(map(id, broadcast))
    normal = [layer for layer in _layers.values() if kind_of(layer) == "Normalization"]
    theirs = [layer for layer in normal if any(id(tf_variable(v)) in sent for v in layer.variables)]
    _forget_compiled([layer for layer in theirs if kind.follow_variables(layer)])


def _after_broadcast(process_set: ProcessSet, broadcast: Sequence[Any]) -> None:
    """Has layers follow their variables, and compares all ranks'; raises as `check` does."""
    _follow_variables(broadcast)  # by itself: what it holds could not be freed in `check`
    if not (agreement.takes_part(process_set) and guard.watches()):
        return
    mine = layers()
    text = repr([(each.kind, each.family, each.digest) for each in mine])
    if agreement.texts_differ(text, process_set, "adapted_layers"):
        check(allgather_object(mine, name="adapted_layers", process_set=process_set), process_set)


variables.after_broadcast.append(_after_broadcast)


# The repair.


def _all_of(given: Any) -> list[Any]:
    """The layers that are meant."""
    found = []
    for each in given if isinstance(given, (list, tuple)) else [given]:
        if kind_of(each):
            found.append(each)
            continue
        if hasattr(each, "preprocessors"):  # a FeatureSpace
            inside = list(each.preprocessors.values())
        elif hasattr(each, "layers"):
            inside = compat.layers_of(each)
        else:
            raise ValueError(
                f"{each!r} is no layer that can be adapted ({', '.join(KINDS)}) and no model."
            )
        found += [layer for layer in inside if kind_of(layer)]
    return _outermost(list({id(each): each for each in found}.values()))


def _forget_compiled(changed: Sequence[Any]) -> None:
    """Has models compile anew the functions that hold the former state of these layers."""
    wanted = set(map(id, changed))
    for model in list(_models) if wanted else ():
        if wanted.isdisjoint(map(id, compat.layers_of(model))):
            continue
        for name in _COMPILED:
            if getattr(model, name, None) is not None:  # Keras may be in a `fit` that calls it
                getattr(model, f"make_{name}")(force=True)


def broadcast_adapted(
    layers: Any, root_rank: int = 0, process_set: ProcessSet = global_process_set
) -> None:
    """Gives layers the adapted state (mean, boundaries, vocabulary) that they have on one rank.

    `broadcast_variables` does not: this state is not in variables, or is copied from them when the
    layer is adapted. All ranks of the set call it, with the same layers in the same order; they
    may have been adapted on the root only. Functions that Keras has compiled for models with these
    layers are compiled again when they are next called. A dataset's `map` and a `tf.function` of
    your own keep the former state: make them after this call.

    Example:
      layer = keras.layers.Normalization()
      if hvd.rank() == 0:
          layer.adapt(data)
      hvd.broadcast_adapted(layer)

    Args:
      layers: a Normalization, Discretization, StringLookup, IntegerLookup or TextVectorization of
        Keras 3 or tf_keras, a model for all of them inside, a FeatureSpace that all ranks have
        adapted, or a list of these.
      root_rank: the rank whose state counts, as numbered in the job even for a process set.
      process_set: who takes part.

    Raises:
      ValueError: on all ranks: the root has not adapted a layer that another rank has; the ranks
        gave different layers, or layers whose shapes do not fit together; `root_rank` is not in
        the set. On this rank: something that is no such layer; `init` was not called.
    """
    mine = _all_of(layers)
    is_root = basics.rank() == root_rank
    told = []
    for layer in mine:
        kind = KINDS[kind_of(layer)]
        digest, _ = kind.digest(layer)
        fixed = kind_of(layer), kind.is_given(layer), kind.shape(layer)
        told.append((layer.name, fixed, digest, kind.read(layer) if is_root and digest else None))
    everyone = allgather_object(told, name="broadcast_adapted", process_set=process_set)
    ranks = list(process_set.ranks or ())
    if root_rank not in ranks:
        raise ValueError(
            f"broadcast_adapted: root_rank={root_rank} is not among the ranks {ranks}."
        )
    root = everyone[ranks.index(root_rank)]
    _check_alike(root, everyone, root_rank, ranks)
    changed = []
    for layer, (_, _, digest, state), (_, _, before, _) in zip(mine, root, told, strict=True):
        if digest != before:
            KINDS[kind_of(layer)].write(layer, state)
            changed.append(layer)
    _forget_compiled(changed)


def _check_alike(
    root: Sequence[Any], everyone: Sequence[Sequence[Any]], root_rank: int, ranks: Sequence[int]
) -> None:
    """Raises unless all ranks' layers can have the root's state."""
    for rank, theirs in zip(ranks, everyone, strict=True):
        if len(theirs) != len(root):
            raise ValueError(
                f"broadcast_adapted: {len(root)} layers on rank {root_rank}, {len(theirs)} on "
                f"rank {rank}. Give the same layers on all ranks."
            )
        for (name, fixed, digest, _), (other, theirs_fixed, there, _) in zip(
            root, theirs, strict=True
        ):
            if there and not digest:
                raise ValueError(
                    f"broadcast_adapted: layer {name!r} is not adapted on rank {root_rank}, but is "
                    f"on rank {rank} ({other!r}). Adapt it on rank {root_rank}, or name another "
                    "root_rank."
                )
            if not _fit_together(fixed, theirs_fixed):
                raise ValueError(
                    f"broadcast_adapted: layer {name!r} of rank {root_rank} and layer {other!r} of "
                    f"rank {rank} do not fit together: {_fixed(fixed)}, {_fixed(theirs_fixed)}. "
                    "Make the same layers on all ranks, and give them in the same order."
                )


def _fit_together(one: tuple[str, bool, Any], other: tuple[str, bool, Any]) -> bool:
    shapes = one[2], other[2]
    return one[:2] == other[:2] and (None in shapes or shapes[0] == shapes[1])


def _fixed(fixed: tuple[str, bool, Any]) -> str:
    kind, given, shape = fixed
    made = " with the state in the constructor" * given
    return f"{kind}{made}" + ("" if shape is None else f" of {shape}")


def adapt(
    layer: Any,
    data: Any,
    process_set: ProcessSet = global_process_set,
    steps: int | None = None,
) -> None:
    """Adapts a layer to the data of all ranks together: the same state, bit for bit, on all.

    Each rank gives its own share, also an uneven or empty one, and all ranks of the set call it.
    The state is that of one process with the data of all ranks:

    - Normalization: mean and variance of all elements, computed in float64.
    - StringLookup, IntegerLookup, TextVectorization (with ngrams, max_tokens and tf_idf): counts
      are added up, and Keras makes the vocabulary of the sums.
    - Discretization: quantiles of the merged summaries; within the layer's `epsilon`, as in one
      process. Exact where each rank has fewer than 1 / epsilon elements.

    Functions that Keras has compiled are treated as by `broadcast_adapted`.

    Example:
      layer = keras.layers.TextVectorization(max_tokens=10_000)
      hvd.adapt(layer, hvd.shard(texts, uneven="keep").batch(256))

    Args:
      layer: a layer of these kinds, of Keras 3 or tf_keras, or a FeatureSpace.
      data: this rank's data, as the layer's own `adapt` takes them: a batched dataset, an array.
      process_set: who takes part.
      steps: how many batches of the data are read; None: all. Not for a FeatureSpace.

    Raises:
      ValueError: the layer is of another kind; or, on all ranks: there are no data on any rank, or
        their shapes do not fit together.
      RuntimeError: another rank could not read its data; the text says why.
      Exception: what reading this rank's data has raised.
      tf.errors.FailedPreconditionError: `init` was not called.
    """
    name = kind_of(layer)
    if not name and hasattr(layer, "preprocessors"):
        _adapt_inside(layer, data, process_set)
        return
    if not name:
        raise ValueError(
            f"hvd.adapt takes {', '.join(KINDS)} or a FeatureSpace, not {type(layer).__name__}. "
            "Adapt it to the same data on all ranks, or broadcast its state yourself."
        )
    mine, failed = None, None
    try:
        mine = KINDS[name].measure(layer, data, steps)
    except Exception as error:  # whatever the data raise: the other ranks wait
        failed = error
    told = (name, None if failed is None else error_text.of(failed), mine)
    everyone = allgather_object(told, name="adapt", process_set=process_set)
    if failed is not None:
        raise failed
    for rank, (kind, text, _) in zip(process_set.ranks or (), everyone, strict=True):
        if text is not None:
            raise RuntimeError(f"adapt: rank {rank} could not read its data: {text}")
        if kind != name:
            raise ValueError(f"adapt: the layer is a {name} here and a {kind} on rank {rank}.")
    KINDS[name].merge(layer, [share for _, _, share in everyone])
    _forget_compiled([layer])


def _adapt_inside(space: Any, data: Any, process_set: ProcessSet) -> None:
    inside = _all_of(space)
    for layer in inside:
        layer.adapt = functools.partial(adapt, layer, process_set=process_set)
    try:
        space.adapt(data)
    finally:
        for layer in inside:
            del layer.adapt
