"""The module that `import horovod` finds on sys.path under `tf_hvd run --as-horovod`.

The module immediately replaces itself with the module that tf_hvd creates.
"""

import importlib
import sys

from tf_hvd.horovod.names import install_as_horovod

del sys.modules[__name__]
install_as_horovod()
importlib.import_module(__name__)
