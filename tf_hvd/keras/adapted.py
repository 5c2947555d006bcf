"""Compare the adapted state of preprocessing layers across ranks, and synchronize it.

Normalization, Discretization, StringLookup, IntegerLookup and TextVectorization get their mean,
boundaries or vocabulary from `adapt`, from their constructor, or from a file. If each rank adapts
a layer to its own share of the data, the ranks train one model on differently scaled inputs.

- tf_hvd.keras.patches keeps a weak reference to every such layer that is created. No method except
  the constructor is hooked, because the comparison reads the current state. A layer's own `adapt`
  therefore calls no collective, and a single rank may call it.
- `fit` and `broadcast_variables` compare digests of all live layers, including layers that are used
  only in a dataset's `map`. Layers created within `unguarded()` are excluded.
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
# In the order of creation.
_layers: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_models: weakref.WeakSet[Any] = weakref.WeakSet()

_COMPILED = ("train_function", "test_function", "predict_function")
_CURE = (
    "Give all ranks the same state before training: hvd.broadcast_adapted(layers) copies the "
    "state of rank 0, hvd.adapt(layer, dataset) adapts to the data of all ranks."
)


def note_layer(layer: Any) -> None:
    # The table of a layer created in a v1 graph is in that graph and cannot be read.
    if tf.executing_eagerly() and not guard.is_unguarded():
        _layers[next(_numbers)] = layer


def note_model(model: Any) -> None:
    """Record a model that is about to compile a function with the state of its layers."""
    _models.add(model)


# The comparison.


class Layer(NamedTuple):
    kind: str
    family: str
    """The layer's name without the number that this process appended."""
    name: str
    digest: str
    """Digest of the layer's state; empty if the layer does not have a state yet."""
    shown: str


def _outermost(known: Sequence[Any]) -> list[Any]:
    """Drop layers that are inside other layers, such as the lookup in a TextVectorization."""
    pairs = [(layer, compat.lookup_of(layer)) for layer in known]
    inside = {id(lookup) for layer, lookup in pairs if lookup is not layer}
    return [layer for layer in known if id(layer) not in inside]


def layers() -> list[Layer]:
    """Return the state of all live layers in this process, in the order of their creation."""
    found = []
    with tf.init_scope():
        if not tf.executing_eagerly():
            return []
        for layer in _outermost(list(_layers.values())):
            kind = kind_of(layer)
            try:
                digest, shown = KINDS[kind].digest(layer)
            except Exception as error:  # the other ranks wait for this rank's answer
                digest, shown = "unreadable", f"unreadable ({type(error).__name__}: {error})"
            family = re.sub(r"_\d+$", "", layer.name)
            found.append(Layer(kind, family, layer.name, digest, shown))
    return found


