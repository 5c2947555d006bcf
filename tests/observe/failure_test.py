"""The sentence that explains a failure, for synthetic jobs."""

import dataclasses
import functools
import pathlib
import re

import hypothesis.strategies as st
import pytest
from hypothesis import given
from recorded import SECOND, Job, call, moving, through, waiting

from tf_hvd.observe import failure
from tf_hvd.observe.failure import of_one_job
from tf_hvd.observe.recording import FAILED, JOINED, THROUGH

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "doctor.md"


@functools.cache
def documented():
    """A pattern for the beginning of each sentence in the table of docs/doctor.md."""
    cells = re.findall(r"^\| (`.*?`) \| ", PAGE.read_text(), re.MULTILINE)
    assert len(cells) > 10
    patterns = []
    for text in re.findall("`(.*?)`", " ".join(cells)):
        words = re.escape(text.partition(";")[0].removesuffix(" ..."))
        for example, any_text in (
            (r"ranks?(\\ (\d+|to|and))+", r"ranks? [\\d, toand]+"),
            (r"allreduce\\ '\w+'(\\ \\\(.*?\\\))?", ".+"),
            (r"\\ \\\(SIGKILL\\\)", ".*"),
            (r"\\\(beta\\\)", r"\\(.*\\)"),
            (r":\\ ValueError.*", ".*"),
            (r"its\\ machine\\ is", "(its machine is|their machines are)"),
            (r"\\\.\\\.\\\.", ".*"),
            (r"\\ \d+", r" [\\d.]+"),
            (r"\\ MiB", " (MiB|bytes)"),
            ("never\\\\ called", "(never called|ha(s|ve) not called)"),
            ("waited", "wait(ed|s)?"),
        ):
            words = re.sub(example, any_text, words)
        patterns.append(re.compile(words, re.DOTALL))
    return patterns


def explain(*given, **named):
    """Like failure.explain, but the sentence must be in the table of docs/doctor.md."""
    found = failure.explain(*given, **named)
    assert any(one.match(found.sentence) for one in documented()), found.sentence
    return found


def job_of(size=4, common=511):
    return Job(size, common)


def test_rank_never_called():
    job = job_of()
    for rank in (0, 1, 2):
        job.calls[rank].append(waiting(job.next("grad_12")))
    found = explain(job.recordings())
    assert found.ranks == (3,)
    assert found.sentence == (
        "rank 3 never called allreduce 'grad_12' (train.py:88), in which ranks 0 to 2 waited; "
        "its last call, number 511, was allreduce 'grad_511' (train.py:511)"
    )
    last = found.rows[-1]
    assert (last.title, last.order) == ("allreduce 'grad_12' (train.py:88)", 0)
    assert last.ranks == {"waiting": [0, 1, 2], "not called": [3]}
    assert found.rows[-2].ranks == {"ended": [0, 1, 2, 3]}


def test_rank_without_recording_never_called():
    job = job_of()
    for rank in (0, 1, 2):
        job.calls[rank].append(waiting(job.next("grad_12")))
    found = explain(job.recordings(without=(3,)))
    assert found.ranks == (3,)
    assert found.sentence == (
        "rank 3 never called allreduce 'grad_12' (train.py:88), in which ranks 0 to 2 waited; "
        "there is no recording of rank 3"
    )
    assert found.rows[-1].ranks == {"waiting": [0, 1, 2], "no recording": [3]}


def test_ranks_make_different_calls():
    job = job_of(3)
    job.calls[0].append(waiting(job.next("a", line=88)))
    job.calls[1].append(waiting(job.next("a", line=88)))
    job.calls[2].append(waiting(job.next("b", line=90, kind="allgather")))
    found = explain(job.recordings())
    assert found.sentence == (
        "ranks 0 and 2 disagree from call 512 on: ranks 0 and 1 called allreduce 'a' "
        "(train.py:88), rank 2 called allgather 'b' (train.py:90)"
    )


def test_ranks_disagree_on_a_call():
    job = job_of(2, 3)
    text = "allreduce 'x': ranks disagree on the shape: rank 0 has float32[4], rank 1 float32[5]"
    for rank in (0, 1):
        job.calls[rank].append(job.next("x", code="disagreement"))
        job.end(rank, FAILED, f"FailedPreconditionError: {text}")
        job.ends[rank] |= {"failed_call": 4, "failed": text}
    found = explain(job.recordings())
    assert found.sentence == (
        f"the ranks disagree from call 4 on, allreduce 'x' (train.py:88): {text}"
    )
    # A program that has made calls since then has handled the error.
    for rank in (0, 1):
        job.calls[rank].append(call("y", 5))
        job.end(rank, JOINED, "")
    assert "disagree" not in explain(job.recordings()).sentence


