"""What Horovod has and tf_hvd lacks, and what to do instead."""

_NO_TORCH = "it serves TensorFlow only; for others use Horovod itself"
_NO_CLUSTER = "start the ranks with tf_hvd run or the cluster's MPI launcher"
ABSENT = {
    "data": "there is no tf.data service; use tf_hvd.shard",
    "http": f"there is no Gloo, whose rendezvous server this is; {_NO_CLUSTER}",
    "mxnet": _NO_TORCH,
    "ray": _NO_CLUSTER,
    "spark": _NO_CLUSTER,
    "torch": _NO_TORCH,
}
