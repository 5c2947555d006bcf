"""What makes all ranks' `fit` one: they begin, count, average and stop together.

Two callbacks of ours stand before and after the user's. Each question to the other
ranks is one small collective, at the beginning and the end of an epoch:

- Before training: do all ranks make as many steps and epochs, and have they all the
  callbacks that stop training or change it? Does no file have two writers? Keras' own
  callbacks that would write one file on several ranks do so on the first alone.
- Before the first epoch: is it the same one everywhere?
- After an epoch: did all make as many steps? Metrics are averaged if a callback
  decides by them, before it sees them.
- After the callbacks: if one rank wants to stop, all do.

Where the number of steps was not known before, a rank whose data have ended joins
(tf_hvd.join), so that the others come to their end, too, and all can be told.

tf_hvd.keras.patches puts the two callbacks in; `unguarded()` and TF_HVD_GUARD=off
leave them out.
"""

import contextlib
import importlib
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tf_hvd.collectives import collectives, reduce_ops
from tf_hvd.collectives.objects import Title, allgather_object
from tf_hvd.core import basics, error_text, log
from tf_hvd.core.process_sets import global_process_set
from tf_hvd.core.tensorflow_hooks import on_host
from tf_hvd.keras import adapted, compat, fit_config, metrics, resume, root_only
from tf_hvd.keras.fit_config import by_rank
from tf_hvd.keras.keras_variants import internal_callback
from tf_hvd.training import agreement, guard

# Requests. Their names say what to do: a stall report shows them, and nothing else of `fit`.
_FIT = Title("fit on all ranks, or on one in tf_hvd.keras.unguarded()")
_HERE = "fit: which ranks are at the end of the epoch"
_STOP = "fit: whether a rank stops training"

_BEGINNING = "the beginning of fit"
_END = "the last step of an epoch"

# What the runtime says of a name that has been used before. Of these requests it is not so: the
# ranks compare what they are at.
_REPEATED = re.compile(r"; '[^']*'(, which has run before, .*| still needed it)$")
_TWO = (
    "fit: two threads of one process train at once, and both ask the other ranks. Run one fit at a "
    "time in each process, or give the models' optimizers different process sets"
)


@contextlib.contextmanager
def _in_words(occasion: str) -> Iterator[None]:
    """Errors of a question to the other ranks, as those of `fit`."""
    try:
        yield
    except (
        tf.errors.UnknownError,  # a rank has left, or has not come
        tf.errors.InvalidArgumentError,  # two requests of one name on this rank
        tf.errors.FailedPreconditionError,  # or on another one
    ) as error:
        text = _REPEATED.sub("", error_text.line_of(error.message))
        if "duplicate name" in text:
            text = f"{_TWO}. {guard.OFF}"
        elif isinstance(error, tf.errors.UnknownError) and occasion == _BEGINNING:
            text = f"fit: all ranks must begin training together: {text}. {guard.OFF}"
        raise type(error)(error.node_def, error.op, text) from error


