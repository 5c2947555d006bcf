"""Known faults: programs that would hit one are drawn but not run.

Each entry is a fault that is being fixed, and a function that tells whether a program hits it.
Remove an entry when its programs pass: `./dev fuzz --training N --known 1` runs them.
"""

KNOWN = {}


def known(program):
    """The known fault that the program would hit; empty if there is none."""
    return next((point for point, meets in KNOWN.items() if meets(program)), "")
