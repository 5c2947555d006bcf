"""tf_hvd's exception types. Collectives raise TensorFlow's types (`tf.errors`) instead.

Each type derives from the type that Horovod, or an earlier tf_hvd, raises in the same case.
"""


class HorovodInternalError(RuntimeError):
    """A bug in tf_hvd. The subclass `JobError` reports the end of the job instead."""


class JobError(HorovodInternalError):
    """The job has ended because another rank left or died.

    Raised by calls that are not ops, such as `add_process_set`. Collectives, which are ops,
    raise tf.errors.UnknownError for the same reason.
    """


class NotInitializedError(ValueError):
    """`init` has not been called, or `shutdown` was called after it."""


class ProcessSetError(ValueError):
    """A process set is not registered, was removed, or does not include this rank."""


class HorovodInitError(ValueError, RuntimeError):
    """`init` failed, for example because a setting is invalid or MPI does not match the launcher.

    This type is also a ValueError, because Horovod raises ValueError if its native library
    does not start.
    """


class HorovodVersionMismatchError(ImportError):
    """The installed TensorFlow is not a version that this package was built for."""


class HostsUpdatedInterrupt(RuntimeError):  # noqa: N818 - Horovod's name
    """The hosts of an elastic job have changed, so the ranks must restart.

    Args:
      skip_sync: bool, True if hosts were only removed, False if hosts were added.
    """

    def __init__(self, skip_sync: bool) -> None:
        super().__init__()
        self.skip_sync = skip_sync
