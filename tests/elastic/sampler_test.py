"""ElasticSampler: each sample of an epoch is used once, even if the number of ranks changes."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from tf_hvd.core import basics
from tf_hvd.elastic import ElasticSampler


class World:
    """Simulates `tf_hvd.size()` and `rank()`."""

    size, rank = 1, 0


@pytest.fixture(autouse=True, scope="module")
def world():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(basics, "size", lambda: World.size)
        patch.setattr(basics, "rank", lambda: World.rank)
        yield World


def parts_of(make, state, ranks):
    """The passes of each rank from a state on, and a sampler of rank 0."""
    World.size, samplers = ranks, []
    for World.rank in range(ranks):
        sampler = make()
        if state is not None:
            sampler.load_state_dict(state)
        samplers.append((sampler, [*sampler._parts()]))
    World.rank = 0
    return samplers


def train(samplers, done):
    """Run `done` steps of all ranks; returns their samples with the update and pass of each."""
    seen = []
    for step in range(done):
        for sampler, parts in samplers:
            part, weight = parts[step]
            assert len(part) >= 1
            if weight:
                seen.append((sampler.position, sampler._passed, [*map(int, part)]))
        for sampler, _ in samplers:
            sampler.record_batch()
    states = [sampler.state_dict() for sampler, _ in samplers]
    assert all(one == states[0] for one in states)
    return seen, states[0]


def draw_job(data):
    """The number of ranks of each start, and a function that creates a sampler."""
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=5), "ranks")
    size = data.draw(st.integers(max(sizes), 200), "samples")
    batch, keeps = data.draw(st.integers(1, 9), "batch"), data.draw(st.booleans(), "keeps")
    shuffle = data.draw(st.booleans(), "shuffle")
    if keeps:
        sizes = [min(ranks, batch * sizes[0]) for ranks in sizes]
    return sizes, size, lambda: ElasticSampler(size, batch, shuffle, 5, keeps)


@given(st.data())
def test_each_sample_once(data):
    """With restarts at any point, including between the passes of an update."""
    sizes, size, make = draw_job(data)
    state, seen = None, []
    for ranks, after in zip(sizes, [*sizes[1:], None], strict=True):
        samplers = parts_of(make, state, ranks)
        (steps,) = {len(parts) for _, parts in samplers}  # all ranks make the same number
        done = steps if after is None else data.draw(st.integers(0, steps), "steps")
        found, state = train(samplers, done)
        seen += found
        if state["passed"] and after not in (None, ranks):
            # The incomplete update restarts.
            seen = [one for one in seen if one[0] != state["position"]]
    assert sorted(index for *_, part in seen for index in part) == list(range(size))
    assert state["position"] == size


@given(st.integers(1, 5), st.integers(1, 9), st.integers(1, 100), st.integers(1, 5))
def test_weights_give_the_mean_of_an_update(first, batch, more, then):
    """For parts of different sizes, averaged over ranks and passes."""
    size = batch * first + more
    World.size, World.rank = first, 0
    before = ElasticSampler(size, batch, keep_global_batch=True)
    ranks = min(then, before.global_batch)
    samplers = parts_of(
        lambda: ElasticSampler(size, batch, keep_global_batch=True), before.state_dict(), ranks
    )
    values = np.random.default_rng(1).normal(size=size)
    passes = samplers[0][0].passes
    for update in range(len(samplers[0][1]) // passes):
        parts = [p for _, found in samplers for p in found[update * passes : (update + 1) * passes]]
        mean = np.mean([values[indices].mean() * weight for indices, weight in parts])
        assert mean == pytest.approx(np.concatenate([values[i] for i, w in parts if w]).mean())


def test_global_batch_is_kept():
    World.size = 4
    state = ElasticSampler(1000, 8, keep_global_batch=True).state_dict()
    World.size = 2
    sampler = ElasticSampler(1000, 8, keep_global_batch=True)
    sampler.load_state_dict(state)
    assert (sampler.global_batch, sampler.passes) == (32, 2)
    plain = ElasticSampler(1000, 8)
    plain.load_state_dict(state)
    assert (plain.global_batch, plain.passes) == (16, 1)


def test_started_epoch_continues():
    World.size = 1
    sampler = ElasticSampler(10, 4, shuffle=False)
    sampler.record_batch()
    sampler.set_epoch(0)
    assert sampler.position == 4
    assert [part.tolist() for part in sampler.dataset().as_numpy_iterator()] == [
        [4, 5, 6, 7],
        [8, 9],
    ]
    assert sampler.remaining == 6
    sampler.set_epoch(1)
    assert (sampler.position, len(sampler)) == (0, 3)
    pairs = [(i.tolist(), float(w)) for i, w in sampler.weighted_dataset().as_numpy_iterator()]
    assert pairs[-1] == ([8, 9], 1.0)


@pytest.mark.parametrize(("size", "batch"), [(0, 1), (1, 0), (1, 4)])
def test_invalid_arguments(size, batch):
    World.size = 2
    with pytest.raises(ValueError, match=r"samples|at least 1"):
        ElasticSampler(size, batch)
