"""Horovod's module names for this package: a Horovod script runs with no other change.

`install_as_horovod()` before the script's imports, or `tf_hvd run --as-horovod`.
docs/differences.md says where the two behave differently.
"""

import importlib
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any

HOROVOD_VERSION = "0.28.1"
"""The Horovod whose names these are; scripts read it as `horovod.__version__`."""

# Each of Horovod's modules and where its names are found here, first match wins.
_SOURCES: dict[str, tuple[str, ...]] = {
    "horovod": ("tf_hvd.horovod_runner",),
    "horovod.common": (),
    "horovod.common.basics": ("tf_hvd.basics",),
    "horovod.common.exceptions": ("tf_hvd.exceptions",),
    "horovod.common.process_sets": ("tf_hvd.process_sets",),
    "horovod.common.util": ("tf_hvd.helpers",),
    "horovod.keras": ("tf_hvd.keras",),
    "horovod.keras.callbacks": ("tf_hvd.keras.callbacks",),
    "horovod.runner": ("tf_hvd.horovod_runner",),
    "horovod.tensorflow": ("tf_hvd", "tf_hvd.helpers"),
    "horovod.tensorflow.compression": ("tf_hvd.compression",),
    "horovod.tensorflow.functions": ("tf_hvd",),
    "horovod.tensorflow.keras": ("tf_hvd.keras",),
    "horovod.tensorflow.keras.callbacks": ("tf_hvd.keras.callbacks",),
    "horovod.tensorflow.mpi_ops": ("tf_hvd", "tf_hvd.helpers"),
    "horovod.tensorflow.util": ("tf_hvd.helpers",),
}

# What Horovod has and tf_hvd has not, and what to do instead.
_ABSENT = {
    "elastic": "there is no elastic training; start the job again from its last checkpoint",
    "data": "there is no tf.data service; use tf_hvd.shard",
    "mxnet": "tf_hvd serves TensorFlow only",
    "ray": "start the ranks with tf_hvd run or the cluster's MPI launcher",
    "spark": "start the ranks with tf_hvd run or the cluster's MPI launcher",
    "torch": "tf_hvd serves TensorFlow only",
}


def _absent(module: str, name: str) -> str:
    why = _ABSENT.get(name, "docs/differences.md lists what is there")
    return f"{module} has no {name!r} here, for it is tf_hvd: {why}."


class _Alias(types.ModuleType):
    """One of Horovod's modules: its names are looked up where they are defined here."""

    def __getattr__(self, name: str) -> Any:
        full = f"{self.__name__}.{name}"
        if full in _SOURCES:
            return importlib.import_module(full)
        if not name.startswith("__"):
            for source in _SOURCES[self.__name__]:
                module = importlib.import_module(source)
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(_absent(self.__name__, name))

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__all__})

    @property
    def __all__(self) -> list[str]:
        names: set[str] = set()
        for source in _SOURCES[self.__name__]:
            module = importlib.import_module(source)
            public = [name for name in vars(module) if not name.startswith("_")]
            names.update(getattr(module, "__all__", public))
        return sorted(names)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `horovod` and what lies below it, before any Horovod that is installed."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: types.ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "horovod" and not fullname.startswith("horovod."):
            return None
        if fullname not in _SOURCES:
            parent, _, name = fullname.rpartition(".")
            raise ModuleNotFoundError(_absent(parent, name), name=fullname)
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Alias(spec.name, f"{spec.name}, served by tf_hvd.")

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "horovod":
            vars(module)["__version__"] = HOROVOD_VERSION


def install_as_horovod() -> None:
    """Makes `import horovod.tensorflow as hvd` and its like give this package.

    Covers horovod.tensorflow and horovod.keras with their public submodules, and
    horovod.common. A Horovod that is installed is not used. Calling it again does
    nothing.

    Raises:
      ImportError: the real Horovod was imported before.
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "horovod" in sys.modules:
        raise ImportError(
            "horovod was imported before tf_hvd.install_as_horovod(); call it first in the "
            "program, or start the program with tf_hvd run --as-horovod."
        )
    sys.meta_path.insert(0, _Finder())