@pytest.mark.parametrize("without", [(), (1,)])
def test_invalid_call_of_one_rank(without):
    """That rank gets an error; the other ranks' error names it."""
    job = job_of(2, 3)
    text = "alltoall 'x': splits add up to 9 rows, but the tensor has 8"
    for rank, told in enumerate((f"rank 1: {text}", text)):
        job.calls[rank].append(call("x", 4, 88, kind="alltoall", code="invalid", order=0))
        job.end(rank, FAILED, f"InvalidArgumentError: {told}")
        job.ends[rank] |= {"failed_call": 4, "failed": told}
    found = explain(job.recordings(without=without))
    assert found.ranks == (1,)
    assert found.sentence == f"rank 1 made an invalid call, alltoall 'x' (train.py:88): {text}"


def test_disagreement_is_reported_without_recording_of_first_failed_rank():
    job = job_of(2, 3)
    text = "allreduce 'x': ranks disagree on the shape: rank 0 has float32[4], rank 1 float32[5]"
    job.calls[0].append(job.next("x", code="disagreement"))
    job.end(0, FAILED, f"FailedPreconditionError: {text}")
    job.ends[0] |= {"failed_call": 4, "failed": text}
    found = explain(job.recordings(without=(1,)), 1, {1: 1})
    assert found.sentence == (
        f"the ranks disagree from call 4 on, allreduce 'x' (train.py:88): {text}"
    )


def test_rank_dies_during_a_call():
    job = job_of(3)
    large = {"bytes": 4 << 20, "operation": 512}
    job.calls[1] += [moving(job.next("x", **large), 0.375), job.next("y", ended=0, **large)]
    for rank in (0, 2):
        job.calls[rank].append(moving(job.next("x"), 0.25, awaited=1, ended=job.now))
    job.told("rank 1 (host1) died", but=[1])
    found = explain(job.recordings(), 1, {1: -9})
    assert found.ranks == (1,)
    assert found.sentence == (
        "rank 1 was killed by signal 9 (SIGKILL) in allreduce 'x' (train.py:88) after 3 of 8 MiB; "
        "ranks 0 and 2 were in allreduce 'x' (train.py:88)"
    )


def test_rank_dies_between_calls():
    job = job_of(2, 5)
    job.calls[0].append(waiting(job.next("x"), ended=job.now))
    job.told("rank 1 (host1) died", but=[1])
    for without, what in (
        ((), "its last call, number 5, was allreduce 'grad_5' (train.py:5)"),
        ((1,), "there is no recording of rank 1"),
    ):
        found = explain(job.recordings(without))
        assert found.sentence == (
            f"rank 1 died; {what}; rank 0 waited for it in allreduce 'x' (train.py:88)"
        )


def test_last_call_is_the_programs():
    """It was "its last call, number 6, was allreduce 'on_preemption: whether ...'"."""
    job = job_of(2, 5)
    own = "on_preemption: whether a rank was asked to end"
    for rank in (0, 1):
        job.calls[rank].append(job.next(own))
    job.calls[0].append(waiting(call("x", 7)))
    job.end(1, FAILED, "ValueError: no")
    found = explain(job.recordings())
    assert "its last call, number 5, was allreduce 'grad_5' (train.py:5)" in found.sentence
    assert not any("on_preemption" in row.title for row in found.rows)
    job.calls[1][:-1] = []
    assert "of its 1 calls, the recorded ones were all tf_hvd's own" in (
        explain(job.recordings()).sentence
    )


def test_own_call_that_a_rank_lacks_is_described():
    job = job_of(2, 5)
    job.calls[0].append(waiting(job.next("adapted_layers")))
    found = explain(job.recordings())
    expected = "rank 1 never called tf_hvd's own allreduce 'adapted_layers' (train.py:88)"
    assert expected in found.sentence
    assert any("adapted_layers" in row.title for row in found.rows)


def test_rank_raises():
    job = job_of(3, 5)
    job.end(1, FAILED, "ValueError: sample 17 is broken")
    for rank in (0, 2):
        job.calls[rank].append(waiting(job.next("x"), ended=job.now))
    job.told("rank 1 (host1) left: ValueError: sample 17 is broken", but=[1])
    found = explain(job.recordings())
    assert found.ranks == (1,)
    assert found.sentence == (
        "rank 1 left the job: ValueError: sample 17 is broken; its last call, number 5, was "
        "allreduce 'grad_5' (train.py:5); ranks 0 and 2 waited for it in allreduce 'x' "
        "(train.py:88)"
    )
    assert explain(job.recordings(without=(1,))).ranks == (1,)


