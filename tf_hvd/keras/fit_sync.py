"""Synchronize `fit` across ranks: begin, compare steps, reduce metrics and stop together.

One internal callback runs before the user's callbacks, and another runs after them. They compare
the ranks with small collectives at the following times:

- Before training, all ranks must plan the same number of steps and epochs, and have the same
  callbacks that stop or change training. Each file must have only one writer. If Keras' own
  callbacks would write the same file on several ranks, only the first rank writes it.
- Before the first epoch, all ranks must be about to begin the same epoch.
- After each epoch, all ranks must have made the same number of steps. If a callback makes decisions
  based on metrics, the metrics are reduced across the ranks (tf_hvd.keras.reduced_metrics) before
  any callback runs.
- After the user's callbacks, all ranks stop if any rank requests a stop.

If the number of steps is not known before training, a rank that runs out of data joins
(tf_hvd.join). The other ranks can then finish the epoch, and all ranks raise the same error.

tf_hvd.keras.patches installs the two callbacks, except within `unguarded()` or under
TF_HVD_GUARD=off.
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
from tf_hvd.keras import adapted, compat, fit_config, reduced_metrics, resume, root_only
from tf_hvd.keras.distribution import active
from tf_hvd.keras.fit_config import by_rank
from tf_hvd.keras.keras_variants import internal_callback
from tf_hvd.training import agreement, guard

# Names of requests. They describe the action, because a stall report shows no other text from fit.
_FIT = Title("fit on all ranks, or on one in tf_hvd.unguarded()")
_HERE = "fit: which ranks are at the end of the epoch"
_STOP = "fit: whether a rank stops training"

_BEGINNING = "the beginning of fit"
_END = "the last step of an epoch"

# Text that the runtime appends to errors if a name was used before. The text is misleading for
# these requests, because the ranks compare their positions in `fit`.
_REPEATED = re.compile(r"; '[^']*'(, which has run before, .*| still needed it)$")
_TWO = (
    "fit: two threads of this process run fit at the same time, so their collectives have the same "
    "names. Run one fit at a time in each process, or give the models' optimizers different "
    "process sets"
)


@contextlib.contextmanager
def _in_words(occasion: str) -> Iterator[None]:
    """Convert errors that a collective raises within the block into errors that mention `fit`."""
    try:
        yield
    except (
        tf.errors.UnknownError,  # a rank has left, or did not call fit
        tf.errors.InvalidArgumentError,  # two requests with the same name on this rank
        tf.errors.FailedPreconditionError,  # two requests with the same name on another rank
    ) as error:
        text = _REPEATED.sub("", error_text.line_of(error.message))
        if "duplicate name" in text:
            text = f"{_TWO}. {guard.OFF}"
        elif isinstance(error, tf.errors.UnknownError) and occasion == _BEGINNING:
            text = f"fit: all ranks must begin training together: {text}. {guard.OFF}"
        raise type(error)(error.node_def, error.op, text) from error


class _Fit:
    """The internal callback that runs before the user's callbacks."""

    async_safe = True  # Keras 3 may call on_train_batch_end from its own thread
    model: Any
    params: Any
    callbacks: Sequence[Any]
    """The user's callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self._process_set = global_process_set
        self._steps: int | None = None
        self._averages = self._strict = self.stops_in_batches = self._distributed = False
        self._began = self._in_epoch = False
        self._batches: list[int] = []
        self._updates = 0
        self._epoch = reduced_metrics.Epoch()
        self._averaged: dict[str, Any] = {}
        self._resume: resume.Files | None = None
        self._restores_all = False
        self.restorer: Any = None

    def _gather(self, occasion: str, mine: Any) -> list[Any]:
        """Gather each rank's value `mine` at the point in `fit` that `occasion` names.

        If only some ranks validate, the other ranks repeat the collective until the validation is
        over, and ignore the values from it.

        Raises:
          ValueError: the ranks are at different points in `fit`.
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
                f"fit: the ranks are at different points: {by_rank(places, self._ranks)}. Call "
                "fit() with the same arguments on all ranks."
            )
        return [value for place, value in everyone if place == occasion]

    @property
    def _ranks(self) -> Sequence[int]:
        return self._process_set.ranks or ()

    @property
    def _together(self) -> bool:
        return agreement.takes_part(self._process_set)

    def on_train_begin(self, logs: Any = None) -> None:
        self._process_set = reduced_metrics.process_set_of(self.model)
        # A program may pass the same CallbackList to several `fit` calls.
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
        # Under a distribution, the logs already contain the results across all ranks.
        self._distributed = active.setup() is not None
        self._averages = any(plan.averages for plan in everyone) and not self._distributed
        self._strict = "MetricAverageCallback" in mine.changing
        self.stops_in_batches = "TerminateOnNaN" in mine.changing
        kinds = [plan.backup for plan in everyone]
        one_backup = any(kind == "BackupAndRestore" for kind, _ in shared)
        if kinds[0] is not None and (one_backup or any(kind != "Keras'" for kind in kinds)):
            equal = len({(plan.backup, plan.backup_options) for plan in everyone}) == 1
            self._hand_out_backup(of_ours=kinds[0] == "ours", within_epochs=equal)

    def _settle_writers(self, shared: Collection[tuple[str, str]]) -> None:
        """Let each rank write the files that no other rank writes."""
        is_root = reduced_metrics.is_root(self.model)
        for callback in fit_config.release_writers(self.callbacks, shared):
            if not is_root:
                callback.set_model(self.model)  # a held callback ignores earlier calls
        if shared and is_root:
            kinds = sorted({kind for kind, _ in shared})
            log.info_once(
                f"fit: Keras' {', '.join(kinds)} will write only on rank {basics.rank()}, because "
                "several ranks passed the same path."
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
        elif own is None or (root_only.is_held(own) and not reduced_metrics.is_root(self.model)):
            self._resume = files

    def restore(self, base: Any) -> None:
        """Restore the first rank's backup on a rank without BackupAndRestore."""
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
        """Raise an error on all ranks unless they begin with the same epoch.

        `epoch` is None if this rank's `fit` has no epochs.
        """
        self._began = True
        epochs = self._gather("the first epoch", epoch)
        if len(set(epochs)) > 1:
            words = ["no epoch" if each is None else f"epoch {each}" for each in epochs]
            raise ValueError(
                "fit: the ranks begin with different epochs: "
                f"{by_rank(words, self._ranks)}. Pass the same initial_epoch= on all ranks. To "
                "resume all ranks where rank 0 stopped, use "
                "tf_hvd.keras.callbacks.BackupAndRestore."
            )

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if not self._together:
            return
        if not self._began:
            self._first_epoch(epoch)
        self._in_epoch = True
        self._epoch.begin()
        self._batches.clear()
        self._updates = self._reductions()

    def _reductions(self) -> int:
        """The number of gradient reductions so far; 0 if reductions are not counted.

        One execution of Keras' training function may make several reductions.
        """
        synchronizer = compat.synchronizer_of(getattr(self.model, "optimizer", None))
        return getattr(synchronizer, "updates", None) or 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count an execution of the training function; several threads may call this."""
        self._batches.append(batch)

    def on_test_begin(self, logs: Any = None) -> None:
        """Compare the ranks' step counts after an epoch's last step and before validation."""
        if not self._together or not self._in_epoch:
            return
        self._in_epoch = False
        made = max(self._batches, default=-1) + 1
        # Other ranks may still have data, and wait for this rank in their next step. Or they had
        # less data, and have joined.
        if made != self._steps or not self._all_here():
            collectives.join(process_set=self._process_set)
        counts = (made, len(self._batches), self._reductions() - self._updates)
        self._check_steps(self._gather(_END, counts))
        # From now on Keras knows the number of steps, too.
        self._steps = made if self._steps is None else self._steps
        if self._averages:
            self._epoch.collect(self.model)  # before validation resets the metrics

    def _all_here(self) -> bool:
        """Whether all ranks are calling this method, which means that no rank has joined."""
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
        everyone = self._gather("the end of an epoch", self._report(logs))
        numbers = [report.numbers for report in everyone]
        # A custom loss may be computed across all ranks, and a single batch may match by chance.
        comparable = len(self._batches) > 1 and not self._distributed
        if comparable and not _has_own_loss(self.model):
            _tell_of_same_data(numbers)
        if self._averages:
            if self._strict:
                reduced_metrics.check_names(everyone, self._ranks)
            self._averaged = self._epoch.reduce(everyone, self._process_set)
            logs.update(self._averaged)

    def _report(self, logs: Mapping[str, Any]) -> reduced_metrics.Report:
        if not self._averages:
            return reduced_metrics.Report.without_metrics(logs)
        return self._epoch.report(logs)

    def _check_steps(self, counts: Sequence[tuple[int, int, int]]) -> None:
        if len(set(counts)) == 1:
            return
        made = [batches for batches, _, _ in counts]
        updates = [reductions for _, _, reductions in counts]
        what = "steps"
        # With steps_per_execution, Keras counts a shortened execution as a full one.
        rounded = any(batches != executions for batches, executions, _ in counts)
        if len(set(updates)) > 1 and (rounded or len(set(made)) == 1):
            made, what = updates, "updates"
        elif rounded:
            made, what = [executions for _, executions, _ in counts], "executions of several steps"
        raise ValueError(
            f"fit: in one epoch, the ranks ran different numbers of {what}: "
            f"{by_rank(made, self._ranks)}. A rank ran out of data or set stop_training before the "
            "others. Split the data evenly, for example with hvd.shard, or pass fit(..., "
            "steps_per_epoch=...) on all ranks. Make all ranks stop at the same step."
        )

    def on_test_end(self, logs: Any = None) -> None:
        if not (self._together and self._averages and self._began):
            return
        logs = {} if logs is None else logs
        prefix = reduced_metrics.VALIDATION
        self._epoch.collect(self.model, prefix)
        mine = self._epoch.report({f"{prefix}{name}": value for name, value in logs.items()})
        found = self._epoch.reduce(self._gather("validation", mine), self._process_set)
        # A rank without data does not have logs, and therefore gets all results.
        names = list(logs) or [name.removeprefix(prefix) for name in found]
        logs.update({name: found[prefix + name] for name in names if prefix + name in found})

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
        """End the `fit`, even if no epoch was run."""
        if not self._together:
            return
        if not self._began:
            self._first_epoch(None)
        if logs:
            logs.update({name: value for name, value in self._averaged.items() if name in logs})


def _has_own_loss(model: Any) -> bool:
    """Whether the user's model class, and not Keras, computes the loss."""
    for name in ("train_step", "compute_loss"):
        kinds = [kind for kind in type(model).__mro__ if name in vars(kind)]
        if kinds and kinds[0].__module__.partition(".")[0] not in ("keras", "tf_keras"):
            return True
    return False


def _tell_of_same_data(everyone: Sequence[Mapping[str, float]]) -> None:
    """Warn if all ranks seem to have processed the same batches, which suggests unsplit data."""
    losses = {numbers.get("loss") for numbers in everyone}
    loss = losses.pop()
    # A loss that is nearly 0, or not a number, proves nothing.
    if losses or not loss or not 1e-6 < abs(loss) < math.inf or basics.rank() != 0:
        return
    log.warn_once(
        f"all {len(everyone)} ranks seem to train on the same data, because their training losses "
        "in an epoch were equal to the last bit. Give each rank its own part of the data, before "
        "shuffle and batch: dataset = tf_hvd.shard(dataset). Ignore this if the loss is computed "
        "across all ranks."
    )


class _Closing:
    """The internal callback that runs after the user's callbacks."""

    async_safe = True  # Keras calls the methods that matter from the main thread
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
    """The user's callbacks for `fit`, between the two callbacks that synchronize the ranks."""
    fit = internal_callback(_Fit, base, callbacks=callbacks)
    closing = internal_callback(_Closing, base, fit=fit, base=base)
    fit_config.hold_writers(callbacks)
    return [fit, *resume.last(callbacks), closing]
