"""The commands of `tf_hvd`: their arguments and their output."""
