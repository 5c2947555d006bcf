"""Whether trainings came to the same: compares the lines of DeePMD-kit's lcurve.out.

python compare_curves.py exact|close ONE OTHER: `exact` wants the same numbers, `close` those of
sums in another order. Either wants that the error has become less than a tenth of what it was.
"""

import sys

import numpy as np


def main(kind: str, one: str, other: str) -> int:
    """The exit code: 0 if they are the same."""
    curves = [np.loadtxt(name) for name in (one, other)]
    print(f"rmse {curves[0][0, 1]:g} -> {curves[0][-1, 1]:g} and {curves[1][-1, 1]:g}")
    if any(curve[-1, 1] > curve[0, 1] / 10 for curve in curves):
        return 1
    same = np.array_equal(*curves) if kind == "exact" else np.allclose(*curves, rtol=0.02)
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
