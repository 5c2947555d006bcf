"""hvd.set_random_seed: equal initial weights, but different random numbers on each rank."""

import hashlib
import random
import sys
from typing import Any

import numpy as np
import tensorflow as tf

from tf_hvd.core import basics
from tf_hvd.keras import compat, hooks


class _Seeded:
    rank: int | None = None  # this process' rank when set_random_seed was called


def set_random_seed(seed: int) -> None:
    """Seed Python, NumPy, TensorFlow and Keras in a job with several ranks.

    Call this function after `init` and before you create the model. It calls
    `keras.utils.set_random_seed(seed)`. All ranks draw the same initial weights if they create the
    same layers in the same order.

    Each rank gets its own random numbers for dropout, random augmentation, `keras.random`, NumPy,
    and the shuffles of datasets and of `fit`. Rank 0 gets the random numbers of a single-process
    program with this seed. Python's `random` is the same on all ranks, because Keras draws the
    initial weights from it.

    Use a fixed seed wherever the ranks must agree, for example in `np.random.default_rng(seed)` or
    scikit-learn's `train_test_split(..., random_state=seed)`. Without a fixed seed, each rank would
    split the data differently. Initial weights also differ between ranks if an initializer uses an
    unseeded `SeedGenerator`.

    Args:
      seed: integer from 0 to 2 ** 32 - 1, the same on all ranks.

    Raises:
      NotInitializedError: `init` was not called.
      ValueError: `seed` is not an integer in this range.

    Example:
      hvd.set_random_seed(42)
      weights = keras.layers.Dense(2).build([None, 3])
    """
    rank = basics.rank()
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise ValueError(f"seed={seed!r} is not an integer from 0 to 2 ** 32 - 1.")
    _Seeded.rank = rank
    _ = tf.keras.utils  # loads tf_keras, if tf.keras refers to it
    for name in ("keras", "tf_keras"):
        library = sys.modules.get(name)
        if library is not None:
            library.utils.set_random_seed(seed)
            generator = getattr(getattr(library, "random", None), "SeedGenerator", None)
            if generator is not None:
                hooks.put_around_all(generator, "__init__", _own_seed)
            else:  # other tf_keras layers use TensorFlow's seed
                hooks.put_around_all(*compat.seed_of_generator(library), _own_state)
    own = _of_rank(seed, rank)
    np.random.seed(own)
    tf.random.set_seed(own)


def _own_seed(_: Any, init: Any, seed: int | None = None, *args: Any, **kwargs: Any) -> None:
    """Create a Keras 3 generator; unless a seed is given, derive the seed from the rank.

    As in Keras, the part of the seed common to all ranks comes from Python's `random`.
    """
    if seed is None and _Seeded.rank is not None:
        seed = _of_rank(random.randint(1, 10**9), _Seeded.rank)
    init(seed, *args, **kwargs)


def _own_state(generator: Any, create_seed: Any, given: int | None) -> Any:
    """Draw a rank-dependent seed for the generator in a tf_keras augmentation layer."""
    seed = create_seed(given)
    if given is None and _Seeded.rank is not None and compat.has_state(generator):
        return _of_rank(seed, _Seeded.rank)
    return seed


def _of_rank(seed: int, rank: int) -> int:
    """Derive a rank's own seed from the job's seed; rank 0 gets `seed` itself."""
    if rank == 0:
        return seed
    digest = hashlib.sha256(f"{seed} of rank {rank}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1  # Keras stores seeds as int32
