"""Saving a model on all ranks to one path, as a script for `keras.distribution` does.

Each rank writes its own file in the same folder and renames it. The file at the path is therefore
always complete. No rank waits for another, so a script may also save on one rank only.
"""

import contextlib
import os
from typing import Any

from tf_hvd.keras.distribution import active

_FILES = (".keras", ".h5", ".hdf5")


def saved(model: Any, save: Any, /, filepath: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls `Model.save` or `Model.save_weights` under a distribution."""
    setup = active.setup()
    if setup is None or not _is_one_file(filepath, args, kwargs):
        return save(filepath, *args, **kwargs)
    folder, name = os.path.split(os.fspath(filepath))
    own = os.path.join(folder, f".{setup.rank}.{name}")
    try:
        result = save(own, *args, **kwargs)
        os.replace(own, filepath)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(own)
    return result


def _is_one_file(path: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether Keras writes one local file, and asks no question before it overwrites one."""
    if not isinstance(path, (str, os.PathLike)):
        return False
    text = str(path)
    overwrites = args[0] if args else kwargs.get("overwrite", True)
    several = len(args) > 1 or not kwargs.keys() <= {"overwrite"}
    is_new = not os.path.exists(text)
    return text.endswith(_FILES) and "://" not in text and (overwrites or is_new) and not several