def _unequal(everyone: Sequence[Sequence[Layer]]) -> tuple[int, int, Layer, Layer | None] | None:
    """Find two ranks with unequal layers.

    Args:
      everyone: for each rank, its layers.

    Returns:
      The indices of two ranks in `everyone`, and the unequal layer of each. The second layer is
      None if the second rank does not have a matching layer. None if all layers are equal.
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
            # This rank has additional layers, for example in a model that only this rank evaluates.
            left = Counter(each.digest for each in mine)
            for each in lists[fewest]:
                if not left[each.digest]:
                    return fewest, place, each, None
                left[each.digest] -= 1
    return None


def check(everyone: Sequence[Sequence[Layer]], process_set: ProcessSet) -> None:
    """Raise an error on all ranks if their layers differ.

    All ranks must pass the same arguments.
    """
    if _unequal(everyone) is None:
        return
    gc.collect()  # a model that all ranks dropped may still exist on one of them
    everyone = allgather_object(layers(), name="adapted_layers", process_set=process_set)
    found = _unequal(everyone)
    if found is None:
        return
    ranks = process_set.ranks or ()
    sides = sorted(((found[0], found[2]), (found[1], found[3])), key=lambda side: side[0])
    known: Any = sides[0][1] or sides[1][1]
    alike = len({layer and layer.shown for _, layer in sides}) == 1
    told = [f"{_state(layer, known, alike)} on rank {ranks[place]}" for place, layer in sides]
    raise guard.RanksDifferError(
        f"{_CURE}\nThe {known.kind} layer {known.name!r} has different states on different ranks: "
        f"{' and '.join(told)}.\nIf only one rank uses the layer, create it within `with "
        f"tf_hvd.unguarded():`.\n{guard.OFF}"
    )


def _state(layer: Layer | None, known: Layer, alike: bool) -> str:
    if layer is None:
        return "no such layer"
    digest = f", digest {layer.digest[:8]}" * alike
    named = "" if layer.name == known.name else f" ({layer.name!r})"
    return f"{layer.shown}{digest}{named}" if layer.digest else f"not adapted{named}"


def _follow_variables(broadcast: Sequence[Any]) -> None:
    kind, sent = KINDS["Normalization"], set(map(id, broadcast))
    normal = [layer for layer in _layers.values() if kind_of(layer) == "Normalization"]
    theirs = [layer for layer in normal if any(id(tf_variable(v)) in sent for v in layer.variables)]
    _forget_compiled([layer for layer in theirs if kind.follow_variables(layer)])


def _after_broadcast(process_set: ProcessSet, broadcast: Sequence[Any]) -> None:
    """Update layers from their variables, and then check that all ranks have equal layers."""
    _follow_variables(broadcast)  # separate, so that `check` can free the layers that it uses
    if not (agreement.takes_part(process_set) and guard.watches()):
        return
    mine = layers()
    text = repr([(each.kind, each.family, each.digest) for each in mine])
    if agreement.texts_differ(text, process_set, "adapted_layers"):
        check(allgather_object(mine, name="adapted_layers", process_set=process_set), process_set)


variables.after_broadcast.append(_after_broadcast)


# The repair.


def _all_of(given: Any) -> list[Any]:
    """The adaptable layers in `given`: a layer, model or FeatureSpace, or a list of them."""
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
                f"{each!r} is neither an adaptable layer nor a model. Pass a model, a FeatureSpace "
                f"or one of these layers: {', '.join(KINDS)}."
            )
        found += [layer for layer in inside if kind_of(layer)]
    return _outermost(list({id(each): each for each in found}.values()))


def _forget_compiled(changed: Sequence[Any]) -> None:
    """Make models recompile the functions that contain the old state of these layers."""
    wanted = set(map(id, changed))
    for model in list(_models) if wanted else ():
        if wanted.isdisjoint(map(id, compat.layers_of(model))):
            continue
        for name in _COMPILED:
            if (
                getattr(model, name, None) is not None
            ):  # made at once, because a running `fit` may call it
                getattr(model, f"make_{name}")(force=True)


def broadcast_adapted(
    layers: Any, root_rank: int = 0, *, process_set: ProcessSet = global_process_set
) -> None:
    """Copy the adapted state of layers (mean, boundaries, vocabulary) from one rank to all ranks.

    `broadcast_variables` does not copy this state, because layers do not read it from variables
    when they run. All ranks of the set must call this function with the same layers in the same
    order. Only the root rank needs to adapt the layers.

    Keras functions already compiled for models with these layers are recompiled the next time they
    run. A dataset's `map` and your own `tf.function` keep the old state, so create them after
    calling `broadcast_adapted`.

    Example:
      layer = keras.layers.Normalization()
      if hvd.rank() == 0:
          layer.adapt(np.arange(6.0).reshape(3, 2))
      hvd.broadcast_adapted(layer)

    Args:
      layers: a Normalization, Discretization, StringLookup, IntegerLookup or TextVectorization
        layer from Keras 3 or tf_keras. Models with such layers, FeatureSpaces that all ranks have
        adapted, and lists of these are also accepted.
      root_rank: rank that provides the state. This is its rank in the whole job, even if
        `process_set` is smaller.
      process_set: the ranks that get the state; it must contain `root_rank`.

    Raises:
      ValueError: `layers` contains an object without layers. Raised on this rank only.
      ValueError: `root_rank` is not in the set, or the ranks' layers or shapes are incompatible.
        Raised on all ranks.
      ValueError: a layer is adapted on another rank but not on the root rank. Raised on all ranks.
      NotInitializedError: `init` was not called.
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
            f"broadcast_adapted: root_rank={root_rank} is not in the process set, which has the "
            f"ranks {ranks}."
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
    """Raise an error unless all ranks' layers are compatible with the root rank's state."""
    for rank, theirs in zip(ranks, everyone, strict=True):
        if len(theirs) != len(root):
            raise ValueError(
                f"broadcast_adapted: rank {root_rank} passed {len(root)} layers, rank {rank} "
                f"passed {len(theirs)}. Pass the same layers on all ranks."
            )
        for (name, fixed, digest, _), (other, theirs_fixed, there, _) in zip(
            root, theirs, strict=True
        ):
            if there and not digest:
                raise ValueError(
                    f"broadcast_adapted: layer {name!r} is not adapted on rank {root_rank}, but "
                    f"layer {other!r} on rank {rank} is. Adapt the layer on rank {root_rank}, or "
                    "pass another root_rank."
                )
            if not _fit_together(fixed, theirs_fixed):
                raise ValueError(
                    f"broadcast_adapted: layer {name!r} on rank {root_rank} and layer {other!r} on "
                    f"rank {rank} are incompatible: {_fixed(fixed)} and {_fixed(theirs_fixed)}. "
                    "Create the same layers on all ranks, and pass them in the same order."
                )


