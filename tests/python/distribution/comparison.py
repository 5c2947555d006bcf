"""How the results of a job are compared with those of one process."""

import numpy as np

# Relative to 0.001 plus the value.
TOLERANCE = 1e-10
TOLERANCES = {
    # Keras adds an epsilon to the number of valid elements.
    "masked_batch_normalization": 1e-8,
    # Sums in half precision over fewer rows.
    "mixed_float16": 5e-2,
    "mixed_bfloat16": 5e-2,
    # Keras creates these weights in float32.
    "low_rank_adaptation": 1e-5,
}


def program_of(name):
    return name.partition(":")[0]


def difference(found, expected):
    """The largest difference, relative to 0.001 plus the expected value."""
    assert found.shape == expected.shape
    assert (np.isnan(found) == np.isnan(expected)).all()
    return np.max(np.nan_to_num(np.abs(found - expected) / (1e-3 + np.abs(expected))), initial=0)


def wrong_results(found, expected):
    """The results that are too far from the expected ones, with their differences."""
    errors = [str(text) for name, text in found.items() if name.endswith(":error")]
    assert not errors, "\n".join(errors)
    assert found.keys() == expected.keys()
    apart = {name: float(difference(found[name], value)) for name, value in expected.items()}
    return {
        name: value
        for name, value in apart.items()
        if value > TOLERANCES.get(program_of(name), TOLERANCE)
    }
