"""Whose names this process uses: where tf_hvd's own differ from Horovod's, it behaves by them."""


class Convention:
    """One for the process; tf_hvd.collectives.gradients decides it."""

    name = "tf_hvd"
    """"tf_hvd", or "horovod" once one of Horovod's modules was imported."""
    asked = False
    """Whether a gradient that depends on it was computed."""
