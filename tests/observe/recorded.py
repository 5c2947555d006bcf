"""Synthetic recordings of jobs: common calls, then a fault."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

from tf_hvd.observe.recording import FAILED, JOINED, THROUGH, Call, Recording

SECOND = 1_000_000_000
START = 1_800_000_000 * SECOND


def call(name, number, line=1, **others):
    """A call that succeeded."""
    at = START + number * SECOND
    plain = {
        "number": number,
        "name": name,
        "kind": "allreduce",
        "dtype": "float32",
        "shape": (4,),
        "tensors": 1,
        "bytes": 16,
        "reduce_op": "Sum",
        "device": "CPU",
        "compiled": False,
        "backend": "shm",
        "set": 0,
        "step": -1,
        "order": number,
        "operation": number,
        "part": 0.0,
        "awaited": None,
        "last": -1,
        "submitted": at,
        "agreed": at + 1,
        "started": at + 2,
        "ended": at + 3,
        "code": "ok",
        "source": f"train.py:{line}",
    }
    return Call(**{**plain, **others})


def waiting(one, ended=0):
    """The call while other ranks have not made it; it may have failed at the job's end."""
    return dataclasses.replace(
        one,
        order=0,
        operation=0,
        backend="",
        agreed=0,
        started=0,
        ended=ended,
        code="aborted" if ended else "ok",
    )


def moving(one, part, awaited=None, ended=0):
    """The call while its data is moving."""
    code = "aborted" if ended else "ok"
    return dataclasses.replace(one, part=part, awaited=awaited, ended=ended, code=code)


@dataclass
class Job:
    """Ranks that have made `common` calls together before something fails."""

    size: int
    common: int
    calls: dict[int, list[Call]] = field(default_factory=dict)
    ends: dict[int, dict[str, object]] = field(default_factory=dict)

    def __post_init__(self):
        for rank in range(self.size):
            self.calls[rank] = [call(f"grad_{n}", n, line=n) for n in range(1, self.common + 1)]
            self.ends[rank] = {"state": JOINED}

    @property
    def now(self):
        return START + (self.common + 100) * SECOND

    def next(self, name, line=88, **others):
        return call(name, self.common + 1, line=line, **others)

    def end(self, rank, state, reason, told="", at=0):
        """Records how a rank left, and any error it got before because of another rank."""
        self.ends[rank] = {"state": state, "reason": reason, "left": self.now + at}
        if told:
            self.ends[rank] |= {"ended": told, "told": self.now + at - 1}

    def told(self, text, but):
        """All ranks except `but` get this error and leave."""
        for rank in range(self.size):
            if rank not in but:
                self.end(rank, FAILED, f"UnknownError: {text}", told=text, at=SECOND)

    def recordings(self, without=()):
        return [
            Recording(
                **{
                    "rank": rank,
                    "size": self.size,
                    "host": f"host{rank}",
                    "process": 100 + rank,
                    "launched": rank,
                    "part": -1,
                    "began": START,
                    "job": "a job",
                    "left": 0,
                    "reason": "",
                    "told": 0,
                    "ended": "",
                    "lost_call": 0,
                    "failed_call": 0,
                    "failed": "",
                    "made": len(self.calls[rank]),
                    "calls": tuple(self.calls[rank]),
                    **self.ends[rank],
                }
            )
            for rank in range(self.size)
            if rank not in without
        ]


def through(job):
    """Makes all ranks leave normally."""
    for rank in range(job.size):
        job.end(rank, THROUGH, "its program has ended", at=rank)
    return job
