"""Removal of tf_hvd's ops from graphs, for inference where tf_hvd is not installed."""

from tf_hvd.strip.api import strip_ops

__all__ = ["strip_ops"]
