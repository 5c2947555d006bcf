"""What Horovod's modules have and tf_hvd's own API has not.

Reached under Horovod's names only (tf_hvd.horovod.names). Nothing here is needed in
new code; names and signatures are those of Horovod 0.28.1, also where they begin with
an underscore, because scripts use them all the same.
"""
