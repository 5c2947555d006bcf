"""The rows of a training program, and their distribution over ranks and steps."""

import functools
import random

import numpy as np

FEATURES, WORDS = 4, 6


def counts(program, size):
    """The number of batches per epoch of each member."""
    if program.data != "join":
        return [program.steps] * len(program.members(size))
    rng = random.Random(program.seed)
    found = [rng.randrange(program.steps + 2) for _ in program.members(size)]
    return found if any(found) else [1, *found[1:]]


def row_count(program, members):
    """The number of rows that `members` ranks share."""
    if program.data == "join":
        return members * program.batch * (program.steps + 1)
    return members * program.batch * program.steps + program.odd_rows


@functools.cache
def rows(program, members, salt):
    """Inputs and labels of all rows that `members` ranks share."""
    generator = np.random.default_rng([program.seed, salt])
    count = row_count(program, members)
    if program.model in ("embedding", "table"):
        x = generator.integers(0, WORDS, (count, 3))
    elif program.model == "linear":
        x = generator.integers(-3, 4, (count, FEATURES)).astype(np.float32)
        return x, members * generator.integers(-3, 4, (count, 1)).astype(np.float32)
    else:
        x = generator.standard_normal((count, FEATURES)) * 0.5
    y = np.sin(x.sum(axis=1, keepdims=True)) * 0.5
    if "two_outputs" in program.layers:
        return x, (y, np.cos(x.sum(axis=1, keepdims=True)))
    return x, y


def of_rank(program, size, place):
    """The numbers of the rows of the member at `place`, in the order of its batches."""
    members = len(program.members(size))
    total = row_count(program, members)
    if program.data == "join":
        mine = counts(program, size)[place] * program.batch
    elif program.data == "repeat":
        mine = -(-total // members)
    else:
        mine = total // members
    return [(j * members + place) % total for j in range(mine)]


def steps(program, size):
    """For each step of an epoch, the row numbers of each member; empty: the member has joined."""
    batches = []
    for place in range(len(program.members(size))):
        mine = of_rank(program, size, place)
        batches.append([mine[i : i + program.batch] for i in range(0, len(mine), program.batch)])
    longest = max(len(mine) for mine in batches)
    return [[mine[i] if i < len(mine) else [] for mine in batches] for i in range(longest)]


def take(values, numbers):
    """The rows of an array, or of each array in a tuple."""
    if isinstance(values, tuple):
        return tuple(value[numbers] for value in values)
    return values[numbers]
