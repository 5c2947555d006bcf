"""What each rank is about to do in `fit`, and whether the ranks' plans fit together."""

import os
import platform
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from tf_hvd.keras import adapted, compat, resume, root_only
from tf_hvd.training import guard

# These must be on all ranks: they stop training, change it, or call collectives.
_CHANGING = (
    "BroadcastGlobalVariablesCallback",
    "EarlyStopping",
    "LearningRateScheduleCallback",
    "LearningRateScheduler",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
    "ReduceLROnPlateau",
    "SwapEMAWeights",
    "TerminateOnNaN",
)
# What they decide by must be the same on all ranks.
_DECIDING = ("EarlyStopping", "MetricAverageCallback", "ReduceLROnPlateau")
# Where they write to.
_WRITING = {
    "BackupAndRestore": "backup_dir",
    "CSVLogger": "filename",
    "ModelCheckpoint": "filepath",
    "OrbaxCheckpoint": "directory",
    "RemoteMonitor": "root",
    "TensorBoard": "log_dir",
}
_KNOWN = {*_CHANGING, *_DECIDING, *_WRITING}


class File(NamedTuple):
    """What a callback of Keras' own writes."""

    kind: str  # of the callback
    host: str
    path: str
    held: bool  # whether the callback can be left to one rank (root_only)


class FitConfig(NamedTuple):
    """What a rank is about to do in `fit`."""

    distributed: bool  # whether the model's optimizer is
    steps: int | None  # of an epoch, if known
    epochs: int | None  # the number of the last one
    changing: tuple[str, ...]  # which of _CHANGING it has, sorted
    averages: bool  # whether one of its callbacks decides by metrics
    files: tuple[File, ...]
    backup: str | None  # "ours", "Keras'", or None
    backup_options: tuple[str, ...]  # of ours
    layers: list[adapted.Layer]  # with an adapted state, that are alive in the process


def _known(callback: Any) -> str:
    return next((name for name in compat.library_classes(callback) if name in _KNOWN), "")


def hold_writers(callbacks: Iterable[Any]) -> None:
    """Before a `fit`: has callbacks of Keras' own that write do so on the first rank alone."""
    for callback in callbacks:
        if _known(callback) in _WRITING:
            root_only.hold(callback)


def release_writers(
    callbacks: Iterable[Any], shared: Collection[tuple[str, str]] = ()
) -> list[Any]:
    """Has callbacks that were held act on this rank again, but those in `shared`; gives them."""
    released = [
        callback
        for callback in callbacks
        if root_only.is_held(callback)
        and not any((file.kind, file.path) in shared for file in _files(callback))
    ]
    for callback in released:
        root_only.release(callback)
    return released


def _files(callback: Any) -> Iterable[File]:
    kind, held = _known(callback), root_only.is_held(callback)
    if kind not in _WRITING or (getattr(callback, "root_writes", False) and not held):
        return
    path = os.fspath(getattr(callback, _WRITING[kind], None) or "")
    if path:
        remote = "://" in path
        host = "" if remote else platform.node()
        yield File(kind, host, path if remote else os.path.abspath(path), held)


def backup_of(callbacks: Sequence[Any]) -> Any:
    """The first BackupAndRestore, Keras' or ours; None if there is none."""
    return next((each for each in callbacks if _known(each) == "BackupAndRestore"), None)


def config_of(model: Any, callbacks: Sequence[Any], params: Any) -> FitConfig:
    kinds = [_known(callback) for callback in callbacks]
    best = any(getattr(callback, "save_best_only", False) is True for callback in callbacks)
    found = backup_of(callbacks)
    ours = isinstance(found, resume.BackupAndRestore)
    optimizer = getattr(model, "optimizer", None)
    leaves = () if optimizer is None else compat.leaves(optimizer)
    return FitConfig(
        distributed=any(compat.synchronizer_of(leaf) is not None for leaf in leaves),
        steps=params.get("steps"),
        epochs=params.get("epochs"),
        changing=tuple(sorted(kind for kind in kinds if kind in _CHANGING)),
        averages=best or any(kind in _DECIDING for kind in kinds),
        files=tuple(file for callback in callbacks for file in _files(callback)),
        backup=None if found is None else "ours" if ours else "Keras'",
        backup_options=found.options if ours else (),
        layers=adapted.layers(),
    )


