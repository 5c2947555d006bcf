"""Which wheel goes with which TensorFlow. Imports nothing of TensorFlow's."""

# One wheel each, of the same source (./dev wheel --tensorflow).
MINORS = ("2.18", "2.19", "2.20", "2.21")


def minor(version: str) -> str:
    """2.21 of 2.21.0."""
    return ".".join(version.split(".")[:2])


def cure(version: str, built_for: str, found: str) -> str:
    """What to install where a wheel meets a TensorFlow that it was not built for.

    Args:
      version: the wheel's; the part after the plus sign names its TensorFlow.
      built_for: the TensorFlow that the wheel was built for.
      found: the TensorFlow that is installed.
    """
    theirs = f"pip install 'tensorflow=={minor(built_for)}.*' (or tensorflow-cpu)"
    if minor(found) not in MINORS:
        return f"There is no tf_hvd for TensorFlow {minor(found)}: {theirs}"
    ours = f"{version.partition('+')[0]}+tf{minor(found)}"
    made = f"'./dev wheel --tensorflow {minor(found)}' makes it"
    return f"Install the wheel tf_hvd=={ours} ({made}), or {theirs}"
