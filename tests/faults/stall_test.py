"""Waits for a rank that does not come: the table of docs/debug_a_hang.md, with shorter limits.

tests/runtime/stall_monitor_test.cc tests the limits of half an hour and five minutes on a simulated
clock.
"""

import re

import pytest

pytestmark = pytest.mark.usefixtures("usual_garbage")

# The divisor of the limits.
HURRY = 200
HOPELESS, LAST = 300 / HURRY, 1800 / HURRY


def lines_of(rank, output):
    return re.findall(rf"<{rank}> (.*)", output)


def waited(error):
    """The seconds of the wait in an error."""
    return int(re.search(r"stall: .* waited (\d+) s", error)[1])


AT_WORK = """
import subprocess
LONG = 3.0  # twice the limit for waits that cannot end

def sleeps():
    began = time.monotonic()
    time.sleep(LONG)  # rank 1
    assert time.monotonic() - began >= LONG

def computes():
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        sum(range(1 << 20))  # rank 2

def reads_a_slow_file():
    os.mkfifo(flag("slow"))
    writer = "import sys, time; f = open(sys.argv[1], 'w'); time.sleep(3); f.write('data')"
    with subprocess.Popen([sys.executable, "-c", writer, flag("slow")]):
        with open(flag("slow"), "rb", buffering=0) as file:
            assert file.read(4) == b"data"  # rank 3

if rank > 0:
    [sleeps, computes, reads_a_slow_file][rank - 1]()
say("sum", reduce())
if rank == 1:
    time.sleep(600)  # until the end
error_of(lambda: reduce("h"))
os._exit(1)
"""


def test_busy_ranks_are_awaited(job, tmp_path):
    """Each warning has their lines. The signal that asks for them interrupts no system call."""
    _, output = job(AT_WORK, ranks=4, HURRY=str(HURRY))
    lines = (tmp_path / "program.py").read_text().splitlines()
    warnings = "\n".join(re.findall(r"warning, rank 0 .*stall: 'g' .*", output))
    for rank, function in ((1, "sleeps"), (2, "computes"), (3, "reads_a_slow_file")):
        at = rf"rank {rank} is not in a collective, at \S*program\.py, line (\d+), in "
        numbers = re.findall(at + function, warnings)
        assert any(lines[int(number) - 1].endswith(f"# rank {rank}") for number in numbers), output
    for rank in range(4):
        assert lines_of(rank, output)[0] == "sum 4.0", output
    for rank in (0, 2, 3):
        (error,) = lines_of(rank, output)[1:]
        assert waited(error) >= LAST, output
        (number,) = re.findall(r"missing rank 1 .*, at .*, line (\d+), in <module>", error)
        assert lines[int(number) - 1].endswith("# until the end"), output
        assert "raise HOROVOD_STALL_SHUTDOWN_TIME_SECONDS" in error, output


def test_ranks_that_wait_for_each_other(job):
    """All ranks get first a warning, then an error with the same text."""
    _, output = job('error_of(lambda: reduce("g" if rank == 0 else "h"))\n', HURRY=str(HURRY))
    warning = re.search(r"warning, rank 0 .*'[gh]'.*missing rank \d", output)
    assert warning, output
    errors = [lines_of(rank, output)[0] for rank in (0, 1)]
    for error in errors:
        found = re.search(r"stall: '(g|h)' .*submitted by rank (\d) .*missing rank (\d)", error)
        name, submitted, missing = found.groups()
        assert (submitted, missing) == (("0", "1") if name == "g" else ("1", "0"))
        other = "h" if name == "g" else "g"
        assert f"; rank {missing} waits for '{other}' (world), at " in error, output
        assert ", in reduce; each rank waits for a call that another rank has not made" in error
        assert HOPELESS <= waited(error) < LAST, output
        assert warning.start() < output.index(error)
    assert errors[0].split("{{")[-1].split("}}")[-1] == errors[1].split("{{")[-1].split("}}")[-1]


STOPPED = """
pids = hvd.allgather_object(os.getpid())
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
    sys.exit(0)
error_of(lambda: reduce(NAME))
if rank == 0:
    os.kill(pids[1], signal.SIGCONT)
"""


def test_a_rank_is_stopped(job):
    """It cannot answer, so the other ranks name it and stop waiting."""
    _, output = job(STOPPED.replace("NAME", "'g'"), ranks=3, HURRY=str(HURRY))
    for rank in (0, 2):
        (line,) = lines_of(rank, output)
        assert re.search(r"stall: 'g' .*no answer from rank 1 ", line), output
        assert "may have been stopped by a debugger" in line, output
        assert "branch" not in line, output
        assert HOPELESS <= waited(line) < LAST, output


def test_users_limit_replaces_all_limits(job):
    """One rank is stopped, and the other ranks wait for each other as well."""
    limits = {"HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "800", "HURRY": str(HURRY)}
    _, output = job(STOPPED.replace("NAME", "'g' if rank == 0 else 'h'"), ranks=3, **limits)
    for rank in (0, 2):
        (line,) = lines_of(rank, output)
        assert "no answer from rank 1 " in line, output
        assert waited(line) >= 800 / HURRY, output
