"""tf_hvd.keras.elastic: what tf_hvd.elastic.fit defines, under the name that Horovod has for it."""

import importlib
import sys

sys.modules[__name__] = importlib.import_module("tf_hvd.elastic.fit")