def _fit_together(one: tuple[str, bool, Any], other: tuple[str, bool, Any]) -> bool:
    shapes = one[2], other[2]
    return one[:2] == other[:2] and (None in shapes or shapes[0] == shapes[1])


def _fixed(fixed: tuple[str, bool, Any]) -> str:
    kind, given, shape = fixed
    shaped = kind if shape is None else f"{kind} of shape {shape}"
    return shaped + ", with its state passed to the constructor," * given


def adapt(
    layer: Any,
    data: Any,
    *,
    process_set: ProcessSet = global_process_set,
    steps: int | None = None,
) -> None:
    """Adapt a layer to the data of all ranks. The state is bitwise identical on all ranks.

    All ranks of the set must call this function, each with its own share of the data. Shares may be
    uneven or empty. The state is the same as in one process with the data of all ranks:

    - Normalization: the mean and variance of all elements, computed in float64.
    - StringLookup, IntegerLookup and TextVectorization: a vocabulary made from the token counts of
      all ranks. Options such as ngrams, max_tokens and tf_idf are supported.
    - Discretization: quantiles of all elements, within the layer's `epsilon` as in one process.
      The quantiles are exact if each rank has fewer than 1 / epsilon elements.

    Keras functions already compiled for models with this layer are recompiled the next time they
    run.

    Example:
      texts = tf.data.Dataset.from_tensor_slices(["one", "two", "two", "three"])
      layer = keras.layers.TextVectorization(max_tokens=10_000)
      hvd.adapt(layer, hvd.shard(texts, uneven="keep").batch(256))

    Args:
      layer: one of the layers above, from Keras 3 or tf_keras, or a FeatureSpace.
      data: this rank's data: a batched dataset or an array, as for the layer's own `adapt`.
      process_set: the ranks that provide data and get the state.
      steps: number of batches to read on each rank. Default None: all. Ignored for a FeatureSpace.

    Raises:
      ValueError: `layer` is neither an adaptable layer nor a FeatureSpace. Raised on all ranks: no
        rank has data, or the shapes of the ranks' data are incompatible.
      RuntimeError: another rank could not read its data; the message includes that rank's error.
      Exception: any error that occurs while this rank reads its data.
      tf.errors.FailedPreconditionError: `init` was not called.
    """
    name = kind_of(layer)
    if not name and hasattr(layer, "preprocessors"):
        _adapt_inside(layer, data, process_set)
        return
    if not name:
        raise ValueError(
            f"hvd.adapt supports {', '.join(KINDS)} and FeatureSpace, not {type(layer).__name__}. "
            "Adapt this layer to the same data on all ranks, or broadcast its state yourself."
        )
    mine, failed = None, None
    try:
        mine = KINDS[name].measure(layer, data, steps)
    except Exception as error:  # reading may raise any error, and the other ranks wait
        failed = error
    told = (name, None if failed is None else error_text.of(failed), mine)
    everyone = allgather_object(told, name="adapt", process_set=process_set)
    if failed is not None:
        raise failed
    for rank, (kind, text, _) in zip(process_set.ranks or (), everyone, strict=True):
        if text is not None:
            raise RuntimeError(f"adapt: rank {rank} could not read its data: {text}")
        if kind != name:
            raise ValueError(
                f"adapt: the ranks passed different layers: {name} on this rank, {kind} on rank "
                f"{rank}. Pass the same layer on all ranks."
            )
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
