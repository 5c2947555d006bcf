"""Data-parallel training in TensorFlow: optimizers, tapes, session hooks and input data."""
