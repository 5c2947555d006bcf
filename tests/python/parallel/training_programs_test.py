"""Training programs on all ranks end with the same weights as one worker.

Tests run pairs of user choices and the first random programs of a fixed seed. They also run mutants
of tf_hvd: at least one program must detect each mutant. `./dev fuzz` runs more programs.
"""

import dataclasses

import pytest
import tensorflow as tf
import training_programs as programs
import training_run

import tf_hvd as hvd
from tf_hvd.training import reduction

pytestmark = [pytest.mark.framework, pytest.mark.jobs(2, 3)]

SEED, PROGRAMS = 8, {2: 10, 3: 8}
reduce = reduction.GradientReducer.reduce


WAYS = (
    ("keras", programs.FIT), ("keras", programs.OWN_STEP), ("keras", programs.BY_HAND),
    ("keras", programs.TAPE), ("tf_keras", programs.FIT),
)  # fmt: skip
SPECIAL = (
    {},
    {"options": (("gradient_accumulation_steps", 2),)},
    {"options": (("clipnorm", 0.01),)},
    {"model": "embedding"},
    {"eager": True},
)


def pairs():
    """Each pair of a loop, an optimizer and a special option, as in a Latin square; sessions."""
    for i, optimizer in enumerate(programs.KERAS_OPTIMIZERS):
        for j, special in enumerate(SPECIAL):
            library, loop = WAYS[(i + j) % len(WAYS)]
            made = programs.Program(library=library, loop=loop, optimizer=optimizer, **special)
            # tf_keras does not support some, or counts differently.
            yield dataclasses.replace(made, library="keras") if programs.refused(made, 2) else made
    for loop in (programs.FIT, programs.BY_HAND):
        yield programs.Program(loop=loop, policy="mixed_float16")
    passes = (("backward_passes_per_step", 3), ("average_aggregated_gradients", True))
    for optimizer in programs.V1_OPTIMIZERS:
        for special in ({"model": "table"}, {"model": "plain", "wrap": passes}):
            yield programs.Program(
                library="v1", loop=programs.SESSION, optimizer=optimizer, **special
            )


@pytest.mark.jobs(2)
@pytest.mark.parametrize("program", pairs(), ids=str)
def test_pairs(program):
    with training_run.all_but_last() as others:
        assert not training_run.run_program(program, others)


def numbers():
    return range(PROGRAMS[hvd.size()])


def test_training_programs():
    ran, failing = training_run.run_programs(numbers(), SEED)
    assert not failing, "\n\n".join(training_run.told(SEED, *each) for each in failing)
    assert ran > len(numbers()) // 2


@pytest.mark.jobs(2)
def test_training_programs_by_keras_distribution():
    ran, failing = training_run.run_programs(range(30), SEED, api="keras")
    assert not failing, "\n\n".join(training_run.told(SEED, *each) for each in failing)
    assert ran > 2


def skips_one(self, gradients, variables, *arguments, **told):
    """The last variable's gradient is not reduced."""
    return [*reduce(self, gradients, variables, *arguments, **told)[:-1], gradients[-1]]


def scaled(by):
    def mutant(self, *arguments, **told):
        return tf.nest.map_structure(
            lambda g: None if g is None else g * tf.cast(by(), g.dtype),
            reduce(self, *arguments, **told),
        )

    return mutant


def mixes(self, gradients, variables, *arguments, **told):
    """Variables of equal shapes get each other's gradients."""
    found = reduce(self, gradients, variables, *arguments, **told)
    for i, a in enumerate(found):
        for j, b in enumerate(found[:i]):
            dense = isinstance(a, tf.Tensor) and isinstance(b, tf.Tensor)
            if dense and a.shape == b.shape:
                found[i], found[j] = b, a
    return found


def of_rank_0(self, gradients, variables, *arguments, **told):
    """All ranks use rank 0's gradients: weights do not drift, but the batch is too small."""
    mine = [g if hvd.rank() == 0 or g is None else g * 0 for g in gradients]
    return reduce(self, mine, variables, *arguments, **told)


MUTANTS = {
    "one variable is not reduced": skips_one,
    "an average is divided by the ranks twice": scaled(lambda: 1 / hvd.size()),
    "a sum where an average was meant": scaled(hvd.size),
    "one rank's gradients count": of_rank_0,
    "variables of equal shapes are mixed": mixes,
}


@pytest.mark.jobs(2)
@pytest.mark.parametrize("name", list(MUTANTS))
def test_mutant_is_detected(name, monkeypatch):
    monkeypatch.setattr(reduction.GradientReducer, "reduce", MUTANTS[name])
    _, failing = training_run.run_programs(numbers(), SEED, stop_at_first=True)
    assert failing
    number, program, faults = failing[0]
    assert f"--only {number} --seed {SEED}" in training_run.told(SEED, number, program, faults)


@pytest.mark.jobs(2)
def test_failing_program_is_shrunk(monkeypatch):
    monkeypatch.setattr(reduction.GradientReducer, "reduce", MUTANTS["one rank's gradients count"])
    program = programs.Program(
        seed=1, loop=programs.TAPE, model="linear", eager=True, batch=2, steps=2, epochs=2,
        wrap=(("op", "Sum"), ("groups", 1)),
    )  # fmt: skip
    with training_run.all_but_last() as others:
        smallest = training_run.shrink(program, others, kept=("loop", "model", "eager"))
    assert smallest == dataclasses.replace(program, seed=0, wrap=(), epochs=1, batch=4, steps=3)


def test_equal_seeds_draw_equal_programs():
    drawn = [programs.draw(SEED, number, 2) for number in range(50)]
    assert drawn == [programs.draw(SEED, number, 2) for number in range(50)]
    assert not any(programs.refused(program, 2) for program in drawn)
    loops = {program.loop for program in drawn}
    assert loops == set(programs.LOOPS)
