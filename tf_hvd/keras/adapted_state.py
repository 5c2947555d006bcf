"""Read, write and compute the state of adapted layers, for each kind of layer.

The kinds are Normalization, Discretization, StringLookup, IntegerLookup and TextVectorization, of
Keras 3 and tf_keras. Tokens are compared and sent as stored in the lookup table: bytes or integers.
"""

import functools
import hashlib
import itertools
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_hvd.core.tensorflow_hooks import on_host, tf_variable
from tf_hvd.keras import compat

# For each table, its size when it was read and the digest of its tokens. Cached, because a table
# may have many tokens.
_digests: weakref.WeakKeyDictionary[Any, tuple[int, str]] = weakref.WeakKeyDictionary()


def _is_keras_3(target: Any) -> bool:
    """Whether an object's class is a Keras 3 class or a subclass of one."""
    return any(kind.__module__.partition(".")[0] == "keras" for kind in type(target).__mro__)


def _array(value: Any) -> np.ndarray:
    return np.asarray(tf.convert_to_tensor(tf_variable(value)))


def _tokens(lookup: Any) -> np.ndarray:
    """The vocabulary in order, without special tokens, as an array of bytes or integers."""
    table = lookup.lookup_table
    with on_host():
        if int(table.size()) == 0:
            return np.array([], object)
        keys, values = (part.numpy() for part in table.export())
    tokens, places = (values, keys) if lookup.invert else (keys, values)
    return np.asarray(tokens[np.argsort(places)])


class _Normalization:
    def is_given(self, layer: Any) -> bool:
        """Whether the state came from the constructor, and therefore cannot be adapted."""
        return layer.input_mean is not None

    def shape(self, layer: Any) -> Any:
        """The layer's shape, which must be the same on all ranks; None if it is not known yet."""
        if self.is_given(layer):
            return np.shape(layer.input_mean)
        return tuple(layer.adapt_mean.shape) if layer.built else None

    def _used(self, layer: Any) -> list[np.ndarray]:
        """The mean and variance that `call` uses, which are constants rather than variables."""
        if self.is_given(layer):
            return [np.asarray(layer.input_mean), np.asarray(layer.input_variance)]
        if getattr(layer, "mean", None) is None:
            return []
        if not hasattr(layer.mean, "numpy"):  # the layer was built in a graph
            return [_array(layer.adapt_mean), _array(layer.adapt_variance)]
        return [_array(layer.mean), _array(layer.variance)]

    def digest(self, layer: Any) -> tuple[str, str]:
        """The state's digest and a text with part of the state; both are empty without a state."""
        used = self._used(layer)
        if not used or not (self.is_given(layer) or used[0].any() or (used[1] != 1).any()):
            return "", ""
        shown = f"mean {float(used[0].ravel()[0]):.6g}" + ", ..." * (used[0].size > 1)
        return _digest(*used), shown

    def read(self, layer: Any) -> Any:
        if self.is_given(layer):
            mean, variance = self._used(layer)
            return {"mean": mean, "variance": variance}
        return {
            "shape": tf.TensorShape(layer.get_build_config()["input_shape"]).as_list(),
            "mean": _array(layer.adapt_mean),
            "variance": _array(layer.adapt_variance),
            "count": int(_array(layer.count)),
        }

    def write(self, layer: Any, state: Any) -> None:
        if self.is_given(layer):
            layer.input_mean, layer.input_variance = state["mean"], state["variance"]
            if layer.built:
                layer.build_from_config(layer.get_build_config())
            return
        if not layer.built:
            layer.build_from_config({"input_shape": tuple(state["shape"])})
        layer.adapt_mean.assign(state["mean"])
        layer.adapt_variance.assign(state["variance"])
        layer.count.assign(state["count"])
        layer.finalize_state()

    def follow_variables(self, layer: Any) -> bool:
        """Make `call` use the variables' current values; return True if this changes the state."""
        if self.is_given(layer) or not layer.built:
            return False
        before = self.digest(layer)
        layer.finalize_state()
        return self.digest(layer) != before

    def measure(self, layer: Any, data: Any, steps: int | None) -> Any:
        """The shape, count, mean and squared deviations of this rank's data."""
        if self.is_given(layer):
            raise ValueError(
                f"adapt cannot change the state of layer {layer.name!r}, because it was created "
                "with mean= and variance=. Remove these arguments."
            )
        shape: tuple[int, ...] | None = None
        total: _Moments | None = None
        for batch in itertools.islice(_batches(layer, data), steps):
            values = _array(batch).astype(np.float64)
            kept = {axis % values.ndim for axis in layer.axis} if values.ndim else set()
            shape = tuple(n if axis in kept else 1 for axis, n in enumerate(values.shape))
            found = _moments(values, tuple(a for a in range(values.ndim) if a not in kept))
            total = _combined(total, found)
        return shape, total

    def merge(self, layer: Any, shares: Sequence[Any]) -> None:
        """Set the layer's state from the measurements of all ranks."""
        shares = [share for share in shares if share[1] is not None]
        shapes = sorted({shape for shape, _ in shares})
        if len(shapes) != 1:
            raise ValueError(
                f"adapt: layer {layer.name!r} got no data on any rank. Pass data on at least one."
                if not shapes
                else f"adapt: the ranks' data for layer {layer.name!r} have different shapes along "
                f"the axes {layer.axis}: {', '.join(map(str, shapes))}. Pass data of one shape."
            )
        count, mean, squares = functools.reduce(_combined, [total for _, total in shares])
        # Keras' own steps before and after the computation: building, checks and bookkeeping.
        type(layer).adapt(layer, np.zeros(shapes[0], np.float32))
        for variable, value in (
            (layer.adapt_mean, mean),
            (layer.adapt_variance, squares / count),
        ):
            variable.assign(value.astype(tf.as_dtype(variable.dtype).as_numpy_dtype))
        if int(_array(layer.count)):  # in Keras 3 the count stays 0
            layer.count.assign(count)
        layer.finalize_state()


