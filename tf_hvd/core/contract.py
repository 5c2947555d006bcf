"""Names and numbers that the launcher, its agents, the ranks and the native library share.

This module uses only the standard library and nothing else from this package. An isolated Python
imports this module when it runs parts of the launcher as files. base/contract.h has the native
library's copy of the names. A test compares the copies, and checks that no other file repeats a
name as a literal.
"""

import struct
from collections.abc import Iterable

# Environment variables, not settings: each process of a job gets them from its parent process.
JOB = "TF_HVD_JOB"
"""The job's name, which determines the agent's address; unset under other launchers."""
START = "TF_HVD_ELASTIC_START"
"""The number of this start of an elastic job, from 0; unset in other jobs."""
RANK = "TF_HVD_LAUNCHED_RANK"
"""The launcher's number of this rank, or of the rank that started this process."""
RECORDING = "TF_HVD_RECORDING"
"""The file descriptor to which a rank records its calls, and the job, as in "5:tf_hvd-x7k2"."""
STARTED_BY = "TF_HVD_STARTED_BY"
"""The rank that started this process. The process must not join the job as that rank."""
SETTINGS = "TF_HVD_LAUNCHER_SETTINGS"
"""The names of the variables that configure MPI for one job, comma-separated."""
LAST = "TF_HVD_LAST"
"""A dummy variable, needed because MPICH's launcher loses the last variable that it passes on."""

# These two are settings.
ALONE_VARIABLE = "TF_HVD_ALONE"
DUMP_FOLDER = "TF_HVD_DUMP_DIR"

# Process names as /proc shows them: at most 15 characters.
KEEPER = "tf_hvd_run_rank"

# Names of anonymous memory files, as /proc shows them.
RECORDER = "tf_hvd_recorder"
FRAMES = "tf_hvd_frames"
COMMIT_MEMORY = "tf_hvd_commit."

# The tf_hvd library that the dynamic linker loads into MPI's launchers.
PRELOADED = "libtf_hvd_listen.so"

# Prefixes of the shared memory that MPICH, Open MPI, Open MPI before 5, and Intel MPI use.
MPI_SEGMENTS = ("mpich_shm_", "sm_segment.", "vader_segment.", "Intel_MPI_")


def segments_in(maps: Iterable[str]) -> set[str]:
    """Return the names in /dev/shm that a process uses, given the lines of its /proc/PID/maps."""
    names = {line.rstrip("\n").partition("/dev/shm/")[2] for line in maps}
    return {name for name in names if name and not name.endswith(" (deleted)")}


START_AGAIN = 75
"""The exit code of ranks that must be restarted: EX_TEMPFAIL of sysexits.h."""

# Reports from a rank's keeper to the agent: the rank begins, the process in which its program runs,
# how the rank ended, and which of its output could not be written. In reply to the first, the
# keeper gets the standard files that the launcher provides.
BEGINS, RUNS, ENDED, LOST = "begins", "runs", "ended", "lost"
# An agent's message to itself: a connection has ended.
GONE = "gone"
INPUT, ERRORS = "i", "e"

# Reports from a program: a process calls `init`, it is in no job, a rank joins, leaves, leaves
# because its program ends, was asked to end, or raised the exception that ends it.
CALLED, ALONE, JOINED = "called", "alone", "joined"
LEFT, EXITS, ASKED, RAISED = "left", "exits", "asked", "raised"

# Reports from a nested `tf_hvd run` to the job of the rank that started it: it begins a separate
# job, and ranks of that job have joined each other.
NESTED, INNER = "nested", "inner"

# Messages from a rank in an elastic job about commits.
FILE, KEEP, PART, HAVE, PARTS = "file", "keep", "part", "have", "parts"
FETCH, FORGET = "fetch", "forget"
# Other messages from `tf_hvd run` to the agents on the job's hosts.
ROUND, NOTIFY, READY = "round", "notify", "ready"
# While a job is asked to end: a signal for its ranks' keepers, one for their programs, and a
# query that the ranks with a running program answer.
TO_KEEPERS, TO_PROGRAMS, LOOK = "keepers", "programs", "look"

REMOVED, ADDED, LEAVE = 1, 2, 4
"""The bits of a notice: hosts were removed; hosts were added; all ranks must leave.

The first two numbers are the same as in Horovod.
"""
NOTICE = struct.Struct("<q")
"""The format of the file `NOTICE_FILE`, which has the notices to the ranks of one start."""
NOTICE_FILE = "notice"
COMMITS_KEPT = 3
"""The number of commits of a rank that are kept.

Once a rank has made its newest commit, all ranks have made the previous commit, and the commit
before that is complete.
"""
