"""`tf_hvd bench`: compare this library with other libraries and with the machine's limits.

The modules `workloads`, `peers`, `measure` and `report` are used in this order. `training` times
whole steps. See docs/bench.md.
"""
