"""The start of the commands `tf_hvd` and `horovodrun`, and of the processes that they start.

They run without TensorFlow, which `import tf_hvd` loads: so the package's modules are imported
here without its own `__init__.py`. Not for use in programs, which would not get its names then.
"""

import importlib
import importlib.util
import sys
from collections.abc import Sequence

_HOROVODRUN = "--horovodrun"


def command(*words: str) -> list[str]:
    """The command line of `tf_hvd` with these arguments, for this Python.

    In place of a command, `--horovodrun` starts that.
    """
    # Without the working folder on the path, where Python can do that.
    safely = ["-P"] if sys.version_info >= (3, 11) else []
    return [sys.executable, *safely, "-m", "tf_hvd_command", *words]


def main() -> int:
    """Runs `tf_hvd` with this process's arguments; returns the exit code."""
    return _start("tf_hvd.launch.commands.main", sys.argv[1:])


def horovodrun() -> int:
    """Runs `horovodrun` with this process's arguments; returns the exit code."""
    return _start("tf_hvd.horovod.horovodrun", sys.argv[1:])


def _start(module: str, arguments: Sequence[str]) -> int:
    spec = importlib.util.find_spec("tf_hvd")
    if spec is not None:
        sys.modules.setdefault("tf_hvd", importlib.util.module_from_spec(spec))
    return int(importlib.import_module(module).main(arguments))


if __name__ == "__main__":
    if sys.argv[1:2] == [_HOROVODRUN]:
        del sys.argv[1]
        sys.exit(horovodrun())
    sys.exit(main())