def test_rank_finishes_early():
    job = job_of(2, 5)
    job.end(1, THROUGH, "its program has ended")
    job.calls[0].append(waiting(job.next("score"), ended=job.now))
    job.told("rank 1 (host1) left: its program has ended; 'score' still needed it", but=[1])
    found = explain(job.recordings())
    assert found.ranks == (1,)
    assert found.sentence == (
        "rank 1 finished before the others: its program has ended; its last call, number 5, was "
        "allreduce 'grad_5' (train.py:5); rank 0 waited for it in allreduce 'score' (train.py:88)"
    )


def test_data_of_one_rank_does_not_arrive():
    job = job_of(3, 5)
    for rank in range(3):
        job.calls[rank].append(moving(job.next("x"), 0.5, awaited=None if rank == 2 else 2))
    found = explain(job.recordings())
    assert found.ranks == (2,)
    assert "rank 0 waited in allreduce 'x' (train.py:88) for data from rank 2" in found.sentence


def test_joined_rank_is_not_missing():
    job = job_of(3, 5)
    job.calls[0].append(waiting(call("join", 6, kind="join")))
    job.calls[1].append(waiting(job.next("x")))
    found = explain(job.recordings())
    assert found.ranks == (2,)


def test_a_process_set_has_its_own_members():
    job = job_of(4, 5)
    for rank in (1, 3):
        job.calls[rank] += [call("in the set", 6, set=7, order=1)]
    job.calls[1].append(waiting(call("next", 7, set=7)))
    found = explain(job.recordings())
    assert found.ranks == (3,)
    assert found.rows[-1].ranks == {"waiting": [1], "not called": [3]}


def test_calls_after_a_failure_are_ignored():
    """Regression: a late rank's call after a stall was reported as a disagreement."""
    job = job_of(4, 5)
    stall = "stall: 'x' (world) waited 4 s: submitted by ranks 0, 1, 2; missing rank 3 (host3)"
    for rank in range(3):
        job.calls[rank].append(waiting(job.next("x"), ended=job.now))
    job.told(stall, but=[])
    for name in ("x", "another"):
        late = dataclasses.replace(job.next(name), submitted=job.now + 9 * SECOND)
        job.calls[3][5:] = [waiting(late, ended=job.now + 10 * SECOND)]
        found = explain(job.recordings())
        assert found.ranks == (3,)
        assert found.sentence.startswith("rank 3 never called allreduce 'x'")
        assert "was allreduce 'grad_5'" in found.sentence


def test_stopped_rank_resumed_during_teardown():
    """It makes the awaited call after the other ranks have failed."""
    job = job_of(2, 3)
    job.calls[0].append(waiting(job.next("x")))
    text = "stall: 'x' (world) waited 22 s: submitted by rank 0 (vm); no answer from rank 1 (vm)"
    job.end(0, FAILED, f"UnknownError: {text}")
    told = job.calls[0][-1].submitted + 20 * SECOND
    job.ends[0] |= {"told": told, "ended": text, "lost_call": 4, "left": told + 1}
    job.calls[1].append(waiting(dataclasses.replace(job.next("x"), submitted=told + SECOND)))
    found = explain(job.recordings())
    assert found.ranks == (1,)
    assert found.sentence.startswith(
        "rank 0 waited in allreduce 'x' (train.py:88) for rank 1 (vm), which did not answer: "
        "stopped, or its machine is unreachable; its last call, number 3, was allreduce 'grad_3'"
    )


STALL = "stall: 'x' (world) waited 22 s; no answer from "


@pytest.mark.parametrize("without", [(), (1,)])
def test_cut_link_is_explained_by_the_silent_rank(without):
    """It was "ranks 0 and 1 had not ended; the recordings do not show why"."""
    job = job_of(2, 5)
    for rank in (0, 1):
        job.calls[rank].append(waiting(job.next("x"), ended=job.now))
    job.told(f"{STALL}rank 1 (beta) (stopped, or its machine cannot be reached)", but=[])
    found = explain(job.recordings(without), 0, {0: 1})
    assert found.ranks == (1,)
    sentence = (
        "rank 0 waited in allreduce 'x' (train.py:88) for rank 1 (beta), which did not answer: "
        "stopped, or its machine is unreachable; "
    )
    assert found.sentence.startswith(sentence)
    # Each rank lost the other.
    job.end(1, FAILED, "UnknownError", told=f"{STALL}rank 0 (alpha) (stopped)", at=2 * SECOND)
    if not without:
        found = explain(job.recordings())
        assert found.sentence == f"{sentence}rank 1 had no answer from rank 0 (alpha) either"


