"""The parts of a step's time, from synthetic timelines."""

import hypothesis
import hypothesis.strategies as st
import pytest

from tf_hvd.observe import step_report, step_times
from tf_hvd.observe.trace_reader import Span, Trace

MS = 1_000_000


def traces_of(submitted, ended, names=None, bytes_of=None):
    """Makes each rank's timeline from the times of its calls.

    The exposed time begins at a step's last call, as a rank itself would record it.

    Args:
      submitted: when each call was made, by rank, step and call.
      ended: when each call ended on all ranks, by step and call.
    """
    traces = []
    for rank, steps in enumerate(submitted):
        trace = Trace(rank, len(submitted), f"host{rank}")
        agreement, moved, exposed, order = [], [], [], 0
        for number, calls in enumerate(steps):
            for place, time in enumerate(calls):
                order += 1
                last = max(each[number][place] for each in submitted)
                end = ended[number][place]
                size = bytes_of[place] if bytes_of else 1 << 20
                values = {"set": 0, "order": order, "bytes": size, "operation": order, "tensors": 2}
                name = names[place] if names else f"bucket_{place}"
                parts = [Span("agreement on allreduce", time, last)]
                agreement.append(Span(name, time, last, values, parts))
                moved.append(Span("ALLREDUCE", last, end, {"operation": order, "calls": 1}))
            exposed.append(Span("waits for collectives", max(calls), max(ended[number])))
        trace.spans = {"agreement": agreement, "shm": moved, "TensorFlow": exposed}
        traces.append(trace)
    return traces


@st.composite
def jobs(draw):
    ranks, calls = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    submitted = [[] for _ in range(ranks)]
    ended, now = [], 0
    for _ in range(draw(st.integers(2, 5))):
        last = []
        for steps in submitted:
            times, at = [], now
            for _ in range(calls):
                at += draw(st.integers(1, 20))
                times.append(at)
            steps.append(times)
        for place in range(calls):
            arrived = max(steps[-1][place] for steps in submitted)
            last.append(max(arrived, *last[-1:], 0) + draw(st.integers(1, 20)))
        ended.append(last)
        now = last[-1]
    return submitted, ended


@hypothesis.given(jobs())
def test_every_moment_of_a_step_is_attributed(job):
    """Compares with a simulation of every nanosecond."""
    submitted, ended = job
    found = step_times.analyse(traces_of(submitted, ended))
    assert len(found.steps) == len(ended) - 1
    for number, step in enumerate(found.steps):
        arrivals = [
            max((steps[number][place], rank) for rank, steps in enumerate(submitted))
            for place in range(len(ended[number]))
        ]
        for rank, steps in enumerate(submitted):
            one = step.ranks[rank]
            transfer, waiting = 0, {}
            exposed = [now for span in one.exposed_in for now in range(*span)]
            assert set(range(max(steps[number]), max(ended[number]))) <= set(exposed)
            assert len(exposed) == len(set(exposed))
            for now in exposed:
                open_ = [p for p, end in enumerate(ended[number]) if end > now]
                if any(arrivals[place][0] <= now for place in open_):
                    transfer += 1
                else:
                    awaited = min(arrivals[place] for place in open_)[1]
                    waiting[awaited] = waiting.get(awaited, 0) + 1
            assert one.length == steps[number + 1][0] - steps[number][0]
            assert one.transfer == transfer
            assert sum(one.waiting.values()) == sum(waiting.values())
            assert one.compute == one.length - transfer - sum(waiting.values())
            assert rank not in one.waiting


def job_with_a_straggler(late_ns, steps=20, ranks=3, after=0):
    submitted, ended = [[] for _ in range(ranks)], []
    for number in range(steps):
        now = number * 500 * MS + after if callable(late_ns) else number * 100 * MS + after
        late = late_ns(number) if callable(late_ns) else late_ns
        for rank in range(ranks):
            behind = late if rank == 1 else 0
            submitted[rank].append([now + 10 * MS, now + 30 * MS + behind, now + 60 * MS + behind])
        ended.append([now + 12 * MS, now + 33 * MS + late, now + 66 * MS + late])
    return traces_of(submitted, ended)


def test_rank_late_in_the_backward_pass_is_named_in_each_step():
    found = step_report.report(job_with_a_straggler(20 * MS))
    for step in found.steps.steps:
        assert step.late == (1, 20 * MS)
    others = [row for row in found.rows if row.rank != 1]
    assert all(row.waits_for == 1 and row.waiting == pytest.approx(20) for row in others)
    assert all(row.transfer == pytest.approx(6) for row in found.rows)
    assert found.rows[1].late == found.count - 1
    assert "Rank 1 (host1) is last in 18 of 18 steps, by 20.0 ms" in found.advice


def test_advice_names_a_late_rank_although_transfer_takes_longer():
    found = step_report.report(job_with_a_straggler(12 * MS, ranks=3))
    assert "Rank 1" in found.advice
    submitted, ended = [[], []], []
    for number in range(20):
        now, late = 100 * number * MS, 20 * MS
        submitted[0].append([now + 10 * MS, now + 30 * MS])
        submitted[1].append([now + 10 * MS, now + 30 * MS + late])
        ended.append([now + 12 * MS, now + 80 * MS])
    found = step_report.report(traces_of(submitted, ended))
    assert found.advice.startswith("Data transfer that no computation hides takes 30 % of a step")
    assert "Rank 1 (host1) is last in 18 of 18 steps, by 20.0 ms" in found.advice


