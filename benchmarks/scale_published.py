"""The measurements of Horovod's authors, and simulations of similar jobs.

For simulate_scale.py.
"""

import dataclasses
import functools
import json
import statistics
from collections.abc import Sequence

import scale_jobs
from absl import flags

_STEPS = flags.DEFINE_integer("steps", 40, "measured steps per job", lower_bound=1)
_TAILS = flags.DEFINE_bool(
    "tails", False, "use the measured jitter instead of a normal distribution"
)
_FIT_STEPS = 200  # 16 ranks take almost no time to simulate; fewer steps would fit noise
MODELS = ("InceptionV3", "ResNet101", "VGG16")  # in keras.applications
NAMES = ("Inception V3", "ResNet-101", "VGG-16")
GPUS_OF_NODE = 4
BATCH = 64

# Not fitted: the time of an MPI message between nodes, and a core's share of it.
_LATENCY_NS = {"rdma": 3_000, "tcp": 30_000}
_MESSAGE_NS = {"rdma": 500, "tcp": 5_000}


@dataclasses.dataclass(frozen=True)
class Row:
    """A measurement of Horovod's authors: batch 64 per GPU, four Pascal GPUs per server.

    `single_gpu`: images per second of one GPU, by model. `scaling`: the speedup of all GPUs.
    """

    nodes: int
    network: str
    gbit: float
    single_gpu: tuple[float, float, float]
    scaling: tuple[float, float, float] = (0, 0, 0)

    @property
    def gpus(self) -> int:
        return GPUS_OF_NODE * self.nodes

    def efficiency(self, model: int) -> float:
        return self.scaling[model] / self.gpus


# Horovod's README of 2017 has rates of 1, 16 and 64 GPUs; the one with 64 is from a different
# machine.
_FIRST = (134.4, 119.4, 130.9)
_SECOND = (148.8, 136.0, 149.6)
FITTED = (
    Row(4, "rdma", 25, _FIRST, (15.0, 14.6, 13.7)),
    Row(4, "tcp", 25, _FIRST, (14.8, 14.1, 10.0)),
)
CHECKED = Row(16, "tcp", 40, _SECOND, (53.3, 56.9, 40.7))
# For larger jobs it has only efficiencies in whole percents and pictures: for 128 GPUs since
# October 2017, for 512 since April 2018. The rate of a single GPU is taken from the first rows.
PREDICTED = (
    Row(32, "rdma", 25, _FIRST, (0.90 * 128, 0.90 * 128, 0.79 * 128)),
    Row(128, "rdma", 25, _FIRST, (0.90 * 512, 0.90 * 512, 0.68 * 512)),
)


def baseline(row: Row, model: int) -> float:
    """A prediction without simulation: the efficiency of 16 GPUs on such a network."""
    return next(each for each in FITTED if each.network == row.network).efficiency(model)


@dataclasses.dataclass(frozen=True)
class Fit:
    """The three fitted numbers, one set for all models."""

    link: float = 0.9  # the fraction of a link's rate that NCCL reaches
    tcp_byte_ns: float = 0.2  # added by TCP for each byte
    jitter: float = 1.0  # factor of the measured jitter


@dataclasses.dataclass(frozen=True)
class Schedule:
    """How ranks agree and tensors are fused, and how NCCL sums."""

    name: str = "horovod"
    algorithm: str = "ring"


HOROVOD = Schedule()
OURS = (Schedule("gpu", "ring"), Schedule("gpu", "trees"))


@functools.cache
def jitter() -> tuple[list[float], float]:
    """Times of a step divided by their mean, and the share of variance from delays at one point.

    That is the variance that forward and backward pass do not have in common. Both were measured
    once, on a shared machine with other tenants, which may have made a few steps very long.
    Therefore the times follow a normal distribution with the measured standard deviation by
    default.
    """
    measured = json.loads((scale_jobs.FOLDER / "jitter.json").read_text())
    quantiles = measured["quantiles"]
    if not _TAILS.value:
        normal = statistics.NormalDist(1, statistics.stdev(quantiles))
        quantiles = [normal.inv_cdf((number + 0.5) / 1000) for number in range(1000)]
    return quantiles, 1 - measured["correlation_of_passes"]


def efficiency(
    row: Row,
    model: int,
    fit: Fit,
    schedule: Schedule = HOROVOD,
    gradients: Sequence[scale_jobs.Gradients] | None = None,
    seed: int = 1,
    steps: int | None = None,
) -> float:
    """Speed of a job as a fraction of the speed of its GPUs: 0 to 1."""
    step_ns = 1e9 * BATCH / row.single_gpu[model]
    if gradients is None:
        of_model = scale_jobs.each_alone if schedule.name == "horovod" else scale_jobs.in_buckets
        gradients = of_model(MODELS[model])
    quantiles, delay = jitter()
    settings = {
        "nodes": row.nodes,
        "ranks_per_node": GPUS_OF_NODE,
        "schedule": schedule.name,
        "algorithm": schedule.algorithm,
        "latency_ns": _LATENCY_NS[row.network],
        "message_ns": _MESSAGE_NS[row.network],
        "byte_ns": 8 / (row.gbit * fit.link) + (fit.tcp_byte_ns if row.network == "tcp" else 0),
        "compute_ns": step_ns,
        "jitter_scale": fit.jitter,
        "jitter_delay": delay,
        "steps": steps or _STEPS.value,
        "seed": seed,
    }
    ready = [(name, part * step_ns, tensors) for name, part, tensors in gradients]
    return step_ns / statistics.mean(scale_jobs.simulate(settings, ready, quantiles)["steps_ns"])


def ceiling(row: Row, model: int, fit: Fit) -> float:
    """Upper bound for schedules that sum all gradients in a ring: the links are never idle."""
    step_ns = 1e9 * BATCH / row.single_gpu[model]
    gradients = scale_jobs.each_alone(MODELS[model])
    if row.nodes == 1:
        return 1.0
    size = 4 * sum(tensors[0] for _, _, tensors in gradients)
    first_ns = step_ns * min(ready for _, ready, _ in gradients)
    moved = 2 * (row.gpus - 1) / row.gpus * size
    return min(1.0, step_ns / (first_ns + moved * 8 / (row.gbit * fit.link)))


def fit_of_16() -> Fit:
    """The fit that matches the rows of 16 GPUs best; it uses no other rows."""
    return scale_jobs.fitted(
        Fit(),
        lambda fit: sum(
            (efficiency(row, model, fit, steps=_FIT_STEPS) - row.efficiency(model)) ** 2
            for row in FITTED
            for model in range(len(MODELS))
        ),
    )
