"""Exception types that are ours; collectives raise TensorFlow's own (`tf.errors`)."""


class HorovodInternalError(RuntimeError):
    """The job ended during a call that is not an op, or there is a bug in tf_hvd."""


class HorovodInitError(ValueError, RuntimeError):
    """`init` failed: a setting is invalid, or the MPI library does not match the launcher.

    A ValueError too, because that is what Horovod raises when its native part
    does not start.
    """


class HorovodVersionMismatchError(ImportError):
    """The package was built for another TensorFlow than the one that is installed."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 - Horovod's name
    """Hosts of an elastic job have come or gone: the ranks are to be started again.

    Args:
      skip_sync: whether hosts have gone and none has come.
    """

    def __init__(self, skip_sync: bool) -> None:
        super().__init__()
        self.skip_sync = skip_sync