def test_silent_ranks_of_a_chain_are_all_named():
    job = job_of(4, 5)
    for rank in range(4):
        job.calls[rank].append(waiting(job.next("x"), ended=job.now))
    job.told(f"{STALL}rank 2 (b) or rank 3 (a) (stopped)", but=[])
    found = explain(job.recordings())
    assert found.ranks == (2, 3)
    assert found.sentence.endswith(
        "for rank 2 (b) or rank 3 (a), which did not answer: stopped, or their machines are "
        "unreachable"
    )


def test_missing_rank_outranks_a_silent_one():
    job = job_of(3, 5)
    job.calls[0].append(waiting(job.next("x"), ended=job.now))
    job.calls[2].append(waiting(job.next("x"), ended=job.now))
    job.told("stall: 'x'; missing rank 1 (a); no answer from rank 2 (b) (stopped)", but=[1])
    assert explain(job.recordings()).sentence.startswith("rank 1 never called allreduce 'x'")


def test_error_that_explains_nothing_is_shown():
    """It was "ranks 0 and 1 had not ended", although they had failed."""
    job = job_of(2, 5)
    job.told("MPI failed", but=[])
    for told, sentence in (
        ("", "ranks 0 and 1 failed: MPI failed"),
        ("UnknownError: MPI failed", "ranks 0 and 1 failed; the recordings do not show why"),
    ):
        assert explain(job.recordings(), told=told).sentence == sentence


def test_running_job_is_described_in_the_present():
    """It was "never called", of a call that the rank may still make."""
    job = job_of(2, 5)
    job.calls[0].append(waiting(job.next("x")))
    found = explain(job.recordings(), running=True)
    expected = "rank 1 has not called allreduce 'x' (train.py:88), in which rank 0 waits; its last "
    assert found.sentence.startswith(expected)
    job.calls[0][-1] = moving(job.next("x"), 0.5, awaited=1)
    found = explain(job.recordings(), running=True)
    assert found.sentence.startswith("rank 0 waits in allreduce 'x' (train.py:88) for data from ")
    for rank in (0, 1):
        job.calls[rank][5:] = [moving(job.next("x"), 0.5, awaited=1 - rank)]
    found = explain(job.recordings(), running=True)
    assert found.sentence == "ranks 0 and 1 are still running; the recordings show no fault"


def test_rank_that_does_not_know_the_order_yet():
    """Regression: the sentence was "ranks 0 and 1 never called 'x', in which rank 2 waited"."""
    job = job_of(3, 5)
    job.calls[2].append(waiting(job.next("x")))
    for rank in (0, 1):
        job.calls[rank].append(moving(job.next("x"), 0.0, awaited=2))
    found = explain(job.recordings())
    assert found.ranks == (2,)
    assert "for data from rank 2" in found.sentence


def test_ranks_that_wait_in_a_chain():
    job = job_of(4, 5)
    for rank, awaited in enumerate((3, 0, None, 2)):
        job.calls[rank].append(moving(job.next("x"), 0.5, awaited=awaited))
    assert explain(job.recordings()).ranks == (2,)
    # The stopped rank was waiting too; the other ranks' reports about it decide.
    for rank, awaited in enumerate((3, 0, 1, 2)):
        job.calls[rank][-1] = moving(job.next("x"), 0.5, awaited=awaited, ended=job.now)
    seen = "'x' (world) was agreed by all ranks and has not moved for 50 s: no data from rank 1 (h)"
    job.told(seen, but=[1])
    assert explain(job.recordings()).ranks == (1,)
    assert explain(job.recordings(without=(1,))).ranks == (1,)
    job = job_of(4, 5)
    for rank in range(4):
        job.calls[rank].append(job.next("x"))
    # Ranks that wait in a ring are normal: data is moving.
    for rank, awaited in enumerate((3, 0, 1, 2)):
        job.calls[rank][-1] = moving(job.next("x"), 0.5, awaited=awaited)
    assert explain(job.recordings()).ranks == ()


def test_ranks_by_launcher_number():
    """`init(comm=[1, 0])`: rank 0 of the job is the launcher's rank 1."""
    job = job_of(2, 5)
    job.calls[0].append(waiting(job.next("x")))
    turned = [dataclasses.replace(one, launched=1 - one.rank) for one in job.recordings()]
    found = explain(turned, 0, {0: -9})
    assert found.ranks == (1,)
    assert found.sentence.startswith("rank 1 was killed by signal 9 (SIGKILL); ")


