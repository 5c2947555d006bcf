"""Compares the results of two trainings: the lines of DeePMD-kit's lcurve.out.

python compare_curves.py exact|close ONE OTHER: `exact` requires the same numbers; `close` allows
for a different order of sums. Both require that the error dropped to less than a tenth.
"""

import sys

import numpy as np


def main(kind: str, one: str, other: str) -> int:
    """Return the exit code: 0 if they are the same."""
    curves = [np.loadtxt(name) for name in (one, other)]
    print(f"rmse {curves[0][0, 1]:g} -> {curves[0][-1, 1]:g} and {curves[1][-1, 1]:g}")
    if any(curve[-1, 1] > curve[0, 1] / 10 for curve in curves):
        return 1
    same = np.array_equal(*curves) if kind == "exact" else np.allclose(*curves, rtol=0.02)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
