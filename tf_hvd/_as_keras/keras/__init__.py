"""The module that `import keras` finds under `tf_hvd run --keras`, through sys.path.

It replaces itself with the installed Keras, and imports tf_hvd.keras, which fills in the functions
of `keras.distribution`. Processes that this rank starts get the installed Keras without tf_hvd.
"""

import importlib
import os
import sys

_folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != _folder]
del sys.modules[__name__]
importlib.import_module("tf_hvd.core.config").leave_python_path(_folder)
_keras = importlib.import_module(__name__)
if _keras.backend.backend() != "tensorflow":
    raise ImportError(
        "tf_hvd run --keras trains with Keras' TensorFlow backend, but Keras is configured for "
        f"{_keras.backend.backend()}: set KERAS_BACKEND=tensorflow."
    )
importlib.import_module("tf_hvd.keras")
