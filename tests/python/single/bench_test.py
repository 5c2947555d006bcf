"""The parts of `tf_hvd bench` that do not need a job."""

import dataclasses
import importlib.util
import json
import math
import threading

import numpy as np
import pytest

from tf_hvd.bench import measure, plot, report, settings, training, values, workloads
from tf_hvd.bench.errors import BenchError
from tf_hvd.bench.native import SharedMemory
from tf_hvd.bench.peers.base import Peer

WORK = workloads.of_size("1K", "allreduce", "float32", "eager", 2)


@pytest.mark.parametrize(
    ("operation", "of_two", "of_four"),
    [
        ("allreduce", 1.0, 1.5),
        ("allgather", 0.5, 0.75),
        ("reducescatter", 0.5, 0.75),
        ("alltoall", 0.5, 0.75),
        ("broadcast", 1.0, 1.0),
    ],
)
def test_bus_factors_equal_those_of_nccl_tests(operation, of_two, of_four):
    for ranks, factor in ((2, of_two), (4, of_four)):
        assert workloads.of_size("1K", operation, "float32", "eager", ranks).bus_factor == factor


def test_bandwidths():
    seconds = (2e-6, 4e-6, 9e-6)
    found = measure.Measurement(dataclasses.replace(WORK, ranks=4), "x", True, seconds)
    assert found.median == 4e-6
    assert found.algorithm_bandwidth == 1024 / 4e-6
    assert found.bus_bandwidth == 1.5 * 1024 / 4e-6
    assert dataclasses.replace(found, is_collective=False).bus_bandwidth is None


@pytest.mark.parametrize(
    ("name", "tensors", "elements"),
    [
        ("resnet50", 161, 25_557_032),
        ("vgg16", 32, 138_357_544),
        ("bert-large", 391, 335_141_888),  # uncased, with the pooler
    ],
)
def test_gradient_sets(name, tensors, elements):
    shapes = workloads.GRADIENT_SETS[name]
    assert len(shapes) == tensors
    assert sum(math.prod(shape) for shape in shapes) == elements


@pytest.mark.parametrize(
    ("text", "size"),
    [("4", 4), ("64K", 65536), ("1MiB", 1 << 20), ("2g", 2 << 30), ("16M", 16 << 20)],
)
def test_sizes(text, size):
    assert workloads.parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "K", "-4", "1.5M", "4 apples"])
def test_invalid_sizes_are_refused(text):
    with pytest.raises(ValueError, match="is not a size"):
        workloads.parse_bytes(text)


@pytest.mark.parametrize("operation", ["allgather", "alltoall", "reducescatter"])
def test_each_rank_has_the_same_number_of_values(operation):
    assert workloads.of_size("4", operation, "float32", "eager", 3).elements == 3
    assert workloads.of_size("40", operation, "float32", "eager", 3).elements == 9
    shapes = workloads.of_gradients("resnet50", operation, "float32", "function", 3).shapes
    assert len(shapes) == 161
    assert shapes[-1] == (999,)
    assert all(shape[0] % 3 == 0 for shape in shapes)


def test_invalid_workloads_are_refused():
    with pytest.raises(ValueError, match="alltoall has no grouped form"):
        workloads.of_size("4", "alltoall", "float32", "grouped", 2)
    with pytest.raises(ValueError, match="broadcast has no grouped form"):
        workloads.of_gradients("vgg16", "broadcast", "float32", "grouped", 2)
    with pytest.raises(ValueError, match="unknown model 'vgg17'"):
        workloads.of_gradients("vgg17", "allreduce", "float32", "function", 2)


@pytest.mark.parametrize("operation", workloads.OPERATIONS)
@pytest.mark.parametrize("dtype", list(workloads.ITEM_BYTES))
def test_expected_outputs_match_the_definition(operation, dtype):
    ranks = 3
    work = workloads.of_size("120", operation, dtype, "eager", ranks)
    given = [values.inputs(work, rank)[0].astype(np.float64) for rank in range(ranks)]
    part = work.elements // ranks
    for rank in range(ranks):
        mine = slice(part * rank, part * (rank + 1))
        right = {
            "allreduce": sum(given),
            "reducescatter": sum(given)[mine],
            "broadcast": given[0],
            "allgather": np.concatenate(given),
            "alltoall": np.concatenate([each[mine] for each in given]),
        }[operation]
        (found,) = values.outputs(work, rank)
        assert found.dtype == values.numpy_type(dtype)
        assert found.shape == values.output_shapes(work)[0]
        np.testing.assert_array_equal(found.astype(np.float64), right)


