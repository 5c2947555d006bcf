"""Describe what each rank's `fit` will do, and check that these plans are compatible."""

import os
import platform
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from tf_hvd.keras import adapted, compat, resume, root_only
from tf_hvd.training import guard

# Callbacks that must be used on all ranks: they stop or change training, or call collectives.
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
# Callbacks that use metrics, so the metrics must be reduced across all ranks.
_DECIDING = ("EarlyStopping", "MetricAverageCallback", "ReduceLROnPlateau")
# Callbacks that write files or send data, and the attribute with the path or address.
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
    """A file that one of Keras' own callbacks writes."""

    kind: str  # class name of the callback
    host: str
    path: str
    held: bool  # whether the callback can be limited to one rank (root_only)


class FitConfig(NamedTuple):
    """The plan of a rank's `fit`: its steps, epochs, optimizer, callbacks and files."""

    distributed: bool  # whether the model's optimizer is distributed
    steps: int | None  # per epoch, if known
    epochs: int | None  # the number of the last epoch
    changing: tuple[str, ...]  # sorted names of its callbacks that are in _CHANGING
    averages: bool  # whether one of its callbacks makes decisions based on metrics
    files: tuple[File, ...]
    backup: str | None  # "ours", "Keras'", or None
    backup_options: tuple[str, ...]  # options of tf_hvd's BackupAndRestore
    layers: list[adapted.Layer]  # live layers with an adapted state


def _known(callback: Any) -> str:
    return next((name for name in compat.library_classes(callback) if name in _KNOWN), "")


def hold_writers(callbacks: Iterable[Any]) -> None:
    """Make Keras' own callbacks write files on the first rank only; called before a `fit`."""
    for callback in callbacks:
        if _known(callback) in _WRITING:
            root_only.hold(callback)


def release_writers(
    callbacks: Iterable[Any], shared: Collection[tuple[str, str]] = ()
) -> list[Any]:
    """Reactivate this rank's held callbacks, except writers of a file in `shared`.

    Returns:
      The callbacks that are active again.
    """
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
    """The first BackupAndRestore, from Keras or tf_hvd, in `callbacks`; None without one."""
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
    """A text with the value on the first rank and on the first rank with a different value."""
    other = next(place for place, value in enumerate(values) if value != values[0])
    return f"{values[0]} on rank {ranks[0]}, {values[other]} on rank {ranks[other]}"


def check(plans: Sequence[FitConfig], ranks: Sequence[int]) -> set[tuple[str, str]]:
    """Raise an error unless the ranks' plans are compatible.

    Returns:
      The files that Keras' own callbacks would write on several ranks: for each file, the
      callback's class name and the path. Only the first rank may write these files.

    Raises:
      ValueError: the plans are incompatible; raised on all ranks, with the same text.
    """
    _check_optimizers(plans, ranks)
    steps = [plan.steps for plan in plans]
    if None not in steps and len(set(steps)) > 1:
        raise ValueError(
            f"fit: the ranks have different numbers of batches: {by_rank(steps, ranks)}. Every "
            "step needs all ranks. Split the data evenly, as hvd.shard does, or pass "
            "fit(..., steps_per_epoch=hvd.steps_per_epoch(...)) on all ranks."
        )
    epochs = [plan.epochs for plan in plans]
    if len(set(epochs)) > 1:
        raise ValueError(
            f"fit: epochs= differs between ranks: {by_rank(epochs, ranks)}. Pass the same value on "
            "all ranks."
        )
    changing = [", ".join(plan.changing) or "none" for plan in plans]
    if len(set(changing)) > 1:
        raise ValueError(
            "fit: the ranks have different callbacks that stop or change training: "
            f"{by_rank(changing, ranks)}. Pass these callbacks on all ranks."
        )
    shared = _shared_files(plans, ranks)
    if any(plan.backup == "ours" for plan in plans) and plans[0].backup is None:
        raise ValueError(
            f"fit: BackupAndRestore is missing on rank {ranks[0]}, which writes the backup. "
            "Pass this callback on all ranks."
        )
    backups = [plan.backup for plan in plans]
    if backups[0] == "ours" and "Keras'" in backups:
        other = ranks[backups.index("Keras'")]
        raise ValueError(
            f"fit: rank {ranks[0]} uses tf_hvd.keras.callbacks.BackupAndRestore, but rank "
            f"{other} uses Keras' own class. Use the class of tf_hvd on all ranks."
        )
    return shared


def _check_optimizers(plans: Sequence[FitConfig], ranks: Sequence[int]) -> None:
    kinds = [f"a {'distributed' if plan.distributed else 'plain'} optimizer" for plan in plans]
    if len(set(kinds)) > 1:
        raise ValueError(
            f"fit: the ranks train different models: {by_rank(kinds, ranks)}. Calls of fit() are "
            "matched by their order. Use the same kind of optimizer on all ranks in each call. "
            f"{guard.OFF}"
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
                f"rank {ranks[0]} only; your own hooks still run on all ranks. Or pass the "
                f"callback on rank {ranks[0]} only, or use a different path on each rank."
            )
    return shared
