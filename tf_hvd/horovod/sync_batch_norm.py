"""horovod.tensorflow.sync_batch_norm: one layer."""

from tf_hvd.keras.sync_batch_norm import SyncBatchNormalization

__all__ = ["SyncBatchNormalization"]