def test_without_a_late_rank_the_advice_is_about_transfer():
    found = step_report.report(job_with_a_straggler(0))
    assert not any(step.late for step in found.steps.steps)
    assert found.advice.startswith("Data transfer that no computation hides takes 6 % of a step")


def test_nothing_to_improve_if_nothing_is_exposed():
    submitted = [[[100 * n * MS, (100 * n + 50) * MS] for n in range(9)] for _ in range(2)]
    ended = [[(100 * n + 5) * MS, (100 * n + 51) * MS] for n in range(9)]
    found = step_report.report(traces_of(submitted, ended))
    assert found.advice == "Nothing to improve: collectives are exposed for 1.0 % of a step."


def test_calls_outside_steps_are_skipped():
    """Calls before the first step, and calls between steps, such as metrics of an epoch."""
    names = ["weights", *["a", "b"] * 3, "metrics", *["a", "b"] * 3]
    traces = []
    for rank in range(2):
        trace, spans = Trace(rank, 2, "host"), []
        for place, name in enumerate(names):
            values = {"set": 0, "order": place + 1, "bytes": 8, "operation": place + 1}
            values["tensors"] = 1
            spans.append(Span(name, place * MS, place * MS, values))
        trace.spans["agreement"] = spans
        traces.append(trace)
    found = step_times.analyse(traces)
    assert len(found.steps) == 5
    assert [len(step.calls) for step in found.steps] == [2, 2, 3, 2, 2]


def test_timelines_of_two_jobs_are_distinguished():
    def one_job(one, other):
        return step_times.of_one_job(one, step_times.calls_of(one), other)

    first, later = job_with_a_straggler(20 * MS), job_with_a_straggler(0, after=2000 * MS)
    assert all(one_job(first[0], each) for each in first)
    assert not any(one_job(first[0], each) for each in later[1:])
    assert not one_job(first[0], job_with_a_straggler(0, ranks=2)[1])


def test_straggler_in_every_fourth_step_is_named():
    """The median step is not delayed. An earlier bucket's data moves for 3 ms of the delay."""
    found = step_report.report(job_with_a_straggler(lambda number: 400 * MS * (number % 4 == 2)))
    assert found.advice.startswith("Rank 1 (host1) is last in 5 of 18 steps, by 397.0 ms")


def test_ranks_late_in_different_steps_are_not_blamed():
    submitted, ended = [[], []], []
    for number in range(20):
        late = [20 * MS * (number % 2 == rank) for rank in range(2)]
        for rank in range(2):
            submitted[rank].append([100 * number * MS + late[rank]])
        ended.append([(100 * number + 21) * MS])
    found = step_report.report(traces_of(submitted, ended))
    assert found.advice.startswith("Different ranks are late in different steps.")


def test_rank_without_common_calls():
    """In a process set, rank 2 does something else; in the global set, its calls are lost."""
    traces = job_with_a_straggler(20 * MS)
    traces[2].spans = {}
    found = step_report.report(traces)
    assert found.count == 19
    assert found.apart == found.lacking == [2]
    lines = "\n".join(step_report.lines(found))
    assert "The timelines of rank 2 have no calls of these steps: they were truncated" in lines
    for span in (span for trace in traces for span in trace.spans.get("agreement", ())):
        span.values["set"] = 1
    found = step_report.report(traces)
    assert (found.count, found.apart, found.lacking) == (19, [2], [])
    assert "Rank 2 made no calls in these steps." in step_report.lines(found)


def test_no_moment_counts_twice():
    """Regression: in a file written by two jobs, the computing time was negative."""
    traces = job_with_a_straggler(20 * MS)
    plain = step_report.report(traces)
    for trace in traces:
        spans = trace.spans["TensorFlow"]
        spans += [Span("again", each.begin + 1, each.end, {}) for each in spans for _ in range(9)]
    assert step_report.report(traces).rows == plain.rows


def test_step_that_ends_before_it_begins_is_skipped():
    traces = job_with_a_straggler(20 * MS)
    for span in traces[1].spans["agreement"][:3]:
        span.begin += 1000 * MS
    found = step_report.report(traces)
    assert found.count == 18
    assert "1 step skipped: on some rank the step ends before it starts." in found.faults
    assert all(one.compute >= 0 for step in found.steps.steps for one in step.ranks.values())


def test_last_rank_is_known_without_its_timeline():
    traces = job_with_a_straggler(20 * MS)
    for span in traces[0].spans["agreement"]:
        span.values["last_rank"] = 1
    found = step_report.report(traces[:1])
    assert found.advice.startswith("Data transfer") is False
    assert all(step.late == (1, 20 * MS) for step in found.steps.steps)


def test_ranks_without_timelines_are_reported():
    found = step_report.report(job_with_a_straggler(20 * MS)[:2])
    assert found.missing == [2]
    assert any("rank 2" in line for line in step_report.lines(found))


def test_a_job_without_steps():
    found = step_report.report(traces_of([[[1, 2]], [[1, 3]]], [[2, 4]]))
    assert found.count == 0
    assert "no steps" in found.advice
