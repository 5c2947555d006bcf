"""Stop training that would silently go wrong.

In a job with more than one rank, the guard makes two checks:

- In a tf.function, it refuses an update if an optimizer that is not distributed applies unreduced
  gradients. `fit` runs such a function. The check runs when TensorFlow builds the function, before
  any training. The guard allows one such update, because this update creates the optimizer's
  variables (tf_hvd.keras.first_update).
- At the end of each epoch in `fit`, it compares the ranks. One small collective compares their
  weights (62 bits per trainable variable), learning rates and numbers of updates.

The guard ignores variables that are local to a rank (`register_local_var`), and values that are not
trained, such as moving statistics, metrics and seeds.

`unguarded()` and TF_HVD_GUARD=off turn the guard off (tf_hvd.training.guard).
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tf_hvd.collectives import collectives
from tf_hvd.core import basics, log
from tf_hvd.core._strategy import refuse_replicas
from tf_hvd.core.process_sets import ProcessSet, global_process_set
from tf_hvd.core.ranks_text import ranks_text
from tf_hvd.core.tensorflow_hooks import on_host
from tf_hvd.keras import compat, first_update, reduced_metrics
from tf_hvd.keras.distribution import backend
from tf_hvd.training import agreement, dataflow
from tf_hvd.training.guard import (
    OFF,
    GuardError,
    NotDistributedError,
    RanksDifferError,
    not_reduced,
    watches,
)

_NAMED = 8  # maximum number of ranks listed in a sentence


def before_update(optimizer: Any, gradients: Sequence[Any]) -> Any:
    """Check an update; called before any Keras optimizer applies gradients.

    Returns:
      None, or an op to run before the update. If the op fails, `failed` handles its error.

    Raises:
      GuardError: the gradients were not reduced.
    """
    if compat.synchronizer_of(optimizer) is not None or not watches():
        return None
    if compat.inner_optimizers(optimizer) is not None:
        return None  # the inner optimizers call this function
    graphs = compat.enclosing_functions()
    if not graphs or not dataflow.Tracing(graphs).unreduced(gradients):
        return None
    kind = type(optimizer).__name__
    if first_update.may_pass(optimizer, graphs):
        return first_update.check(optimizer, graphs, _not_reduced(kind))
    # If an optimizer made all of its updates in another process, it probably comes from a saved
    # model.
    loaded = compat.updates_of(optimizer) and not first_update.has_passed(optimizer)
    raise NotDistributedError(_not_reduced(kind, bool(loaded)))


_WRAPPED = re.compile(r"tf_hvd\.DistributedOptimizer\((\w+)")


def _not_reduced(kind: str, loaded: bool = False) -> str:
    wrapped = f"tf_hvd.DistributedOptimizer({kind}(...))"
    cure = (
        f"Wrap the optimizer: {wrapped}.\nOr load the model with tf_hvd.load_model. In your own "
        "training loop, use tf_hvd.DistributedGradientTape."
    )
    if loaded:
        cure = (
            "Load the model with tf_hvd.load_model(path): after keras.models.load_model its "
            "optimizer is not distributed.\n"
            f"Or wrap the optimizer again: {wrapped}. In your own training loop, use "
            "tf_hvd.DistributedGradientTape."
        )
    if backend.has_joined():
        cure = (
            "Set a distribution after keras.distribution.initialize(): "
            f"keras.distribution.set_distribution(keras.distribution.DataParallel()).\n{cure}"
        )
    return not_reduced(cure, f"{kind} would apply gradients that were")


def before_batch_norm(layer: Any) -> None:
    """Raise GuardError for a Keras layer with synchronized=True that is used in training."""
    if watches():
        raise GuardError(
            "Use tf_hvd.SyncBatchNormalization. Load saved models with tf_hvd.load_model, and copy "
            f"models with clone_model.\nLayer {layer.name!r} has synchronized=True. In Keras this "
            f"refers to the replicas of tf.distribute, not to the {basics.size()} ranks, so each "
            f"rank would normalize by its own batch.\n{OFF}"
        )


def failed(error: Exception) -> None:
    """Replace an exception from training with a GuardError if the guard caused the exception.

    Raises:
      GuardError: an op from `before_update` failed, or AutoGraph or Keras wrapped a GuardError in
        its own text. The new exception has the original text.
    """
    text: str | None = None
    kind: type[GuardError] = NotDistributedError
    if isinstance(error, tf.errors.InvalidArgumentError):
        found = _WRAPPED.search(error.message)
        text = _not_reduced(found[1]) if found else None
    elif isinstance(error, GuardError):
        told: BaseException = error
        while isinstance(within := told.__context__, GuardError):
            if str(within).partition("\n")[0] not in str(told):
                break
            told, text, kind = within, str(within), type(within)
    if text:
        raise kind(text).with_traceback(error.__traceback__) from None


def _leaves(model: Any) -> list[Any]:
    optimizer = getattr(model, "optimizer", None)
    return [] if optimizer is None else list(compat.leaves(optimizer))


def before_fit(model: Any) -> None:
    """Raise an error if the model's optimizer is distributed but `init` was not called.

    The first reduction would also raise an error, but after 70 lines of text about its graph.

    Raises:
      NotInitializedError: the optimizer is distributed, but `init` was not called.
    """
    if any(compat.synchronizer_of(leaf) is not None for leaf in _leaves(model)):
        basics.size()


def fit_ended(model: Any) -> None:
    first_update.end_fit(_leaves(model))


def _counts(optimizer: Any) -> tuple[int, int] | None:
    """The number of updates counted by Keras, and the number of reductions; None if unknown."""
    synchronizer = compat.synchronizer_of(optimizer)
    updates = None if synchronizer is None else synchronizer.updates
    if updates is None or not agreement.takes_part(synchronizer.process_set):
        return None
    return int(optimizer.iterations.numpy()), updates


class Watch:
    """The internal callback that the guard uses to check `fit`."""

    model: Any
    params: Any

    def on_train_begin(self, logs: Any = None) -> None:
        leaves, params = _leaves(self.model), self.params or {}
        self._counts = [_counts(leaf) for leaf in leaves]
        self._has_trained = False  # whether there was a batch
        if watches():
            refuse_replicas("fit() was called", getattr(self.model, "distribute_strategy", None))
        steps, epochs = params.get("steps"), params.get("epochs") or 1
        self._steps = steps * epochs if steps else None
        first_update.begin_fit(leaves, self._steps)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Record the initial counts, unless training has begun.

        The counts are recorded here, because callbacks may first restore those of an earlier `fit`.
        """
        if not self._has_trained:
            self._counts = [_counts(leaf) for leaf in _leaves(self.model)]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._has_trained = True

    def on_train_end(self, logs: Any = None) -> None:
        """End the checks for `fit`, or for a custom training loop with Keras' CallbackList."""
        fit_ended(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Compare the ranks' weights and settings; raise on all ranks if they differ."""
        if not watches() or not tf.executing_eagerly():
            return
        self._check_counts()
        leaves = _leaves(self.model)
        found = [compat.synchronizer_of(leaf) for leaf in leaves]
        if self._steps == 1 and any(
            synchronizer is None and first_update.has_passed(leaf)
            for leaf, synchronizer in zip(leaves, found, strict=True)
        ):
            return  # until the broadcast, ranks differ because each made its own first step
        synchronizer = found[0] if found else None
        variables = self.model.trainable_variables
        settings = [setting for leaf in leaves for setting in _settings(leaf)]
        if synchronizer is None:
            variables = [v for v in variables if not compat.has_own_values(v)]
            _compare(variables, settings, global_process_set)
        else:
            _compare(synchronizer.shared(variables), settings, synchronizer.process_set)

    def _check_counts(self) -> None:
        if not self.model.trainable_variables:
            return
        for leaf, before in zip(_leaves(self.model), self._counts, strict=False):
            after = _counts(leaf)
            if before is None or after is None:
                continue
            calls, updates = after[0] - before[0], after[1] - before[1]
            if updates != 0 or calls <= 0:
                continue
            if not self._has_trained:
                # Keras counted the step that found no data.
                raise GuardError(
                    "Use fewer ranks or smaller batches. Or use hvd.shard(..., uneven='repeat'), "
                    "which gives data to each rank.\n"
                    f"Nothing was trained, because rank {basics.rank()} got no batches."
                )
            raise NotDistributedError(
                "Use one of Keras' optimizers. Or do not wrap this optimizer, and reduce gradients "
                "with tf_hvd.DistributedGradientTape in your own train_step.\n"
                f"{type(leaf).__name__} counted {calls} updates but reduced no gradients, because "
                "its class updates variables without the methods that tf_hvd hooks into.\n"
                f"{OFF}"
            )


_WEIGHTS = "comparison of weights (at the end of an epoch, or check_weights)"
_DIFFERENT = "comparison of weights that differ"
_WEIGHTS_CURE = (
    "Broadcast the initial values (broadcast_variables), reduce the gradients "
    "(DistributedOptimizer), and run the same branches and callbacks on all ranks."
)
_LOCAL = "For weights that are meant to differ, call optimizer.register_local_var(variable)."
_SETTINGS_CURE = (
    "Use the same learning rate and make the same updates on all ranks: run the same branches and "
    "callbacks on all of them."
)


class _Setting(NamedTuple):
    """A value, other than a weight, that must be the same on all ranks; stored as bits."""

    name: str
    bits: int  # up to 62
    is_float: bool = False

    def shown(self, bits: int) -> str:
        return f"{np.uint32(bits).view(np.float32):g}" if self.is_float else str(bits)


def _settings(optimizer: Any) -> list[_Setting]:
    kind = type(optimizer).__name__
    rate = int(np.float32(compat.learning_rate_of(optimizer)).view(np.uint32))
    return [
        _Setting(f"the learning rate of {kind}", rate, is_float=True),
        _Setting(f"the number of updates of {kind}", compat.updates_of(optimizer) or 0),
    ]


def check_weights(
    variables: Sequence[Any], *, process_set: ProcessSet = global_process_set
) -> None:
    """Compare variables bit by bit across ranks, and raise an error on all ranks if they differ.

    All ranks in the set must call this function, except ranks that have called `join`.

    Args:
      variables: list of tf.Variables or Keras variables, of the same length on all ranks. Pass a
        Keras model to compare its trainable variables.
      process_set: the ranks to compare.

    Raises:
      GuardError: the variables differ; raised on all ranks, with the same text.

    Example:
      model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
      hvd.broadcast_variables(model.variables, root_rank=0)
      hvd.check_weights(model.trainable_variables)
    """
    variables = list(getattr(variables, "trainable_variables", variables))
    _compare(variables, [], process_set)


def _compare(
    variables: Sequence[Any], settings: Sequence[_Setting], process_set: ProcessSet
) -> None:
    if not (variables or settings) or not agreement.takes_part(process_set):
        return
    known = tf.constant([setting.bits for setting in settings], tf.int64)
    values = tf.concat([agreement.fingerprints(variables), known], axis=0)
    wrong = agreement.unequal(values, process_set, _WEIGHTS).numpy()
    if not wrong.any():
        return
    weights, others = wrong[: len(variables)], np.flatnonzero(wrong[len(variables) :])
    # A single weight is enough to determine which ranks agree.
    asked = [int(weights.argmax())] if weights.any() else []
    asked += [len(variables) + int(index) for index in others]
    mine = tf.concat([[basics.rank()], tf.gather(values, asked)], axis=0)
    with on_host():
        everyone = collectives.allgather(
            mine[tf.newaxis], name=_DIFFERENT, process_set=process_set
        ).numpy()
    ranks, columns = [int(rank) for rank in everyone[:, 0]], everyone[:, 1:].T
    texts = []
    if weights.any():
        texts.append(
            f"The ranks' weights differ in {int(weights.sum())} of {len(variables)} variables, "
            f"first in {agreement.name_of(variables[asked[0]])}: {_sides(ranks, columns[0])}."
        )
        columns = columns[1:]
    for index, column in zip(others, columns, strict=True):
        texts.append(_differs(settings[int(index)], ranks, column))
    cure, local = (_WEIGHTS_CURE, [_LOCAL]) if weights.any() else (_SETTINGS_CURE, [])
    raise RanksDifferError("\n".join([cure, " ".join(texts), *local, OFF]))


def _sides(ranks: Sequence[int], values: Any) -> str:
    like = [rank for rank, value in zip(ranks, values, strict=True) if value == values[0]]
    others = [rank for rank in ranks if rank not in like]
    differ = "differ" + "s" * (len(others) == 1)
    return f"{ranks_text(others, _NAMED)} {differ} from {ranks_text(like, _NAMED)}"


def _differs(setting: _Setting, ranks: Sequence[int], values: Any) -> str:
    of = dict(zip(ranks, map(int, values), strict=True))
    shown = []
    for bits in dict.fromkeys(of.values()):
        who = [rank for rank in ranks if of[rank] == bits]
        shown.append(f"{setting.shown(bits)} on {ranks_text(who, _NAMED)}")
    return f"The ranks differ in {setting.name}: {', '.join(shown)}."


def shows_progress(model: Any) -> bool:
    """Whether this rank shows Keras' progress bar; all ranks do if they train separately."""
    return not watches() or reduced_metrics.shows_progress(model)


def no_jit(model: Any) -> bool:
    """Whether to disable XLA for this model because its collectives may run on a GPU.

    If so, rank 0 logs a message once.
    """
    process_set = reduced_metrics.process_set_of(model)
    distributed = compat.synchronizer_of(getattr(model, "optimizer", None)) is not None
    outside = basics.is_initialized() and not agreement.takes_part(process_set)
    if outside or not (distributed or watches()):
        return False
    if basics.is_initialized() and basics.rank() == 0:
        log.warn_once(
            'jit_compile="auto" means False here, because collectives compiled by XLA have not '
            "been run on a real GPU yet. To compile the model anyway, pass jit_compile=True."
        )
    return True