class FakeJob:
    """Rank 0 of two; the other rank has different times."""

    rank, size = 0, 2

    def __init__(self, log, other=lambda mine: mine):
        self._log, self._other = log, other

    def gather(self, value):
        return [value, self._other(value)]

    def barrier(self):
        self._log.append("barrier")

    def core_latency(self):
        self._log.append("latency")
        return 0.25 * self._log.count("latency")


class FakePeer(Peer):
    def __init__(self, name, log, reason=None, wrong=False):
        self.name, self._log, self._reason, self._wrong = name, log, reason, wrong

    def missing(self):
        return self._reason

    def prepare(self, workload, inputs):
        self._work = workload

    def run(self):
        self._log.append(self.name)

    def results(self):
        self.run()
        (right,) = values.outputs(self._work, 0)
        return [right + 1 if self._wrong else right]


def test_peers_are_interleaved_after_barriers():
    log = []
    peers = [FakePeer(name, log) for name in "ab"]
    found = measure.measure(peers, WORK, settings.Plan(2, warmup=1, calls=2), FakeJob(log))
    turn = ["barrier", "a", "a", "barrier", "b", "b"]
    # Each peer is checked, warmed up once, and timed twice.
    assert log == ["a", "b", "latency", *turn * 3, "latency"]
    assert [each.core_latencies for each in found] == [(0.25, 0.5)] * 2
    assert [(each.peer, len(each.seconds)) for each in found] == [("a", 2), ("b", 2)]


def test_median_over_repetitions_of_the_slowest_rank():
    assert measure.slowest([[1.0, 5.0, 2.0], [3.0, 4.0, 1.0]]) == [3.0, 5.0, 2.0]

    def other(mine):
        return {name: [100.0] * len(each) for name, each in mine.items()} if mine else mine

    log = []
    (found,) = measure.measure([FakePeer("a", log)], WORK, settings.Plan(3), FakeJob(log, other))
    assert found.median == 100.0


def test_small_workloads_have_several_calls():
    plan = settings.Plan()
    assert plan.calls_of(WORK) > 1
    assert plan.calls_of(workloads.of_size("1M", "allreduce", "float32", "eager", 2)) == 1
    assert settings.Plan(calls=7).calls_of(WORK) == 7


def test_wrong_result_is_an_error():
    log = []
    peers = [FakePeer("good", log), FakePeer("bad", log, wrong=True)]
    with pytest.raises(
        BenchError, match=r"bad: wrong result of allreduce 1K .* tensor 0, on rank 0"
    ):
        measure.measure(peers, WORK, settings.Plan(), FakeJob(log))
    assert "barrier" not in log  # nothing was timed


def test_peer_missing_on_one_rank_is_missing():
    log = []
    peers = [FakePeer("a", log), FakePeer("b", log, reason="not installed")]
    found, missing = measure.usable(peers, FakeJob(log))
    assert [peer.name for peer in found] == ["a"]
    assert missing == {"b": "not installed"}
    found, missing = measure.usable(peers[:1], FakeJob(log, lambda _: "not there"))
    assert (found, missing) == ([], {"a": "not there"})


MEASURED = [
    measure.Measurement(WORK, "tf_hvd", True, (2e-6,), core_latencies=(0.127, 0.21)),
    measure.Measurement(WORK, "mpi", True, (1e-6,)),
    measure.Measurement(WORK, "sketch", True, missing="it supports only allreduce"),
    measure.Measurement(WORK, "copy", False, (5e-7,)),
]
ABOUT = {
    "ranks": 2,
    "hosts": ["a", "a"],
    "cores": [[0], [1, 2, 3]],
    "mpi": "Some MPI 1.0",
    "tf_hvd": "0.1.0",
    "tensorflow": "2.21.0",
}


