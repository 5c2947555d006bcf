"""The convention that this process follows where tf_hvd and Horovod behave differently."""


class Convention:
    """The convention of this process; tf_hvd.collectives.gradients sets it."""

    name = "tf_hvd"
    """"tf_hvd", or "horovod" once one of Horovod's modules was imported."""
    asked = False
    """bool, whether a gradient that depends on the convention has been computed."""
