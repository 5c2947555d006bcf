"""Horovod's module names for this package, so that Horovod scripts run without changes.

Call `install_as_horovod()` before the script's imports, or use `tf_hvd run --as-horovod`.
docs/differences.md describes the differences in behaviour.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
import types
from collections.abc import Sequence
from typing import Any

from tf_hvd.core.absent import ABSENT
from tf_hvd.launch.job.environment import horovod_path

HOROVOD_VERSION = "0.28.1"
"""The Horovod version that provides the names; scripts read it as `horovod.__version__`."""

# Maps each of Horovod's modules to the tf_hvd modules that provide its names. The first match
# counts.
_SOURCES: dict[str, tuple[str, ...]] = {
    "horovod": ("tf_hvd.horovod.runner",),
    "horovod.common": (),
    "horovod.common.elastic": ("tf_hvd.elastic",),
    "horovod.common.exceptions": ("tf_hvd.core.exceptions",),
    "horovod.common.process_sets": ("tf_hvd.core.process_sets", "tf_hvd.horovod.process_sets"),
    "horovod.common.util": ("tf_hvd.horovod.util",),
    "horovod.keras": (
        "tf_hvd.horovod.keras",
        "tf_hvd.horovod.tf_keras",
        "tf_hvd.horovod.built",
        "tf_hvd.keras",
    ),
    "horovod.keras.callbacks": ("tf_hvd.horovod.keras_callbacks",),
    "horovod.keras.elastic": ("tf_hvd.elastic.fit",),
    "horovod.runner": ("tf_hvd.horovod.runner",),
    "horovod.runner.common": (),
    "horovod.runner.common.util": (),
    "horovod.runner.common.util.hosts": ("tf_hvd.horovod.hosts",),
    "horovod.runner.launch": ("tf_hvd.horovod.launch",),
    "horovod.tensorflow": (
        "tf_hvd",
        "tf_hvd.horovod.built",
        "tf_hvd.horovod.helpers",
        "tf_hvd.horovod.tensorflow",
    ),
    "horovod.tensorflow.compression": ("tf_hvd.collectives.compression",),
    "horovod.tensorflow.elastic": ("tf_hvd.elastic",),
    "horovod.tensorflow.functions": ("tf_hvd",),
    "horovod.tensorflow.gradient_aggregation": ("tf_hvd.horovod.gradient_aggregation",),
    "horovod.tensorflow.keras": (
        "tf_hvd.horovod.tf_keras",
        "tf_hvd.horovod.built",
        "tf_hvd.keras",
    ),
    "horovod.tensorflow.keras.callbacks": ("tf_hvd.horovod.tf_keras_callbacks",),
    "horovod.tensorflow.keras.elastic": ("tf_hvd.elastic.fit",),
    "horovod.tensorflow.mpi_ops": (
        "tf_hvd",
        "tf_hvd.horovod.built",
        "tf_hvd.horovod.helpers",
        "tf_hvd.horovod.mpi_ops",
    ),
    "horovod.tensorflow.sync_batch_norm": ("tf_hvd.keras.sync_batch_norm",),
    "horovod.tensorflow.util": ("tf_hvd.horovod.helpers",),
}


# An import of one of these modules selects Horovod's conventions. Programs that only launch jobs do
# not need TensorFlow.
_DECIDE = ("horovod.tensorflow", "horovod.keras")


def _absent(module: str, name: str) -> str:
    why = ABSENT.get(name, "check the name against tf_hvd's API: help(tf_hvd)")
    return f"{module} has no {name!r}, because tf_hvd replaces Horovod here: {why}."


def _file_of(module: str) -> str:
    """Return a file for one of Horovod's modules: the file of the first module with its names."""
    for source in _SOURCES[module]:
        spec = importlib.util.find_spec(source)
        if spec is not None and spec.origin is not None:
            return spec.origin
    return str(pathlib.Path(horovod_path()) / "horovod" / "__init__.py")


class _Alias(types.ModuleType):
    """One of Horovod's modules. It looks up names in the tf_hvd modules that define them."""

    def __getattr__(self, name: str) -> Any:
        full = f"{self.__name__}.{name}"
        if full in _SOURCES:
            return importlib.import_module(full)
        if not name.startswith("__") and name not in ABSENT:
            for source in _SOURCES[self.__name__]:
                module = importlib.import_module(source)
                if hasattr(module, name):
                    return getattr(module, name)
        raise AttributeError(_absent(self.__name__, name))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the module by name, so that functions that use the module can be pickled."""
        return _imported, (self.__name__,)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.__all__})

    @property
    def __all__(self) -> list[str]:
        names: set[str] = set()
        for source in _SOURCES[self.__name__]:
            module = importlib.import_module(source)
            public = [name for name in vars(module) if not name.startswith("_")]
            names.update(getattr(module, "__all__", public))
        return sorted(name for name in names if not name.startswith("_"))


def _imported(name: str) -> types.ModuleType:
    """Import one of Horovod's modules, after installing Horovod's names if necessary."""
    install_as_horovod()
    return importlib.import_module(name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A finder for `horovod` and its submodules that comes before any installed Horovod."""

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
        spec = importlib.machinery.ModuleSpec(
            fullname,
            self,
            origin=_file_of(fullname),
            is_package=any(name.startswith(f"{fullname}.") for name in _SOURCES),
        )
        spec.has_location = True  # gives the module its __file__
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Alias(spec.name, f"{spec.name}, served by tf_hvd.")

    def exec_module(self, module: types.ModuleType) -> None:
        if module.__name__ == "horovod":
            vars(module)["__version__"] = HOROVOD_VERSION
        elif module.__name__.startswith(_DECIDE):
            importlib.import_module("tf_hvd.collectives.gradients").use_horovods()
            importlib.import_module("tf_hvd.horovod.keras2_forms").accept()

    def get_code(self, fullname: str) -> types.CodeType | None:
        """Return the code for `python -m`, taken from the module that provides the name."""
        source = next(iter(_SOURCES[fullname]), "")
        loader: Any = getattr(importlib.util.find_spec(source), "loader", None) if source else None
        return None if loader is None else loader.get_code(source)


def install_as_horovod() -> None:
    """Make `import horovod.tensorflow as hvd` and similar imports return this package.

    The modules are horovod.tensorflow and horovod.keras with their public submodules, and
    horovod.common. An installed Horovod is not used. Further calls do nothing.

    Raises:
      ImportError: the real Horovod has already been imported.

    Example:
      import tf_hvd

      tf_hvd.install_as_horovod()
      import horovod.tensorflow as hvd

      hvd.init()
    """
    if any(isinstance(finder, _Finder) for finder in sys.meta_path):
        return
    if "horovod" in sys.modules:
        raise ImportError(
            "horovod was imported before tf_hvd.install_as_horovod(); make this call before the "
            "import, or start the program with tf_hvd run --as-horovod."
        )
    sys.meta_path.insert(0, _Finder())
