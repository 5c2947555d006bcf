"""The entry point of the commands `tf_hvd` and `horovodrun` and of the processes they start.

These processes run without TensorFlow, which `import tf_hvd` would load. This module therefore
imports the package's modules without running the package's `__init__.py`. Programs should not
import this module, because the package would then lack its public names.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence

_HOROVODRUN = "--horovodrun"


def command(*words: str) -> list[str]:
    """Return the command line that runs `tf_hvd` with these arguments under the current Python.

    If the first argument is `--horovodrun`, the command line runs `horovodrun` instead.
    """
    # By path, because other processes may not have the folder on sys.path. -P (Python 3.11) keeps
    # the folder from becoming the first entry of sys.path.
    safely = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safely, __file__, *words]


def main() -> int:
    """Run `tf_hvd` with this process's arguments and return the exit code."""
    return _start("tf_hvd.launch.commands.main", sys.argv[1:])


def horovodrun() -> int:
    """Run `horovodrun` with this process's arguments and return the exit code."""
    return _start("tf_hvd.horovod.horovodrun", sys.argv[1:])


def _start(module: str, arguments: Sequence[str]) -> int:
    if importlib.util.find_spec("tf_hvd") is None:
        sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.find_spec("tf_hvd")
    if spec is not None:
        package = sys.modules.setdefault("tf_hvd", importlib.util.module_from_spec(spec))
        zipped = importlib.import_module("tf_hvd.core.wheels").zipped_text(package.__path__[0])
        if zipped:
            print(f"tf_hvd: {zipped}", file=sys.stderr)
            return 2
    return int(importlib.import_module(module).main(arguments))


if __name__ == "__main__":
    if sys.version_info < (3, 11) and sys.path[0] == os.path.dirname(__file__):
        del sys.path[0]  # this Python has no -P
    if sys.argv[1:2] == [_HOROVODRUN]:
        del sys.argv[1]
        sys.exit(horovodrun())
    sys.exit(main())