def test_plain_lines_without_a_terminal(capsys):
    with report.Shown() as shown:
        shown.begin(ABOUT, {"gloo": "torch is not installed"})
        shown.add(MEASURED)
        shown.end("tf_hvd bench -np 2")
    lines = capsys.readouterr().out.splitlines()
    assert "2 ranks on 1 machine; cores: rank 0: 0; rank 1: 1-3" in lines[0]
    assert lines[1] == "without gloo: torch is not installed"
    assert lines[2].split()[:3] == ["workload", "peer", "median"]
    assert [" ".join(line.split()) for line in lines[3:7]] == [
        "allreduce 1K float32 eager tf_hvd 2.0 us 2.0 to 2.0 us 0.51 0.51 0.13, 0.21 us",
        "mpi 1.0 us 1.0 to 1.0 us 1.02 1.02 2.00 x faster",
        "sketch no: it supports only allreduce",
        "copy 0.5 us 0.5 to 0.5 us 2.05 4.00 x faster",
    ]
    assert lines[7] == "repeat with: tf_hvd bench -np 2"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.02, "50 x faster"), (0.998, "the same"), (1.3, "1.30 x slower"), (1e3, "1000 x slower")],
)
def test_comparison_of_times(seconds, said):
    assert report.compared(seconds, 1.0) == said


def test_json_report(capsys):
    times = training.StepTimes("tape", 10, 40, (3.0,), (2.0,), (4.0,))
    with report.AsJson() as shown:
        shown.begin(ABOUT, {"gloo": "torch is not installed"})
        shown.add(MEASURED)
        shown.add_training(times)
        shown.end("tf_hvd bench")
    found = json.loads(capsys.readouterr().out)
    assert found["version"] == report.JSON_VERSION
    assert found["job"] == ABOUT
    assert found["missing"] == {"gloo": "torch is not installed"}
    assert found["command"] == "tf_hvd bench"
    assert found["training"] == {
        "kind": "tape",
        "tensors": 10,
        "size_bytes": 40,
        "with_reduction": 3.0,
        "without": 2.0,
        "reduction": 4.0,
        "exposed": 0.25,
        "exposed_interval": [0.25, 0.25],
        "repetitions": 1,
    }
    assert found["results"][0] == {
        "operation": "allreduce",
        "workload": "1K",
        "dtype": "float32",
        "mode": "eager",
        "tensors": 1,
        "bytes": 1024,
        "peer": "tf_hvd",
        "missing": None,
        "seconds": [2e-6],
        "median_seconds": 2e-6,
        "algorithm_bandwidth": 5.12e8,
        "bus_bandwidth": 5.12e8,
        "core_latency_us": [0.127, 0.21],
    }
    assert found["results"][2]["missing"] == "it supports only allreduce"
    assert "median_seconds" not in found["results"][2]
    assert found["results"][3]["bus_bandwidth"] is None


def steps(waited, times=1):
    """Steps of 100 ms, `waited` ms longer with a reduction of 10 ms."""
    seconds = [0.1 + each / 1000 for each in waited] * times
    count = len(seconds)
    return training.StepTimes("tape", 1, 1, tuple(seconds), (0.1,) * count, (0.01,) * count)


@pytest.mark.parametrize(
    ("waited", "said"),
    [
        # With 30 repetitions: the 10th and the 21st difference.
        ([1] * 10 + [3] * 10 + [9] * 10, "exposed 10% to 90% of it (30 repetitions)"),
        ([4, 5, 6] * 10, "exposed 50% of it, 95% interval 40% to 60% (30 repetitions)"),
        ([-40, 1, 12] * 10, "exposed at most 120% of it (30 repetitions)"),
        ([-38, -36, -35] * 10, "exposed 0% of it: steps with the reduction were no slower"),
    ],
)
def test_exposed_fraction_is_reported_if_it_exceeds_its_uncertainty(waited, said):
    assert said in steps(waited).text()


