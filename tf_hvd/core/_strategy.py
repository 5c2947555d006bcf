"""A check that tf.distribute and tf_hvd, which do the same work, are not both active."""

import tensorflow as tf


def refuse_replicas(what: str, strategy: tf.distribute.Strategy | None = None) -> None:
    """Raise if a tf.distribute strategy with several replicas is active.

    TensorFlow's default strategy and OneDeviceStrategy are allowed.

    Raises:
      RuntimeError: `strategy`, or the strategy in scope if it is None, has several replicas.
    """
    if strategy is None:
        if not tf.distribute.has_strategy():
            return
        strategy = tf.distribute.get_strategy()
    replicas = strategy.num_replicas_in_sync
    if replicas > 1:
        raise RuntimeError(
            f"tf_hvd: {what} within tf.distribute's {type(strategy).__name__} of {replicas} "
            "replicas: both would reduce the gradients, and each replica would call the rank's "
            "collectives. Remove the strategy and start one rank for each device (tf_hvd run -np "
            f"{replicas}), or remove tf_hvd."
        )
