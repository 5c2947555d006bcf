"""tf_hvd for Keras 3 and tf_keras. `import tf_hvd.keras as hvd` provides all names in `tf_hvd`.

Importing this package installs hooks in Keras (tf_hvd.keras.patches). The guard uses these hooks to
stop faulty training.
"""

import sys
import typing

# `as` tells type checkers that a name is public.
from tf_hvd.core import absent
from tf_hvd.keras import callbacks as callbacks
from tf_hvd.keras import patches
from tf_hvd.keras.tensor_collectives import allreduce as allreduce

if typing.TYPE_CHECKING:
    from tf_hvd import *  # noqa: F403
else:
    # tf_hvd imports this package, so its names are looked up lazily.
    def __getattr__(name: str) -> typing.Any:
        package = sys.modules["tf_hvd"]
        names = vars(package).get("__all__", ())  # not defined yet while tf_hvd is being imported
        if name == "__all__":
            return names
        if name in names or name == "__version__":
            return getattr(package, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{absent.why(name)}")

    def __dir__() -> list[str]:
        return dir(sys.modules["tf_hvd"])


patches.install()
