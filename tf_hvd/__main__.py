"""`python -m tf_hvd`: replace this process, which has loaded TensorFlow, with the command."""

import os
import sys

import tf_hvd_command

words = tf_hvd_command.command(*sys.argv[1:])
os.execv(words[0], words)
