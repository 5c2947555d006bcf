"""The `tf_hvd` command. Nothing here imports TensorFlow, so the command starts immediately."""