class _Moments(NamedTuple):
    """The number of values, their mean, and the sum of their squared deviations from the mean."""

    number: int
    mean: np.ndarray
    squares: np.ndarray


def _moments(values: np.ndarray, axes: tuple[int, ...]) -> _Moments | None:
    count = int(np.prod([values.shape[axis] for axis in axes]))
    if count == 0:
        return None
    mean = values.mean(axes, keepdims=True)
    squares = np.square(values - mean).sum(axes)
    return _Moments(count, mean.reshape(squares.shape), squares)


def _combined(a: _Moments | None, b: _Moments | None) -> _Moments | None:
    if a is None or b is None:
        return a or b
    number, delta = a.number + b.number, b.mean - a.mean
    mean = a.mean + delta * (b.number / number)
    squares = a.squares + b.squares + delta * delta * (a.number * b.number / number)
    return _Moments(number, mean, squares)


def _batches(layer: Any, data: Any) -> Iterator[Any]:
    """Yield the batches that the layer's own `adapt` would read."""
    keras_3 = _is_keras_3(layer)
    if isinstance(data, tf.data.Dataset):
        spec = data.element_spec[0] if isinstance(data.element_spec, tuple) else data.element_spec
        if keras_3 and spec.shape.rank == 1:  # Keras 3 treats such data as unbatched
            data = data.batch(128)
        found: Iterable[Any] = data
    elif isinstance(data, np.ndarray) or tf.is_tensor(data):
        found = [data]
    elif isinstance(data, (list, tuple)) and not keras_3:
        found = [np.asarray(data)]
    elif hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        found = (data[place] for place in range(len(data)))  # a list, or a PyDataset
    else:
        found = data
    for batch in found:
        yield batch[0] if isinstance(batch, tuple) else batch


def _listed(boundaries: Any) -> Any:
    """The boundaries; an empty tuple for None."""
    return () if boundaries is None else boundaries


class _Discretization:
    """State of a Discretization: the boundaries, and the summary they are computed from."""

    def is_given(self, layer: Any) -> bool:
        return layer.num_bins is None

    def shape(self, layer: Any) -> Any:
        """Return None, because any two states are compatible."""

    def digest(self, layer: Any) -> tuple[str, str]:
        boundaries = np.asarray([float(each) for each in _listed(layer.bin_boundaries)])
        if not boundaries.size:
            return "", ""
        return _digest(boundaries), f"{boundaries.size} boundaries from {boundaries[0]:.6g}"

    def read(self, layer: Any) -> Any:
        summary = getattr(layer, "summary", None)
        return {
            "boundaries": [float(each) for each in layer.bin_boundaries],
            "summary": None if summary is None else _array(summary),
        }

    def write(self, layer: Any, state: Any) -> None:
        if getattr(layer, "input_bin_boundaries", None) is not None:
            layer.input_bin_boundaries = state["boundaries"]
        if state["summary"] is not None:
            self._set_summary(layer, state["summary"])
        layer.bin_boundaries = state["boundaries"]

    def _set_summary(self, layer: Any, summary: np.ndarray) -> None:
        if not _is_keras_3(layer) and not layer.built:
            layer.build(None)
        if isinstance(tf_variable(layer.summary), tf.Variable):
            layer.summary.assign(summary)
        else:
            layer.summary = summary

    def measure(self, layer: Any, data: Any, steps: int | None) -> Any:
        _count(layer, data, steps)
        summary = getattr(layer, "summary", None)
        return np.zeros([2, 0], np.float32) if summary is None else _array(summary)

    def merge(self, layer: Any, shares: Sequence[Any]) -> None:
        """Set the layer's state from the summaries of all ranks.

        The summaries are concatenated without Keras' compression, which would lose accuracy.
        """
        together = np.concatenate(shares, axis=1)
        if not together.size:
            raise ValueError(
                f"adapt: layer {layer.name!r} got no data on any rank. Pass data on at least one."
            )
        self._set_summary(layer, together[:, np.argsort(together[0], kind="stable")])
        layer.finalize_state()


