"""Names in Horovod's modules that tf_hvd's own API lacks.

They are available only under Horovod's module names (tf_hvd.horovod.names). New code does not need
them. The names and signatures are those of Horovod 0.28.1. They include private names, because
scripts also use private names.
"""
