"""`tf_hvd bench`: this library beside what else is installed, and beside what the machine allows.

workloads -> peers -> measure -> report; `training` times whole steps. docs/bench.md.
"""
