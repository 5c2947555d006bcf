"""Faults that are known: programs that meet one are drawn and not run.

Each entry is a point that is being repaired, and a function that says whether a program
meets it. An entry goes when its programs pass: `./dev fuzz --training N --known 1` runs
them.
"""

KNOWN = {}


def known(program):
    """The point that the program would meet; empty if there is none."""
    return next((point for point, meets in KNOWN.items() if meets(program)), "")
