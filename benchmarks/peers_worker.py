"""The workers of peers.py: a library in a separate process that runs requests.

Run it as a file, with the Python of the library's environment: it imports only that library and
NumPy. It reads requests from a socket, one JSON object per line, and answers each with a line.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import pathlib
import socket
import sys
import time
import traceback
from typing import Any

import numpy as np

_VALUES = 3  # as in tf_hvd/bench/values.py
_TINY = 1
_RANK_VARIABLES = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")


class System:
    """A library of collectives in this process."""

    operations: tuple[str, ...] = ()

    def __init__(self, start: dict[str, Any]) -> None:
        self.rank, self.size = int(start["rank"]), int(start["size"])
        self._call: Any = None

    def prepare(self, request: dict[str, Any]) -> str | None:
        """Make the tensors and the call; return the reason if that is impossible."""
        if request["operation"] not in self.operations:
            return f"it is measured for {', '.join(self.operations)} only"
        return self.make(request)

    def inputs(self, request: dict[str, Any], dtype: Any) -> list[np.ndarray]:
        """Make the same values as tf_hvd/bench/values.py."""
        turn = np.array([(self.rank + step) % _VALUES for step in range(_VALUES)])
        return [np.resize(turn.astype(dtype), shape) for shape in request["inputs"]]

    def make(self, request: dict[str, Any]) -> str | None:
        """Make the call for a supported operation; return the reason if that is impossible."""
        raise NotImplementedError

    def run(self) -> Any:
        return self._call()

    def results(self) -> list[np.ndarray]:
        return [np.asarray(value) for value in self.run()]

    def barrier(self) -> None:
        """Run the library's barrier, or its closest equivalent."""
        raise NotImplementedError

    def next_request(self, lines: Any) -> dict[str, Any] | None:
        """Return the next request; None at the end."""
        line = lines.readline()
        return json.loads(line) if line else None

    def all_answers(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        return [answer]


class Horovod(System):
    """A Horovod job. Horovod's launcher starts it, and only its rank 0 reads requests."""

    operations = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")

    def __init__(self, start: dict[str, Any]) -> None:
        # Before the libraries start threads, which inherit these cores.
        ranks = [os.environ[name] for name in _RANK_VARIABLES if name in os.environ]
        if start["cores"] and ranks:
            os.sched_setaffinity(0, start["cores"][int(ranks[0])])
        self._tf = importlib.import_module("tensorflow")
        self._hvd = importlib.import_module("horovod.tensorflow")
        self._hvd.init()
        super().__init__({"rank": self._hvd.rank(), "size": self._hvd.size()})

    def make(self, request: dict[str, Any]) -> str | None:
        tf, hvd = self._tf, self._hvd
        calls: dict[str, Any] = {
            "allreduce": lambda tensor: hvd.allreduce(tensor, op=hvd.Sum),
            "allgather": lambda tensor: hvd.allgather(tensor),
            "broadcast": lambda tensor: hvd.broadcast(tensor, root_rank=0),
            "alltoall": lambda tensor: hvd.alltoall(tensor),
            "reducescatter": lambda tensor: hvd.reducescatter(tensor, op=hvd.Sum),
        }
        single = calls[request["operation"]]

        def call(tensors: Any) -> Any:
            if request["mode"] != "grouped":
                return [single(tensor) for tensor in tensors]
            grouped = getattr(hvd, f"grouped_{request['operation']}")
            adds = request["operation"] != "allgather"
            return grouped(tensors, op=hvd.Sum) if adds else grouped(tensors)

        values = self.inputs(request, tf.as_dtype(request["dtype"]).as_numpy_dtype)
        tensors = [tf.constant(value) for value in values]
        function = call if request["mode"] == "eager" else tf.function(call, autograph=False)
        self._call = lambda: function(tensors)
        return None

    def results(self) -> list[np.ndarray]:
        """Return the results; alltoall may also return the splits."""
        given = [value[0] if isinstance(value, (list, tuple)) else value for value in self.run()]
        return [np.asarray(value) for value in given]

    def barrier(self) -> None:
        self._hvd.allreduce(self._tf.ones([_TINY]), op=self._hvd.Sum, name="tf_hvd_bench_barrier")

    def next_request(self, lines: Any) -> dict[str, Any] | None:
        """Read the request on rank 0 and broadcast it."""
        request = super().next_request(lines) if self.rank == 0 else None
        sent: dict[str, Any] | None = self._hvd.broadcast_object(request, root_rank=0)
        return sent

    def all_answers(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        return list(self._hvd.allgather_object(answer))


class Distribute(System):
    """TensorFlow's own collectives, in a ring between the workers of TF_CONFIG."""

    operations = ("allreduce",)

    def __init__(self, start: dict[str, Any]) -> None:
        super().__init__(start)
        self._tf = tf = importlib.import_module("tensorflow")
        ring = tf.distribute.experimental.CommunicationImplementation.RING
        options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
        self._strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
        self._tiny = self._summing([np.ones(_TINY, np.float32)])
        self._tiny()

    def _summing(self, values: list[np.ndarray]) -> Any:
        tf, strategy = self._tf, self._strategy

        def each(tensors: Any) -> Any:
            context = tf.distribute.get_replica_context()
            # It requires tensors that were made on its device, as gradients are.
            placed = [tf.identity(tensor) for tensor in tensors]
            return context.all_reduce(tf.distribute.ReduceOp.SUM, placed)

        def call(tensors: Any) -> Any:
            return strategy.run(each, args=(tensors,))

        tensors = [tf.constant(value) for value in values]
        function = tf.function(call, autograph=False)
        return lambda: function(tensors)

    def make(self, request: dict[str, Any]) -> str | None:
        """Make one call of all_reduce with all tensors, in a tf.function in any mode.

        An eager call takes many times as long and is not used in practice.
        """
        dtype = self._tf.as_dtype(request["dtype"]).as_numpy_dtype
        self._call = self._summing(self.inputs(request, dtype))
        return None

    def barrier(self) -> None:
        self._tiny()


class Gloo(System):
    """torch.distributed over Gloo: in place, except allgather."""

    operations = ("allreduce", "allgather", "broadcast")

    def __init__(self, start: dict[str, Any]) -> None:
        super().__init__(start)
        self._torch = importlib.import_module("torch")
        self._dist = importlib.import_module("torch.distributed")
        self._torch.set_num_threads(1)
        store = f"tcp://{start['address']}"
        self._dist.init_process_group(
            "gloo", init_method=store, rank=self.rank, world_size=self.size
        )
        self._outputs: list[Any] = []

    def make(self, request: dict[str, Any]) -> str | None:
        torch, dist, operation = self._torch, self._dist, request["operation"]
        inputs = [
            torch.from_numpy(value).to(getattr(torch, request["dtype"]))
            for value in self.inputs(request, "float32")
        ]
        self._outputs = inputs
        if operation == "allgather":
            self._outputs = [each.repeat(self.size) for each in inputs]

        def call() -> Any:
            for to, value in zip(self._outputs, inputs):  # noqa: B905  # Python 3.8
                if operation == "allreduce":
                    dist.all_reduce(to)
                elif operation == "broadcast":
                    dist.broadcast(to, 0)
                else:
                    dist.all_gather(list(to.chunk(self.size)), value)

        self._call = call
        return None

    def results(self) -> list[np.ndarray]:
        """Return the bits of the results. Later calls add zeros, so that sums cannot grow."""
        self._call()
        bits = [each.view(self._torch.uint8).numpy().copy() for each in self._outputs]
        for each in self._outputs:
            each.zero_()
        return bits

    def barrier(self) -> None:
        self._dist.barrier()


SYSTEMS: dict[str, type[System]] = {"horovod": Horovod, "tf.distribute": Distribute, "gloo": Gloo}


def answer(system: System, request: dict[str, Any]) -> dict[str, Any]:
    if request["do"] == "prepare":
        return {"reason": system.prepare(request)}
    if request["do"] == "results":
        found = system.results()
        return {"hashes": [hashlib.sha256(value.tobytes()).hexdigest() for value in found]}
    system.barrier()
    begin = time.perf_counter()
    for _ in range(request["calls"]):
        system.run()
    return {"seconds": (time.perf_counter() - begin) / request["calls"]}


def main(kind: str, path: str, started: str) -> None:
    """Answer requests until the socket is closed.

    Args:
      kind: one of SYSTEMS.
      path: path of the socket; only the rank that reads requests connects to it.
      started: the system's parameters, in JSON.
    """
    try:
        system = SYSTEMS[kind](json.loads(started))
    except Exception as error:
        failure: Exception | None = error
        system = System({"rank": 0, "size": 1})
    else:
        failure = None
    is_connected = kind != "horovod" or system.rank == 0
    with socket.socket(socket.AF_UNIX) as connection:
        if is_connected:
            connection.connect(path)
        with connection.makefile("rw") as lines:

            def say(value: dict[str, Any]) -> None:
                lines.write(json.dumps(value) + "\n")
                lines.flush()

            if failure:
                say({"error": f"{type(failure).__name__}: {failure}"})
                return
            if is_connected:
                say({"ranks": [{}]})
            while request := system.next_request(lines):
                try:
                    mine = answer(system, request)
                except Exception:
                    mine = {"error": traceback.format_exc().strip().splitlines()[-1]}
                answers = system.all_answers(mine)
                if is_connected:
                    say({"ranks": answers})


if __name__ == "__main__":
    if sys.path[0] == str(pathlib.Path(__file__).resolve().parent):
        del sys.path[0]  # otherwise modules of this folder would hide others
    main(*sys.argv[1:])
