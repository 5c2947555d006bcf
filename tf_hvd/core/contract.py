"""What launcher, agent, ranks and the native library call each other: names, and how to find them.

The standard library alone, and none of this package: the launcher's parts that an isolated Python
runs as files import it. The native library's names are in base/contract.h; a test
compares the two, and that no other file writes such a name out.
"""

import struct
from collections.abc import Iterable

# Environment variables. No settings: each process of a job is told them by the one that starts it.
JOB = "TF_HVD_JOB"
"""The job's name, by which its machine's agent is reached; not there under another launcher."""
START = "TF_HVD_ELASTIC_START"
"""Which start of an elastic job this is, from 0; not there in another job."""
RANK = "TF_HVD_LAUNCHED_RANK"
"""Which of the launcher's ranks a process is, or was started by."""
RECORDING = "TF_HVD_RECORDING"
"""The file that a rank's recorder writes to, and the job: "5:tf_hvd-x7k2"."""
STARTED_BY = "TF_HVD_STARTED_BY"
"""The rank that has started a process, which must not take that rank's place."""
SETTINGS = "TF_HVD_LAUNCHER_SETTINGS"
"""The names of the variables by which MPI was set up for one job, comma-separated."""
LAST = "TF_HVD_LAST"
"""Says nothing. MPICH's launcher loses the last variable of its environment on other machines."""

# This one is a setting, and so is the folder.
ALONE_VARIABLE = "TF_HVD_ALONE"
DUMP_FOLDER = "TF_HVD_DUMP_DIR"

# Processes, as /proc has their names: 15 letters.
KEEPER = "tf_hvd_run_rank"

# Memory without a name, as /proc has it.
RECORDER = "tf_hvd_recorder"
COMMIT_MEMORY = "tf_hvd_commit."

# A library of ours that the dynamic linker loads into MPI's launchers.
PRELOADED = "libtf_hvd_listen.so"

# How MPICH, Open MPI, Open MPI before 5 and Intel MPI name their shared memory.
MPI_SEGMENTS = ("mpich_shm_", "sm_segment.", "vader_segment.", "Intel_MPI_")


def segments_in(maps: Iterable[str]) -> set[str]:
    """The names in /dev/shm that a process uses, by the lines of its `maps` in /proc."""
    names = {line.rstrip("\n").partition("/dev/shm/")[2] for line in maps}
    return {name for name in names if name and not name.endswith(" (deleted)")}


START_AGAIN = 75
"""The exit code of ranks that are to be started again: EX_TEMPFAIL of sysexits.h."""

# What a rank's keeper says to the agent: that the rank begins, in which process its program runs,
# and how it has ended. To the first it gets the standard files that come from the launcher.
# And which of its output could not be written.
BEGINS, RUNS, ENDED, LOST = "begins", "runs", "ended", "lost"
# What an agent says to itself: that a connection has ended.
GONE = "gone"
INPUT, ERRORS = "i", "e"

# What a program says: that a process calls `init`, that it is in no job, that a rank joins, leaves,
# leaves since its program ends, was asked to end, or raised what ends it.
CALLED, ALONE, JOINED = "called", "alone", "joined"
LEFT, EXITS, ASKED, RAISED = "left", "exits", "asked", "raised"

# What a `tf_hvd run` says to the job of the rank that has started it: that it begins a job of its
# own, and that ranks of it have joined each other.
NESTED, INNER = "nested", "inner"

# What a rank of an elastic job says of commits.
FILE, KEEP, PART, HAVE, PARTS = "file", "keep", "part", "have", "parts"
FETCH, FORGET = "fetch", "forget"
# And what `tf_hvd run` says to the agents of its hosts besides.
ROUND, NOTIFY, READY = "round", "notify", "ready"
# Of a job that is asked to end: a signal for its ranks' keepers, one for their programs, and a
# question, answered by the ranks whose program has not ended.
TO_KEEPERS, TO_PROGRAMS, LOOK = "keepers", "programs", "look"

REMOVED, ADDED, LEAVE = 1, 2, 4
"""What a notice says, added up: hosts have gone, have come (Horovod's numbers), all are to end."""
NOTICE = struct.Struct("<q")
"""What is in the file `NOTICE_FILE`: what the ranks of a start were told."""
NOTICE_FILE = "notice"
COMMITS_KEPT = 3
"""How many commits of a rank are kept: when one is here, all ranks have made that before, and what
they made before that one is complete."""
