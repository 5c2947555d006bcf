"""The checks that `tf_hvd doctor` runs in a separate process, because a check may crash.

This file is run as a script and never imported. It prints one line of JSON for each fact,
`{"name": ..., "value": ...}`. A check may also hang, so the script first prints the check's name
as the fact `asking`. The output of libraries goes to standard error.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO


def _native() -> Any:
    return import_module("tf_hvd.core._native")


def _settings() -> Any:
    native = _native()
    config = import_module("tf_hvd.core.config")
    error = native.settings_error()
    try:
        config.equal_settings()
    except ValueError as wrong:
        error = error or str(wrong)
    listed = re.findall(r"^\| `(\w+)`", native.config_markdown(), re.MULTILINE)
    return {"error": error, "names": [*listed, *(one.name for one in config.SETTINGS)]}


def _mpi() -> Any:
    candidates = import_module("tf_hvd.core.basics").mpi_candidates()
    code, path, version, error = _native().find_mpi(candidates)
    return {"error": error if code else "", "path": path, "version": version}


def _gpu() -> Any:
    return _native().gpu_report(import_module("tf_hvd.core.basics").nccl_candidates())


def _tensorflow_gpus() -> Any:
    tf = import_module("tensorflow")
    return {
        "built_with_cuda": tf.test.is_built_with_cuda(),
        "count": len(tf.config.list_physical_devices("GPU")),
    }


def _shared_bytes(ranks: int) -> Any:
    return int(_native().library.tf_hvd_shared_bytes(ranks))


def _first_cores() -> Any:
    """Return the cores of a job's first two ranks and the latency between them in microseconds.

    Returns None if all usable CPUs belong to one core or the latency is unknown.
    """
    cores = sorted(os.sched_getaffinity(0))
    siblings = import_module("tf_hvd.launch.machine.proc").siblings
    others = [core for core in cores[1:] if siblings(core) != siblings(cores[0])]
    if not others:
        return None
    latency = import_module("tf_hvd.bench.native").core_latency(cores[0], others[0])
    return None if latency is None else [cores[0], others[0], latency]


def _answer(facts: TextIO, name: str, question: Callable[[], Any]) -> bool:
    def tell(what: str, value: Any) -> None:
        facts.write(json.dumps({"name": what, "value": value}) + "\n")
        facts.flush()

    tell("asking", name)
    try:
        value = question()
    except Exception as error:  # any fault in an installation is a result
        tell(f"{name} failed", f"{type(error).__name__}: {error}")
        return False
    tell(name, value)
    return True


def main(cores: int) -> None:
    """Run all checks. Later checks need the first two; checks that may hang come last.

    Args:
        cores: number of physical cores that a job may use.
    """
    facts = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    if not _answer(facts, "tensorflow", lambda: import_module("tensorflow").__version__):
        return
    if not _answer(facts, "native", lambda: str(_native().DIRECTORY)):
        return
    _answer(facts, "settings", _settings)
    for ranks in {2, cores}:
        _answer(facts, f"shared_bytes_{ranks}", functools.partial(_shared_bytes, ranks))
    _answer(facts, "first_cores", _first_cores)
    _answer(facts, "mpi", _mpi)
    _answer(facts, "gpu", _gpu)
    _answer(facts, "tensorflow_gpus", _tensorflow_gpus)


if __name__ == "__main__":
    # Make the package importable, but not this folder's modules by their short names.
    here = Path(__file__).resolve().parent
    sys.path = [path for path in sys.path if Path(path).resolve() != here]
    if str(here.parents[2]) not in sys.path:
        sys.path.append(str(here.parents[2]))
    main(int(sys.argv[1]))
    # MPI's libraries and drivers may crash or hang at exit.
    sys.stdout.flush()
    os._exit(0)
