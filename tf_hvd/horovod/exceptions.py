"""horovod.common.exceptions: what scripts name in `except` clauses."""


def get_version_mismatch_message(name: str, version: str, installed_version: str) -> str:
    """The text of a wrong version of a framework."""
    return (
        f"tf_hvd was built for {name} {installed_version}, but {version} is installed; install the "
        f"{name} that it was built for, or the tf_hvd for this one."
    )