def test_steps_are_repeated_until_their_fraction_is_known():
    noise, quiet, rounds = [-38, 5, 50], [5], []

    def measured(waited):
        def more():
            rounds.append(waited)
            of = steps(waited)
            names = ("with_reduction", "without", "reduction")
            return {name: getattr(of, name) for name in names}

        return more

    none = training.StepTimes("tape", 1, 1)
    assert training.repeated(none, measured(quiet)).exposed == pytest.approx(0.5)
    assert len(rounds) == 1
    assert len(training.repeated(none, measured(noise)).reduction) == 15
    assert len(rounds) == 6


def test_plot(tmp_path, extras):
    gradients = workloads.of_gradients("resnet50", "allreduce", "float32", "function", 2)
    more = [measure.Measurement(gradients, name, True, (0.1,)) for name in ("tf_hvd", "mpi")]
    for name, head in (("a.svg", b"<?xml"), ("a.png", b"\x89PNG")):
        plot.write(str(tmp_path / name), [*MEASURED, *more])
        assert (tmp_path / name).read_bytes().startswith(head)
    assert "<svg" in (tmp_path / "a.svg").read_text()


def test_legend_does_not_cover_lines(extras):
    sizes = [workloads.of_size(size, "allreduce", "float32", "eager", 2) for size in ("4", "1M")]
    figure = plot.drawn(
        [measure.Measurement(size, name, True, (1.0,)) for size in sizes for name in ("a", "mpi")]
    )
    figure.draw_without_rendering()
    _, axes = figure.axes
    assert not axes.get_legend().get_window_extent().overlaps(axes.get_window_extent())
    assert figure.bbox.containsx(axes.get_legend().get_window_extent().x1)


def test_percentiles_equal_numpys():
    seconds = tuple((each * 7919 % 31) * 1e-3 for each in range(30))
    found = measure.Measurement(WORK, "mpi", True, seconds)
    assert found.spread == tuple(np.percentile(seconds, (10, 90)))
    assert report.cells(found, None)[3] == "2.9 to 27.1 ms"
    assert report.between(0.9e-6, 1.5e-3) == "0.9 us to 1.5 ms"


def test_plot_checks_its_options_first(tmp_path, monkeypatch, extras):
    with pytest.raises(ValueError, match="does not exist"):
        settings.Settings(("4",), plot=str(tmp_path / "none" / "a.svg")).check()
    settings.Settings(("4",), plot=str(tmp_path / "a.svg")).check()
    (tmp_path / "b.svg").symlink_to("a.svg")
    with pytest.raises(ValueError, match=r"--plot .*b\.svg is a symbolic link, not a file"):
        settings.Settings(("4",), plot=str(tmp_path / "b.svg")).check()
    with pytest.raises(ValueError, match="nothing to measure or plot"):
        settings.Settings(training="tape", plot=str(tmp_path / "a.svg")).check()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'tf_hvd\[bench\]'"):
        settings.Settings(("4",), plot=str(tmp_path / "a.svg")).check()


def test_nothing_to_measure_is_refused():
    with pytest.raises(ValueError, match="nothing to measure"):
        settings.Settings(sizes=()).check()
    settings.Settings(training="tape").check()


class Threads:
    """Ranks that are threads, for tests that do not need a job."""

    def __init__(self, ranks):
        self._barrier, self._given = threading.Barrier(ranks, timeout=250), [None] * ranks

    def gather_of(self, rank):
        def gather(value):
            self._given[rank] = value
            self._barrier.wait()
            everyone = list(self._given)
            self._barrier.wait()
            return everyone

        return gather


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sketch_sums(ranks, dtype):
    threads, found = Threads(ranks), {}

    def work(rank):
        shared = SharedMemory(rank, ranks, threads.gather_of(rank))
        assert shared.missing is None
        sums = []
        # One value, one piece and one value, and several pieces.
        for count in (1, 2, SharedMemory.PIECE_BYTES // dtype().itemsize + 1, 500_001):
            given = (np.arange(count) % 7 + rank).astype(dtype)
            shared.allreduce(given)()
            shared.barrier()
            sums.append(given)
        found[rank] = sums

    workers = [threading.Thread(target=work, args=(rank,)) for rank in range(ranks)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    for sums in found.values():
        for total in sums:
            right = ranks * (np.arange(total.size) % 7) + sum(range(ranks))
            np.testing.assert_array_equal(total, right)
    assert len(found) == ranks