class _Fit:
    """Comes before the user's callbacks."""

    async_safe = True  # Keras 3 may call on_train_batch_end from its own thread
    model: Any
    params: Any
    callbacks: Sequence[Any]
    """The user's."""

    def __init__(self) -> None:
        super().__init__()
        self._process_set = global_process_set
        self._steps: int | None = None
        self._averages = self._strict = self.stops_in_batches = False
        self._began = self._in_epoch = False
        self._batches: list[int] = []
        self._updates = 0
        self._averaged: dict[str, float] = {}
        self._resume: resume.Files | None = None
        self._restores_all = False
        self.restorer: Any = None

    def _gather(self, occasion: str, mine: Any) -> list[Any]:
        """All ranks' values on one occasion.

        A rank that validates while others do not averages what it has by itself;
        they answer it in between.

        Raises:
          ValueError: the ranks are at different places.
        """
        while True:
            with _in_words(occasion):
                everyone = allgather_object(
                    (occasion, mine), name=_FIT, process_set=self._process_set
                )
            places = [place for place, _ in everyone]
            if occasion == "validation" or "validation" not in places:
                break
        if occasion != "validation" and len(set(places)) > 1:
            raise ValueError(
                f"fit: the ranks are at different places: {by_rank(places, self._ranks)}."
            )
        return [value for place, value in everyone if place == occasion]

    @property
    def _ranks(self) -> Sequence[int]:
        return self._process_set.ranks or ()

    @property
    def _together(self) -> bool:
        return agreement.takes_part(self._process_set)

    def on_train_begin(self, logs: Any = None) -> None:
        self._process_set = metrics.process_set_of(self.model)
        # A program may give one CallbackList to several `fit`s.
        self._began = self._in_epoch = False
        self._averaged = {}
        self._resume = self.restorer = None
        if not self._together:
            return
        mine = fit_config.config_of(self.model, self.callbacks, self.params or {})
        everyone = self._gather(_BEGINNING, mine)
        shared = fit_config.check(everyone, self._ranks)
        self._settle_writers(shared)
        adapted.check([plan.layers for plan in everyone], self._process_set)
        self._steps = None if any(plan.steps is None for plan in everyone) else mine.steps
        self._averages = any(plan.averages for plan in everyone)
        self._strict = "MetricAverageCallback" in mine.changing
        self.stops_in_batches = "TerminateOnNaN" in mine.changing
        kinds = [plan.backup for plan in everyone]
        one_backup = any(kind == "BackupAndRestore" for kind, _ in shared)
        if kinds[0] is not None and (one_backup or any(kind != "Keras'" for kind in kinds)):
            equal = len({(plan.backup, plan.backup_options) for plan in everyone}) == 1
            self._hand_out_backup(of_ours=kinds[0] == "ours", within_epochs=equal)

    def _settle_writers(self, shared: Collection[tuple[str, str]]) -> None:
        """Lets each rank write what no other one does."""
        is_root = metrics.is_root(self.model)
        for callback in fit_config.release_writers(self.callbacks, shared):
            if not is_root:
                callback.set_model(self.model)  # held, it did nothing then
        if shared and is_root:
            kinds = sorted({kind for kind, _ in shared})
            log.warn_once(
                f"fit: Keras' {', '.join(kinds)} write{'s' * (len(kinds) == 1)} on rank "
                f"{basics.rank()} alone: several ranks gave the same path."
            )

    def _hand_out_backup(self, of_ours: bool, within_epochs: bool) -> None:
        own = fit_config.backup_of(self.callbacks)
        directory = getattr(own, "backup_dir", None)
        files = resume.hand_out(directory, self._process_set)
        self._restores_all = of_ours
        if isinstance(own, resume.BackupAndRestore):
            own.lead(self.callbacks)
            own.receive(files)
            if of_ours:
                own.agree(within_epochs)
        elif own is None or (root_only.is_held(own) and not metrics.is_root(self.model)):
            self._resume = files

    def restore(self, base: Any) -> None:
        """On a rank without BackupAndRestore: restores what the first rank has."""
        if self._resume is None:
            return
        library = importlib.import_module(base.__module__.partition(".")[0])
        ours = importlib.import_module("tf_hvd.keras.callbacks").of(library)
        self.restorer = ours.BackupAndRestore("of_rank_0")
        self.restorer.set_params(self.params)
        self.restorer.set_model(self.model)
        self.restorer.lead(self.callbacks)
        self.restorer.receive(self._resume)
        self._resume = None
        if self._restores_all:
            self.restorer.agree()
        self.restorer.on_train_begin()

    def _first_epoch(self, epoch: int | None) -> None:
        """Raises, on all ranks, unless they begin with the same epoch; None: with none at all."""
        self._began = True
        epochs = self._gather("the first epoch", epoch)
        if len(set(epochs)) > 1:
            words = ["no epoch" if each is None else f"epoch {each}" for each in epochs]
            raise ValueError(
                f"fit: the ranks do not begin with the same epoch: {by_rank(words, self._ranks)}. "
                "initial_epoch= must be equal on all ranks. To resume, use "
                "tf_hvd.keras.callbacks.BackupAndRestore: all ranks go on where rank 0 was."
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if not self._together:
            return
        if not self._began:
            self._first_epoch(epoch)
        self._in_epoch = True
        self._batches.clear()
        self._updates = self._reductions()

    def _reductions(self) -> int:
        """Of gradients, where they are counted: several in one call of Keras."""
        synchronizer = compat.synchronizer_of(getattr(self.model, "optimizer", None))
        return getattr(synchronizer, "updates", None) or 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts; may be called from several threads."""
        self._batches.append(batch)

    def on_test_begin(self, logs: Any = None) -> None:
        """The epoch's last step has been made; called before validation. Compares the steps."""
        if not self._together or not self._in_epoch:
            return
        self._in_epoch = False
        made = max(self._batches, default=-1) + 1
        # The others may still have data: then their next step waits for this rank. Or
        # they had fewer, and have joined.
        if made != self._steps or not self._all_here():
            collectives.join(self._process_set)
        counts = (made, len(self._batches), self._reductions() - self._updates)
        self._check_steps(self._gather(_END, counts))
        # From here on Keras knows the number, too.
        self._steps = made if self._steps is None else self._steps

    def _all_here(self) -> bool:
        """Whether none has joined: such a rank counts 0."""
        with _in_words(_END), on_host():
            here = collectives.allreduce(
                tf.constant(1),
                op=reduce_ops.Sum,
                name=_HERE,
                process_set=self._process_set,
            )
        return int(here) == self._process_set.size()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self._together:
            return
        self.on_test_begin()
        logs = {} if logs is None else logs
        everyone = self._gather("the end of an epoch", metrics.numbers_of(logs))
        # A loss of the user's own may be one of all ranks; one batch may have one by chance.
        if len(self._batches) > 1 and not _has_own_loss(self.model):
            _tell_of_same_data(everyone)
        if self._averages:
            if self._strict:
                metrics.check_names(everyone, self._ranks)
            self._averaged = metrics.means(everyone)
            logs.update(self._averaged)

    def _check_steps(self, counts: Sequence[tuple[int, int, int]]) -> None:
        if len(set(counts)) == 1:
            return
        made = [batches for batches, _, _ in counts]
        updates = [reductions for _, _, reductions in counts]
        what = "steps"
        # Keras counts the steps of an execution that has ended early (steps_per_execution) as well.
        rounded = any(batches != executions for batches, executions, _ in counts)
        if len(set(updates)) > 1 and (rounded or len(set(made)) == 1):
            made, what = updates, "updates"
        elif rounded:
            made, what = [executions for _, executions, _ in counts], "executions of several steps"
        raise ValueError(
            f"fit: in one epoch the ranks made different numbers of {what}: "
            f"{by_rank(made, self._ranks)}. One ran out of data, or set stop_training, before the "
            "others. Split the data evenly (hvd.shard does), give all ranks fit(..., "
            "steps_per_epoch=...), and stop all ranks in the same step."
        )

    def on_test_end(self, logs: Any = None) -> None:
        if self._together and self._averages and self._began:
            logs = {} if logs is None else logs
            logs.update(metrics.means(self._gather("validation", metrics.numbers_of(logs))))

    def agree_to_stop(self) -> None:
        if not self._together:
            return
        with _in_words(_END), on_host():
            any_rank = collectives.allreduce(
                tf.constant(int(bool(self.model.stop_training))),
                op=reduce_ops.Max,
                name=_STOP,
                process_set=self._process_set,
            )
        if int(any_rank):
            self.model.stop_training = True

    def on_train_end(self, logs: Any = None) -> None:
        """The end of `fit`, which may have had no epoch."""
        if not self._together:
            return
        if not self._began:
            self._first_epoch(None)
        if logs:
            logs.update({name: value for name, value in self._averaged.items() if name in logs})


def _has_own_loss(model: Any) -> bool:
    """Whether a class of the user's says how it is computed."""
    for name in ("train_step", "compute_loss"):
        kinds = [kind for kind in type(model).__mro__ if name in vars(kind)]
        if kinds and kinds[0].__module__.partition(".")[0] not in ("keras", "tf_keras"):
            return True
    return False


def _tell_of_same_data(everyone: Sequence[Mapping[str, float]]) -> None:
    """Warns if all ranks seem to have had the same batches, as when the data is not split."""
    losses = {numbers.get("loss") for numbers in everyone}
    loss = losses.pop()
    # A loss that is next to 0, or no number, says nothing.
    if losses or not loss or not 1e-6 < abs(loss) < math.inf or basics.rank() != 0:
        return
    log.warn_once(
        f"all {len(everyone)} ranks had the same training loss in an epoch, to the last bit: they "
        "seem to train on the same data, each on all of it (unless the loss is one of all ranks). "
        "Give each rank a part of its own: "
        "dataset = tf_hvd.shard(dataset), before shuffle and batch."
    )


class _Closing:
    """Comes after the user's callbacks."""

    async_safe = True  # where it does something, Keras calls from the main thread
    base: Any
    fit: _Fit

    def on_train_begin(self, logs: Any = None) -> None:
        self.fit.restore(self.base)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if self.fit.restorer is not None:
            self.fit.restorer.on_epoch_begin(epoch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.fit.stops_in_batches:
            self.fit.agree_to_stop()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.fit.restorer is not None:
            self.fit.restorer.on_epoch_end(epoch, logs)
        self.fit.agree_to_stop()

    def on_train_end(self, logs: Any = None) -> None:
        if self.fit.restorer is not None:
            self.fit.restorer.on_train_end(logs)


def surround(base: Any, callbacks: Sequence[Any]) -> list[Any]:
    """The callbacks of a `fit`, between those that make all ranks act as one."""
    fit = internal_callback(_Fit, base, callbacks=callbacks)
    closing = internal_callback(_Closing, base, fit=fit, base=base)
    fit_config.hold_writers(callbacks)
    return [fit, *resume.last(callbacks), closing]