def by_rank(values: Sequence[Any], ranks: Sequence[int]) -> str:
    """The values of the first rank and of the first that differs."""
    other = next(place for place, value in enumerate(values) if value != values[0])
    return f"{values[0]} on rank {ranks[0]}, {values[other]} on rank {ranks[other]}"


def check(plans: Sequence[FitConfig], ranks: Sequence[int]) -> set[tuple[str, str]]:
    """Raises unless the plans, one for each of the ranks, fit together.

    Returns:
      Kind and path of what several ranks would write by Keras' own callbacks, and the first alone
      does.

    Raises:
      ValueError: on all ranks, with the same text.
    """
    _check_optimizers(plans, ranks)
    steps = [plan.steps for plan in plans]
    if None not in steps and len(set(steps)) > 1:
        raise ValueError(
            f"fit: the ranks have different numbers of batches: {by_rank(steps, ranks)}. Each "
            "step needs all ranks. Split the data evenly (hvd.shard does), or give all ranks "
            "fit(..., steps_per_epoch=hvd.steps_per_epoch(...))."
        )
    epochs = [plan.epochs for plan in plans]
    if len(set(epochs)) > 1:
        raise ValueError(f"fit: epochs= must be equal on all ranks: {by_rank(epochs, ranks)}.")
    changing = [", ".join(plan.changing) or "none" for plan in plans]
    if len(set(changing)) > 1:
        raise ValueError(
            "fit: callbacks that stop training or change it must be given on all ranks: "
            f"{by_rank(changing, ranks)}."
        )
    shared = _shared_files(plans, ranks)
    if any(plan.backup == "ours" for plan in plans) and plans[0].backup is None:
        raise ValueError(
            f"fit: BackupAndRestore is missing on rank {ranks[0]}, which alone writes the backup."
        )
    backups = [plan.backup for plan in plans]
    if backups[0] == "ours" and "Keras'" in backups:
        other = ranks[backups.index("Keras'")]
        raise ValueError(
            f"fit: rank {ranks[0]} has tf_hvd.keras.callbacks.BackupAndRestore, and rank "
            f"{other} Keras' own: use tf_hvd's on all ranks."
        )
    return shared


def _check_optimizers(plans: Sequence[FitConfig], ranks: Sequence[int]) -> None:
    kinds = [f"a {'distributed' if plan.distributed else 'plain'} optimizer" for plan in plans]
    if len(set(kinds)) > 1:
        raise ValueError(
            f"fit: the ranks train different models: {by_rank(kinds, ranks)}. All ranks must call "
            f"fit() alike, since their calls are matched by order. {guard.OFF}"
        )


def _shared_files(plans: Sequence[FitConfig], ranks: Sequence[int]) -> set[tuple[str, str]]:
    writers: dict[tuple[str, str], list[tuple[int, File]]] = {}
    for plan, rank in zip(plans, ranks, strict=True):
        for file in plan.files:
            writers.setdefault((file.kind, file.path), []).append((rank, file))
    shared = set()
    for (kind, path), found in writers.items():
        hosts = {rank: file.host for rank, file in found}
        if len(hosts) > 1 and ranks[0] in hosts and all(file.held for _, file in found):
            shared.add((kind, path))
            continue
        those = [rank for rank in hosts if list(hosts.values()).count(hosts[rank]) > 1]
        if those:
            raise ValueError(
                f"fit: {kind} on ranks {', '.join(map(str, those))} would write {path} at the "
                f"same time. Derive its class from tf_hvd.keras.callbacks.{kind}, which writes on "
                f"rank {ranks[0]} alone (hooks of your own run on all ranks), or pass it on rank "
                f"{ranks[0]} only, or use a different path on each rank."
            )
    return shared
