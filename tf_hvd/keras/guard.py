"""Stops training that would go wrong in silence.

In a job of more than one rank it looks at two things:

- An update by an optimizer that is not distributed, in a tf.function (`fit` is one),
  with gradients that nothing has reduced since they were computed: seen when
  TensorFlow builds the function, before anything is trained. One such update, by which
  an optimizer makes its variables, may pass (tf_hvd.keras.first_update).
- What the ranks have at the end of each epoch of `fit`: their weights (62 bits for
  each trainable variable), learning rates and numbers of updates; compared by one
  small collective.

Not looked at: variables that each rank has for itself (`register_local_var`), and
all that is not trained: moving statistics, metrics, seeds.

`unguarded()` and TF_HVD_GUARD=off turn it off (tf_hvd.training.guard).
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
from tf_hvd.keras import compat, first_update, metrics
from tf_hvd.training import agreement, dataflow
from tf_hvd.training.guard import OFF, GuardError, not_reduced, watches

_NAMED = 8  # ranks, in a sentence


def before_update(optimizer: Any, gradients: Sequence[Any]) -> Any:
    """Any Keras optimizer is about to apply gradients.

    Returns:
      None, or an op to run before it, which fails with a text for `failed`.

    Raises:
      GuardError: nothing has reduced the gradients.
    """
    if compat.synchronizer_of(optimizer) is not None or not watches():
        return None
    if compat.inner_optimizers(optimizer) is not None:
        return None  # those that it hands on to come here
    graphs = compat.enclosing_functions()
    if not graphs or not dataflow.Tracing(graphs).unreduced(gradients):
        return None
    kind = type(optimizer).__name__
    if first_update.may_pass(optimizer, graphs):
        return first_update.check(optimizer, graphs, _not_reduced(kind))
    # One that has made updates, and none here, is most probably that of a saved model.
    loaded = compat.updates_of(optimizer) and not first_update.has_passed(optimizer)
    raise GuardError(_not_reduced(kind, bool(loaded)))


_WRAPPED = re.compile(r"tf_hvd\.keras\.DistributedOptimizer\((\w+)")


def _not_reduced(kind: str, loaded: bool = False) -> str:
    wrapped = f"tf_hvd.keras.DistributedOptimizer({kind}(...))"
    cure = (
        f"Wrap the optimizer: {wrapped}.\nOr use tf_hvd.keras.load_model to load the model, "
        "tf_hvd.DistributedGradientTape in your own loop."
    )
    if loaded:
        cure = (
            "Load the model with tf_hvd.keras.load_model(path): keras.models.load_model gives a "
            "plain optimizer.\n"
            f"Or wrap it again: {wrapped}, or use tf_hvd.DistributedGradientTape in your own loop."
        )
    return not_reduced(cure, f"{kind} would apply gradients that were")


def before_batch_norm(layer: Any) -> None:
    """A layer of Keras with synchronized=True is about to normalize in training."""
    if watches():
        raise GuardError(
            "Use tf_hvd.SyncBatchNormalization, and tf_hvd.keras.load_model for saved models with "
            f"it.\nLayer {layer.name!r} has synchronized=True, by which Keras means the replicas "
            f"of tf.distribute, not the {basics.size()} ranks: each would normalize by its own "
            f"batch.\n{OFF}"
        )


def failed(error: Exception) -> None:
    """Training has failed.

    Raises:
      GuardError: by an op of `before_update`; or with its own text, if AutoGraph and Keras, which
        raise it again, have put theirs around it.
    """
    text = None
    if isinstance(error, tf.errors.InvalidArgumentError):
        found = _WRAPPED.search(error.message)
        text = found and _not_reduced(found[1])
    elif isinstance(error, GuardError):
        told: BaseException = error
        while isinstance(within := told.__context__, GuardError):
            if str(within).partition("\n")[0] not in str(told):
                break
            told, text = within, str(within)
    if text:
        raise GuardError(text).with_traceback(error.__traceback__) from None


def _leaves(model: Any) -> list[Any]:
    optimizer = getattr(model, "optimizer", None)
    return [] if optimizer is None else list(compat.leaves(optimizer))


def before_fit(model: Any) -> None:
    """A model is about to be trained.

    Raises:
      ValueError: its gradients are to be reduced, and `init` has not been called. The first
        reduction would say so too, after 70 lines of the graph that it is in.
    """
    if any(compat.synchronizer_of(leaf) is not None for leaf in _leaves(model)):
        basics.size()


def fit_ended(model: Any) -> None:
    first_update.end_fit(_leaves(model))


def _counts(optimizer: Any) -> tuple[int, int] | None:
    """Updates that Keras counts and reductions; None if they are not counted."""
    synchronizer = compat.synchronizer_of(optimizer)
    updates = None if synchronizer is None else synchronizer.updates
    if updates is None or not agreement.takes_part(synchronizer.process_set):
        return None
    return int(optimizer.iterations.numpy()), updates


class Watch:
    """The callback that watches a `fit`; tf_hvd's own."""

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
        """Begins to count: until now a callback may have brought back what was counted before."""
        if not self._has_trained:
            self._counts = [_counts(leaf) for leaf in _leaves(self.model)]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._has_trained = True

    def on_train_end(self, logs: Any = None) -> None:
        """The `fit` has ended; or a loop of the user's own, with Keras' CallbackList."""
        fit_ended(self.model)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Compares what the ranks have; raises on all of them."""
        if not watches() or not tf.executing_eagerly():
            return
        self._check_counts()
        leaves = _leaves(self.model)
        found = [compat.synchronizer_of(leaf) for leaf in leaves]
        if self._steps == 1 and any(
            synchronizer is None and first_update.has_passed(leaf)
            for leaf, synchronizer in zip(leaves, found, strict=True)
        ):
            return  # the ranks' own step: they differ until the broadcast
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
                # Keras has counted the step that found no data.
                raise GuardError(
                    "Use fewer ranks or smaller batches, or hvd.shard(..., uneven='repeat'), by "
                    "which each rank has data.\n"
                    f"Nothing was trained: rank {basics.rank()} got no batches."
                )
            raise GuardError(
                "Use one of Keras' optimizers; or do not wrap this one, and reduce with "
                "tf_hvd.DistributedGradientTape in a train_step of your own.\n"
                f"{type(leaf).__name__} counted {calls} updates but reduced no gradient: its class "
                f"updates variables without calling the methods that tf_hvd hooks into.\n{OFF}"
            )


_WEIGHTS = "comparison of weights (at the end of an epoch, or check_weights)"
_DIFFERENT = "comparison of weights that differ"
_WEIGHTS_CURE = (
    "Broadcast the initial values (broadcast_variables), reduce the gradients "
    "(DistributedOptimizer), and let no branch or callback depend on the rank."
)
_LOCAL = "For weights that are meant to differ, call optimizer.register_local_var(variable)."
_SETTINGS_CURE = (
    "Use one learning rate and make the same updates on all ranks: let no callback or branch "
    "depend on the rank."
)


class _Setting(NamedTuple):
    """What ranks must have alike besides weights."""

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


def check_weights(variables: Sequence[Any], process_set: ProcessSet = global_process_set) -> None:
    """Compares the bits of variables between ranks; all ranks must call it.

    Ranks that have joined are left out.

    Args:
      variables: tf.Variables or Keras variables, or a Keras model for its trainable
        ones: the same number on all ranks.
      process_set: the ranks that are compared.

    Raises:
      GuardError: they differ; on all ranks, with the same text.
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
    # One of the weights is enough to say which ranks have them alike.
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
    raise GuardError("\n".join([cure, " ".join(texts), *local, OFF]))


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
    """Whether this rank shows Keras' progress bar: one rank, unless each trains by itself."""
    return not watches() or metrics.shows_progress(model)


def no_jit(model: Any) -> bool:
    """Whether a model that Keras would compile for a GPU holds collectives; says so once."""
    process_set = metrics.process_set_of(model)
    distributed = compat.synchronizer_of(getattr(model, "optimizer", None)) is not None
    alone = basics.is_initialized() and not agreement.takes_part(process_set)
    if alone or not (distributed or watches()):
        return False
    if basics.is_initialized() and basics.rank() == 0:
        log.warn_once(
            'jit_compile="auto" means False here: collectives that XLA compiles have not been run '
            "on a real GPU yet. jit_compile=True compiles them all the same."
        )
    return True
