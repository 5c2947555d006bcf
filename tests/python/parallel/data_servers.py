"""TensorFlow's tf.data service, for tests: a dispatcher and two workers."""

import contextlib

import tensorflow as tf

import tf_hvd as hvd

HOSTS = ["localhost:%port%"] * 2


@contextlib.contextmanager
def running():
    """On all ranks, the address of servers in rank 0's process."""
    service = tf.data.experimental.service
    servers = []
    if hvd.rank() == 0:
        servers.append(service.DispatchServer(service.DispatcherConfig(worker_addresses=HOSTS)))
        address = servers[0].target.partition("://")[2]
        # Workers report finished tasks by heartbeats, which take seconds by default.
        config = service.WorkerConfig(address, heartbeat_interval_ms=100)
        servers += [service.WorkerServer(config) for _ in HOSTS]
    yield hvd.broadcast_object(servers[0].target if servers else None)
    hvd.barrier()
    while servers:  # the workers first
        servers.pop()