class _Lookup:
    """State of a StringLookup, IntegerLookup or TextVectorization: tokens and tf_idf weights."""

    _TABLES = ("token_counts", "token_document_counts")

    def is_given(self, layer: Any) -> bool:
        """Return False, because a vocabulary from the constructor is treated like any other."""
        return False

    def shape(self, layer: Any) -> Any:
        lookup = compat.lookup_of(layer)
        return lookup.output_mode, str(lookup.vocabulary_dtype)

    def _weights(self, lookup: Any) -> np.ndarray | None:
        constant = getattr(lookup, "idf_weights_const", None)
        return None if constant is None or lookup.output_mode != "tf_idf" else _array(constant)

    def digest(self, layer: Any) -> tuple[str, str]:
        lookup = compat.lookup_of(layer)
        table = lookup.lookup_table
        with on_host():
            size = int(table.size())
        if not size:
            return "", ""
        if _digests.get(table, (0, ""))[0] != size:
            _digests[table] = size, _digest(_tokens(lookup))
        digest, weights = _digests[table][1], self._weights(lookup)
        return digest if weights is None else _digest(weights) + digest, f"{size} tokens"

    def read(self, layer: Any) -> Any:
        lookup = compat.lookup_of(layer)
        return {"tokens": _tokens(lookup), "weights": self._weights(lookup)}

    def write(self, layer: Any, state: Any) -> None:
        lookup = compat.lookup_of(layer)
        tokens, weights = state["tokens"], state["weights"]
        compat.forget_vocabulary_size(lookup)
        if weights is None:
            lookup.set_vocabulary(tokens)
        else:
            # Keras prepends padding to the weights, and rounds them differently from `adapt`.
            lookup.set_vocabulary(tokens, weights[: len(tokens)])
            lookup.idf_weights.assign(weights)
        if lookup.input_vocabulary is not None:  # Keras saves only this
            texts = [
                t if np.issubdtype(type(t), np.integer) else tf.compat.as_text(t) for t in tokens
            ]
            lookup.input_vocabulary = texts
        lookup.finalize_state()

    def measure(self, layer: Any, data: Any, steps: int | None) -> Any:
        """Count how often, and in how many documents, each token occurs in this rank's data."""
        lookup = compat.lookup_of(layer)
        _count(layer, data, steps)
        tables = [getattr(lookup, name, None) for name in self._TABLES]
        with on_host():
            counts = [t and [part.numpy() for part in t.export()] for t in tables]
        return counts, int(_array(getattr(lookup, "num_documents", 0)))

    def merge(self, layer: Any, shares: Sequence[Any]) -> None:
        lookup = compat.lookup_of(layer)
        for place, name in enumerate(self._TABLES):
            table = getattr(lookup, name, None)
            if table is None:
                continue
            keys, counts = (
                np.concatenate([counts[place][part] for counts, _ in shares]) for part in (0, 1)
            )
            tokens, numbers = np.unique(keys, return_inverse=True)
            sums = np.zeros(len(tokens), np.int64)
            np.add.at(sums, numbers, counts)
            with on_host():
                table.remove(table.export()[0])
                if len(tokens):
                    table.insert(tf.constant(tokens, table.key_dtype), tf.constant(sums))
        if hasattr(lookup, "num_documents"):
            lookup.num_documents.assign(sum(documents for _, documents in shares))
        compat.forget_vocabulary_size(lookup)
        layer.finalize_state()


def _count(layer: Any, data: Any, steps: int | None) -> None:
    """Run Keras' `adapt` without its last step, which computes the state from the counts."""
    layer.reset_state()
    if _is_empty(data):  # tf_keras raises an error for empty data
        return
    layer.finalize_state = lambda: None
    try:
        type(layer).adapt(layer, data, steps=steps)
    finally:
        del layer.finalize_state


def _is_empty(data: Any) -> bool:
    try:
        return len(data) == 0
    except TypeError:  # the length is not known
        return False


def _digest(*arrays: np.ndarray) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(repr((str(array.dtype), array.shape)).encode())
        if array.dtype == object:
            found.update(np.array([len(each) for each in array], np.int64).tobytes())
            found.update(b"".join(array))
        else:
            found.update(array.tobytes())
    return found.hexdigest()[:32]


KINDS: dict[str, Any] = {
    "Normalization": _Normalization(),
    "Discretization": _Discretization(),
    "StringLookup": _Lookup(),
    "IntegerLookup": _Lookup(),
    "TextVectorization": _Lookup(),
}


def kind_of(layer: Any) -> str:
    """The key in KINDS for the layer's class; empty if the layer is not adaptable."""
    return next((name for name in compat.library_classes(layer) if name in KINDS), "")
