"""What `import horovod` finds under `tf_hvd run --as-horovod`, which puts this folder on the path.

It steps aside at once: the module that the import gives is made by tf_hvd.
"""

import importlib
import sys

from tf_hvd.horovod.names import install_as_horovod

del sys.modules[__name__]
install_as_horovod()
importlib.import_module(__name__)
