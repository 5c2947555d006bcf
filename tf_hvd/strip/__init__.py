"""Graphs without the ops of tf_hvd, for inference where it is not installed."""

from tf_hvd.strip.api import strip_ops

__all__ = ["strip_ops"]
