"""Not there; importing it says so, as it does under Horovod's name."""

from tf_hvd.core.absent import ABSENT

raise ImportError(f"no module 'tf_hvd.elastic': {ABSENT['elastic']}.")
