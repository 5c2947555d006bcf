"""The `tf_hvd` command. Nothing here imports TensorFlow: the command starts at once."""
