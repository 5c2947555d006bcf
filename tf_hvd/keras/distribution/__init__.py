"""Keras' distribution API, `keras.distribution`, on the TensorFlow backend.

Keras defines the API; its TensorFlow backend does not implement it. This package provides what is
missing, so that a script for `keras.distribution.DataParallel` trains across all ranks. The results
are those of one process with the global batches, or an error says why they cannot be.

- backend: the functions of Keras' backend, which list processes and devices.
- active: whether a distribution is set, and whether tf_hvd can train under it.
- rows: this rank's rows of a global batch.
- step: the step that is being built or run, and the weight of this rank in it.
- losses, random, moments: parts of a step that depend on the whole batch.
- results: metrics, logs and predictions across all ranks.
- installed: the hooks into Keras.

Nothing acts until a program calls `keras.distribution.set_distribution`, in a job of several ranks.
"""
