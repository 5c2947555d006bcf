"""One start of an elastic job: a `tf_hvd run` of its own, as a child of the one that drives it."""

from __future__ import annotations

import argparse
import json
import os
import pickle
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tf_hvd.core import commit_store
from tf_hvd.launch import run, supervise
from tf_hvd.launch.elastic_hosts import slots_of
from tf_hvd.launch.environment import without_launcher
from tf_hvd.launch.errors import HostsError, UsageError
from tf_hvd.launch.hosts import Host
from tf_hvd.launch.job_watch import say

_GRACE = 15.0  # seconds more than the start itself gives its ranks
# The files by which a start says where the first rank failed, that it cannot be made at all, and
# which hosts it cannot have.
_REPORT, _REFUSED, _UNFIT = "report", "refused", "unfit"


@dataclass(frozen=True)
class End:
    """How one start ended."""

    code: int
    asked: bool = False
    """Whether a signal to this process ended it."""
    refused: bool = False
    """Whether the job cannot be started as asked; that was said."""
    unfit: Sequence[tuple[str, str]] = ()
    """Hosts that ranks cannot run on, and what is wrong with each; then none was started."""
    host: str = ""
    """Where the rank ran that was the first to fail; empty: not known."""


class Starter:
    """Makes the starts of one job.

    Args:
        options: of `tf_hvd run`.
        environ: of the ranks.
        folder: for files of this process.
        token: the job's.
        named: whether hosts are told to the launcher, or there is this machine alone.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        environ: Mapping[str, str],
        folder: Path,
        token: str,
        named: bool,
    ) -> None:
        self._options, self._environ, self._folder = options, environ, folder
        self._token, self._named = token, named

    def start(self, hosts: Sequence[Host], number: int, watch: supervise.Watch) -> End:
        """Makes one, which has that number, and waits for its end."""
        report, refused, unfit = (self._folder / name for name in (_REPORT, _REFUSED, _UNFIT))
        for file in (report, refused, unfit):
            file.unlink(missing_ok=True)
        options = self._folder / "options"
        options.write_bytes(pickle.dumps(self._options_of(hosts, report)))
        ending = supervise.supervise(
            [sys.executable, "-P", "-m", "tf_hvd.launch.elastic_start", str(options)],
            {
                **without_launcher(self._environ),
                commit_store.JOB_VARIABLE: f"{self._token}:{number}",
            },
            watch=watch,
            grace=self._options.grace + _GRACE,
        )
        return End(
            ending.code,
            ending.asked,
            refused.exists(),
            [(name, why) for name, why in json.loads(unfit.read_text())] if unfit.exists() else (),
            report.read_text() if report.exists() else "",
        )

    def _options_of(self, hosts: Sequence[Host], report: Path) -> argparse.Namespace:
        given = vars(self._options)
        kept = {name: value for name, value in given.items() if name not in run.NOT_PASSED_ON}
        kept |= {"np": slots_of(hosts), "hostfile": None, "report": str(report)}
        if self._named:
            kept["hosts"] = ",".join(map(str, hosts))
        return argparse.Namespace(**kept)


def main(arguments: Sequence[str]) -> int:
    """One start.

    Args:
        arguments: the file with its options.
    """
    file = Path(*arguments)
    try:
        with supervise.ending_with_parent(file.parent):
            options: argparse.Namespace = pickle.loads(file.read_bytes())
            return run.run(options, os.environ)
    except HostsError as error:
        (file.parent / _UNFIT).write_text(json.dumps(error.wrong))
        return 2
    except UsageError as error:
        say(f"tf_hvd run: {error}")
        (file.parent / _REFUSED).touch()
        return 2
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
