"""The commands of `tf_hvd`: what their arguments mean and what they print."""
