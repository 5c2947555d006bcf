"""Compares `tf_hvd bench` under two installations, in pairs, on near and on far cores.

    python benchmarks/two_wheels.py OLD/bin NEW/bin --pairs 12 -- --sizes 1M,16M

Each pair consists of one job with each installation; the order alternates. Before and after each
job, the time of a cache line between the two cores is measured. A pair with both near and far
cores is dropped. For each workload and state it prints the median of the pairs' ratios new / old
with a 95 % interval (Conover, Practical Nonparametric Statistics, 3.2). It prints the same for
the ratio to MPI in place, within the new installation's jobs.
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys

MPI = "mpi in place"
Key = tuple[str, str]


def latency(bin_folder: str) -> float:
    """Latency between the first two cores of this process in microseconds."""
    (library,) = pathlib.Path(bin_folder).parent.glob("lib/python*/site-packages/tf_hvd/*limits.so")
    function = ctypes.CDLL(str(library)).tf_hvd_limits_core_latency
    function.restype = ctypes.c_double
    first, *others = sorted(os.sched_getaffinity(0))
    return float(function(first, next(c for c in others if siblings(c) != siblings(first))))


def siblings(cpu: int) -> str:
    """An identifier shared by the hyper-threads of one core."""
    folder = pathlib.Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
    return (folder / "thread_siblings_list").read_text()


def bench(bin_folder: str, words: list[str], latencies: list[float]) -> dict[Key, float]:
    """Return medians in seconds by workload and peer; append the job's core latencies."""
    command = [f"{bin_folder}/tf_hvd", "bench", "-np", "2", "--json", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    found = {}
    for row in json.loads(done.stdout)["results"]:
        workload = f"{row['operation']} {row['workload']} {row['dtype']}"
        if not row["missing"]:
            found[workload, row["peer"]] = row["median_seconds"]
        latencies += row.get("core_latency_us") or []
    return found


def interval(values: list[float]) -> tuple[float, float]:
    """An interval that contains the distribution's median with 95 % confidence.

    With fewer than six values no interval does; their range is returned instead.
    """
    ordered, count = sorted(values), len(values)
    below, rank = 0.0, 0
    while (below := below + math.comb(count, rank) / 2**count) <= 0.025:
        rank += 1
    inside = max(rank - 1, 0)
    return ordered[inside], ordered[count - 1 - inside]


def shown(ratios: list[float]) -> str:
    """The median, its interval, and the number of pairs."""
    low, high = interval(ratios)
    return f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f}, {len(ratios)} pairs)"


def main() -> None:
    """Print a line for each pair, and the ratios at the end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("old", help="folder of the old installation's programs")
    parser.add_argument("new")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument(
        "--far",
        type=float,
        default=0.16,
        help="minimum latency of far cores in microseconds (default: 0.16)",
    )
    own, _, given = " ".join(sys.argv[1:]).partition(" -- ")
    options = parser.parse_args(own.split())
    words = ["--peers", f"tf_hvd,{MPI}", *given.split()]
    old_ratios: dict[Key, list[float]] = collections.defaultdict(list)
    mpi_ratios: dict[Key, list[float]] = collections.defaultdict(list)
    for turn in range(options.pairs):
        found, seen = {}, []
        for folder in (options.old, options.new) if turn % 2 else (options.new, options.old):
            seen.append(latency(options.new))
            found[folder] = bench(folder, words, seen)
            seen.append(latency(options.new))
        state = "far" if max(seen) >= options.far else "near"
        mixed = state == "far" and min(seen) < options.far
        text = f"pair {turn}: latency {min(seen):.2f} to {max(seen):.2f} us"
        print(f"{text}: {'dropped' if mixed else state}", flush=True)
        if mixed:
            continue
        for workload in dict.fromkeys(key[0] for key in found[options.new]):
            new = found[options.new][workload, "tf_hvd"]
            old = found[options.old][workload, "tf_hvd"]
            old_ratios[workload, state].append(new / old)
            if mpi := found[options.new].get((workload, MPI)):
                mpi_ratios[workload, state].append(new / mpi)
    for (workload, state), ratios in old_ratios.items():
        mpi_text = mpi_ratios.get((workload, state))
        print(
            f"{workload}, {state}: new / old {shown(ratios)}"
            + (f"; new / MPI in place {shown(mpi_text)}" if mpi_text else "")
        )


if __name__ == "__main__":
    main()
