"""The start of the commands `tf_hvd` and `horovodrun`, and of the processes that they start.

They run without TensorFlow, which `import tf_hvd` loads: so the package's modules are imported
here without its own `__init__.py`. Not for use in programs, which would not get its names then.
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Sequence

_HOROVODRUN = "--horovodrun"


def command(*words: str) -> list[str]:
    """The command line of `tf_hvd` with these arguments, for this Python.

    In place of a command, `--horovodrun` starts that.
    """
    # By its path: this process may have put the folder on sys.path by itself. The folder is not to
    # come first there, where Python can do without.
    safely = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safely, __file__, *words]


def main() -> int:
    """Runs `tf_hvd` with this process's arguments; returns the exit code."""
    return _start("tf_hvd.launch.commands.main", sys.argv[1:])


def horovodrun() -> int:
    """Runs `horovodrun` with this process's arguments; returns the exit code."""
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
        del sys.path[0]  # it has no -P
    if sys.argv[1:2] == [_HOROVODRUN]:
        del sys.argv[1]
        sys.exit(horovodrun())
    sys.exit(main())
