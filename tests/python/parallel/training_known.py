"""Faults that are known: programs that meet one are drawn and not run.

Each entry is a point that is being repaired, and what its programs have in common.
An entry goes when its programs pass: ./dev fuzz --training N --known 1 runs them.
"""

from training_programs import TAPE


def _before(program, first, second):
    names = program.callbacks
    return {first, second} <= set(names) and names.index(first) < names.index(second)


def _plans(program):
    return {"warmup", "schedule"} & set(program.callbacks)


KNOWN = {
    "sums of passes go by the place in the list": lambda p: p.lists == "two" and p.passes > 1,
    "a layer frozen and recompiled with passes": lambda p: p.between == "freeze" and p.passes > 1,
    "check_weights_steps with join": lambda p: (
        p.data == "join" and dict(p.environment).get("TF_HVD_CHECK_WEIGHTS_STEPS")
    ),
    "a learning rate is set before model or optimizer are built": lambda p: (
        _plans(p)
        and "broadcast" not in p.callbacks
        and ("late" in p.layers or p.option("momentum"))
    ),
    "what is made late is not broadcast with steps_per_execution": lambda p: (
        "late" in p.layers and "broadcast" in p.callbacks and p.steps_per_execution > 1
    ),
    "the guard stops a tape on a rank that has nobody to reduce with": lambda p: (
        p.left_out and p.loop == TAPE and not p.eager
    ),
    "a rank's accumulated gradients are broadcast": lambda p: (
        p.fits > 1 and "broadcast" in p.callbacks and p.option("gradient_accumulation_steps")
    ),
    "a callback decides before the metrics are averaged": lambda p: any(
        _before(p, name, "average") for name in ("plateau", "keras_stop")
    ),
}


def known(program):
    """The point that the program would meet; empty if there is none."""
    return next((point for point, meets in KNOWN.items() if meets(program)), "")