def test_several_jobs_of_one_launcher():
    jobs = [job_of(2, common).recordings() for common in (5, 9)]
    recordings = [
        dataclasses.replace(one, launched=one.rank + 2 * number, part=2 * number)
        for number, job in enumerate(jobs)
        for one in job
    ]
    assert {one.made for one in of_one_job(recordings, first=3)} == {9}
    assert {one.made for one in of_one_job(recordings, first=0)} == {5}


def test_death_outranks_a_handled_error():
    job = job_of(2, 5)
    for rank in (0, 1):
        job.calls[rank].append(job.next("probe", code="disagreement"))
        job.ends[rank] |= {"failed_call": 6, "failed": "mismatch"}
    found = explain(job.recordings(), 1, {1: -9})
    assert found.sentence.startswith("rank 1 was killed by signal 9 (SIGKILL)")


def test_nothing_went_wrong():
    found = explain(through(job_of(2, 5)).recordings())
    assert found.sentence == "nothing went wrong: all ranks left the job normally"
    assert not found.ranks
    assert "no rank was waiting for another" in explain(job_of(2, 5).recordings()).sentence


FAULTS = ("death", "raise", "early end", "missing", "stopped in a call")


@given(
    size=st.integers(2, 9),
    common=st.integers(0, 30),
    fault=st.sampled_from(FAULTS),
    data=st.data(),
)
def test_failed_rank_is_named_with_or_without_its_recording(size, common, fault, data):
    job = Job(size, common)
    guilty = data.draw(st.integers(0, size - 1))
    others = [rank for rank in range(size) if rank != guilty]
    # Some ranks may not have reached the call that reveals the fault.
    come = data.draw(st.lists(st.sampled_from(others), min_size=1, unique=True))
    told = {
        "death": f"rank {guilty} (host{guilty}) died",
        "raise": f"rank {guilty} (host{guilty}) left: ValueError: boom",
        "early end": f"rank {guilty} (host{guilty}) left: its program has ended",
    }.get(fault, "")
    if fault == "stopped in a call":
        for rank in range(size):
            awaited = None if rank == guilty else guilty
            job.calls[rank].append(moving(job.next("x"), 0.5, awaited=awaited))
    else:
        for rank in come if told else others:
            job.calls[rank].append(waiting(job.next("x"), ended=job.now if told else 0))
    if fault == "raise":
        job.end(guilty, FAILED, "ValueError: boom")
    if fault == "early end":
        job.end(guilty, THROUGH, "its program has ended")
    if told:
        job.told(told, but=[guilty])
    for without in ((), (guilty,)):
        found = explain(job.recordings(without))
        assert found.ranks == (guilty,), (found.sentence, without)
        assert f"rank {guilty}" in found.sentence


@given(size=st.integers(2, 5), data=st.data())
def test_any_recordings_get_a_sentence(size, data):
    """Includes recordings that contradict each other."""
    job = Job(size, data.draw(st.integers(0, 3)))
    names = st.sampled_from(["a", "b", "join"])
    for rank in range(size):
        for number in range(data.draw(st.integers(0, 3))):
            one = call(data.draw(names), number + 1, set=data.draw(st.integers(0, 1)))
            how = data.draw(st.sampled_from(["ended", "waiting", "moving", "failed"]))
            if how == "waiting":
                one = waiting(one, ended=data.draw(st.sampled_from([0, job.now])))
            elif how == "moving":
                one = moving(one, data.draw(st.floats(0, 1)), data.draw(st.integers(0, size - 1)))
            elif how == "failed":
                one = dataclasses.replace(one, code="disagreement")
            job.calls[rank].append(one)
        state = data.draw(st.sampled_from([JOINED, THROUGH, FAILED]))
        job.end(rank, state, data.draw(st.text()), told=data.draw(st.text()))
        job.ends[rank] |= {"failed_call": data.draw(st.integers(0, 3)), "failed": "so"}
    without = data.draw(st.lists(st.integers(0, size - 1), max_size=size - 1))
    first, code = data.draw(st.none() | st.integers(0, size - 1)), data.draw(st.integers(-70, 9))
    found = explain(job.recordings(without), first, {0: code})
    assert found.sentence
    assert all(0 <= rank < size for rank in found.ranks)


@pytest.mark.parametrize("size", [512])
def test_a_large_job(size):
    job = job_of(size, 200)
    for rank in range(size - 1):
        job.calls[rank].append(waiting(job.next("x")))
    found = explain(job.recordings())
    assert found.ranks == (511,)
    assert "in which ranks 0 to 510 waited" in found.sentence
