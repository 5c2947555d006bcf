"""The report of the first hour, in Markdown, and what its figures decide.

Of the steps' files alone. A rule says which figures are compared, with which limit, and what
follows on either side of it; docs/gpus.md takes the tables over as they are.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator

from step_log import Entry

Steps = dict[str, dict[str, Entry]]  # by step, by part

ROW = re.compile(
    r"^(?P<what>\S.*?\S) +(?P<size>[\d.]+) MB +(?P<speed>[\d.]+) GB/s, a copy +(?P<copy>[\d.]+)"
    r" GB/s: +(?P<share>[\d.]+) % by (?P<kernel>\w+)$",
    re.MULTILINE,
)
WANTED_SHARE = 85.0  # of a copy's speed
# Of the speed with lists of tensors in device memory.
LISTS_SHARE = 95.0
# The case, and the parts, that compare them.
LISTS_CASE = "ResNet-50, Sum"
PINNED_LISTS, DEVICE_LISTS = "lists in pinned memory", "lists in device memory"
# Limits of the rules.
THREAD_US, QUERY_US, BESIDE, DOORBELL_US, LATE_US, ABORT_S = 10.0, 1.0, 1.25, 20.0, 20.0, 10.0
# What ncu calls them, and what the report does.
PROFILE = {
    "Duration": "duration",
    "Memory Throughput": "memory busy",
    "DRAM Throughput": "DRAM busy",
    "Compute (SM) Throughput": "compute units busy",
    "Achieved Occupancy": "occupancy",
    "Registers Per Thread": "registers of a thread",
}


# Parts of the machine's step that are no facts.
OF_PROGRAMS = ("device code", "programs")


@dataclasses.dataclass(frozen=True)
class Rule:
    """A question to the card. `decide` has the answer, and what follows from it."""

    question: str
    rule: str
    decide: Callable[[Steps], tuple[str, str] | None]  # None: it was not answered


def rows_of(entry: Entry | None) -> list[dict[str, str]]:
    """The lines of device_bandwidth, by name."""
    found = [match.groupdict() for match in ROW.finditer(entry.output if entry else "")]
    return list({row["what"]: row for row in found}.values())


def bandwidth_rows(entries: dict[str, Entry]) -> list[dict[str, str]]:
    """But for those that compare lists."""
    whole = [one for one in entries.values() if one.name not in (PINNED_LISTS, DEVICE_LISTS)]
    return [row for entry in whole for row in rows_of(entry)]


def slowest(entries: dict[str, Entry]) -> tuple[str, str] | None:
    """Case and kernel of the least share of a copy's speed."""
    rows = bandwidth_rows(entries)
    if not rows:
        return None
    row = min(rows, key=lambda one: float(one["share"]))
    return row["what"].rpartition(", ")[0], row["kernel"]


def profile_figures(output: str) -> dict[str, str]:
    """The first of each name, which is of the launch; `12.3 %`."""
    found: dict[str, str] = {}
    for line in output.split("\n"):
        match = re.match(r"^ +(\S.*?) {2,}(\S+) +([\d.,]+) *$", line)
        if match and match[1] in PROFILE:
            unit = "" if match[2] == "register/thread" else f" {match[2]}"
            found.setdefault(PROFILE[match[1]], f"{match[3]}{unit}")
    return found


def figures_of(steps: Steps, probe: str) -> dict[str, float]:
    """Of a probe; empty if it was not made."""
    found = [known[f"probe, {probe}"] for known in steps.values() if f"probe, {probe}" in known]
    entry = found[0] if found else None
    for line in (entry.output if entry else "").split("\n"):
        if line.startswith('{"probe"'):
            try:
                told = json.loads(line)
            except ValueError:  # its process was ended amid the line
                continue
            return {name: value for name, value in told.items() if isinstance(value, int | float)}
    return {}


def told_after(entry: Entry | None) -> list[float]:
    """When ranks were told that another is dead, after their last call; ms."""
    output = entry.output if entry else ""
    return [float(one) for one in re.findall(r"was told (\d+) ms after its last call", output)]


def calls(steps: Steps) -> tuple[str, str] | None:
    found = figures_of(steps, "calls")
    if "nonblocking_small_ready_us" not in found or "blocking_small_ready_us" not in found:
        return None
    answer = "; ".join(
        f"{what} {found[f'nonblocking_{name}_ready_us']:g} us without blocking, "
        f"{found[f'blocking_{name}_ready_us']:g} with"
        for name, what in (("small", "256 elements:"), ("group", "8 in a group:"),
                           ("large", "one large:"))
        if f"blocking_{name}_ready_us" in found
    )  # fmt: skip
    more = found["nonblocking_small_ready_us"] - found["blocking_small_ready_us"]
    if more > THREAD_US:
        return answer, "communicators that block, called on a thread of the runtime's own"
    return answer, "communicators stay as they are, without blocking"


def queries(steps: Steps) -> tuple[str, str] | None:
    found = figures_of(steps, "queries")
    beside = found.get("launch_beside_event_queries_us")
    alone = found.get("launch_alone_us")
    if not beside or not alone:
        return None
    cost = found["event_query_us"]
    answer = f"cuEventQuery {cost:g} us, "
    answer += (
        f"cuStreamQuery {found['stream_query_us']:g} us, " if "stream_query_us" in found else ""
    )
    answer += f"a launch {alone:g} us alone and {beside:g} us beside a thread that queries"
    if cost > QUERY_US or beside > BESIDE * alone:
        return answer, "the oldest operation alone stays queried, with pauses"
    return answer, "the oldest operation is queried without pauses, beside the host function"


def host_function(steps: Steps) -> tuple[str, str] | None:
    found = figures_of(steps, "host_function")
    if "polled_us" not in found or "called_us" not in found:
        return None
    answer = f"polling knows of a kernel's end after {found['polled_us']:g} us"
    answer += f", a host function is called after {found['called_us']:g} us"
    answer += f" (99th of 100: {found['called_99th_us']:g} us)"
    if found["called_us"] - found["polled_us"] <= DOORBELL_US:
        return answer, "a host function stays what rings"
    return answer, "no host function: the oldest operation is polled"


def copies(steps: Steps) -> tuple[str, str] | None:
    found = figures_of(steps, "copies")
    behind = "_behind_copies_to_the_device_us"
    if f"pinned{behind}" not in found:
        return None
    late = found[f"pinned{behind}"] - found["pinned_alone_us"]
    by_kernel = found[f"kernel_reads_pinned{behind}"] - found["kernel_reads_pinned_alone_us"]
    answer = f"24 bytes come {late:.1f} us later, a kernel that reads pinned memory {by_kernel:.1f}"
    if f"pageable{behind}" in found:
        pageable = found[f"pageable{behind}"] - found["pageable_alone_us"]
        answer += f", from pageable memory {pageable:.1f}"
    if late > LATE_US and by_kernel < late:
        return answer, "lists stay in pinned memory, where kernels read them"
    return answer, "lists are copied to the device again"


def lists(steps: Steps) -> tuple[str, str] | None:
    entries = steps.get("bandwidth", {})
    pinned, device = (
        {row["what"]: float(row["speed"]) for row in rows_of(entries.get(part))}
        for part in (PINNED_LISTS, DEVICE_LISTS)
    )
    shares = {what: 100 * pinned[what] / speed for what, speed in device.items()
              if what in pinned and speed > 0}  # fmt: skip
    if not shares:
        return None
    answer = "; ".join(
        f"{what}: {pinned[what]:g} GB/s, with lists on the device {device[what]:g} ({share:.0f} %)"
        for what, share in shares.items()
    )
    if min(shares.values()) < LISTS_SHARE:
        return answer, "lists of up to 4 KiB become arguments of the launch"
    return answer, "lists stay in pinned memory"


def waits(steps: Steps) -> tuple[str, str] | None:
    found = figures_of(steps, "waits")
    asked = [name[: -len("_waits")] for name in found if name.endswith("_waits")]
    if not asked:
        return None
    waiting = [name for name in asked if found[f"{name}_waits"]]
    others = [name for name in asked if name not in waiting and name != "nothing"]
    if "nothing" in waiting:
        return "the kernel did not run long enough", "open: larger --wait_ms"
    if not waiting:
        return "none of " + ", ".join(others), "all may be called in a step"
    answer = ", ".join(waiting) + "; not " + ", ".join(others)
    return answer, f"in a step nobody calls {', '.join(waiting)}"


def order(steps: Steps) -> tuple[str, str] | None:
    entry = steps.get("jobs", {}).get("NCCL, inputs not awaited")
    if entry is None or entry.result not in ("passed", "failed"):
        return None
    if entry.result == "passed":
        return "results are wrong, as they have to be", "the other jobs prove the order"
    return entry.figure, "the jobs prove no order: a larger --lag_mib"


def killed(steps: Steps) -> tuple[str, str] | None:
    jobs = steps.get("jobs", {})
    by_nccl = told_after(jobs.get("NCCL, a rank is killed"))
    by_host = told_after(jobs.get("by the host's memory, a rank is killed"))
    if not by_nccl:
        return None
    answer = f"through NCCL {max(by_nccl):g} ms"
    answer += f", by the host's memory {max(by_host):g} ms" if by_host else ""
    if max(by_nccl) >= ABORT_S * 1e3:
        return answer, "ncclCommAbort does not end kernels in time: the process has to end"
    return answer, "ncclCommAbort stays"


def halves(steps: Steps) -> tuple[str, str] | None:
    rows = bandwidth_rows(steps.get("bandwidth", {}))
    half = [row for row in rows if "float16" in row["kernel"]]
    if not half:
        return None
    least = min(half, key=lambda row: float(row["share"]))
    answer = f"the least is {float(least['share']):.0f} % ({least['kernel']})"
    if float(least["share"]) < WANTED_SHARE:
        return answer, "larger tiles or more unrolling, as ncu says: memory or instructions"
    return answer, "the kernels stay as they are"


def bound(steps: Steps) -> tuple[str, str] | None:
    for entry in steps.get("profile", {}).values():
        found = profile_figures(entry.output)
        memory, compute = (
            float(found.get(name, "0").split()[0].replace(",", ""))
            for name in ("memory busy", "compute units busy")
        )
        if memory or compute:
            answer = f"memory {memory:g} %, compute units {compute:g} %"
            fewer = "it is bound by instructions: fewer of them"
            larger = "it is bound by memory, or by how much of it is asked for at once"
            return answer, fewer if compute > memory else larger
    return None


RULES = (
    Rule(
        "(a) How long until an ncclAllReduce is under way?",
        f"if without blocking it takes {THREAD_US:g} us more than with, then communicators block"
        " and have a thread of their own, else they stay",
        calls,
    ),
    Rule(
        "(b) What does a query cost, and those who launch?",
        f"if a query takes more than {QUERY_US:g} us, or launches beside it {BESIDE:g} times as"
        " long, then the oldest operation alone stays queried, with pauses, else without pauses",
        queries,
    ),
    Rule(
        "(b) How late is a host function?",
        f"if it is at most {DOORBELL_US:g} us later than polling, then it stays what rings, else"
        " the oldest operation is polled",
        host_function,
    ),
    Rule(
        "(c) How late are 24 bytes behind large copies to the device?",
        f"if more than {LATE_US:g} us, and a kernel that reads pinned memory is sooner, then lists"
        " stay there, else they are copied again",
        copies,
    ),
    Rule(
        "(c) How fast are kernels whose lists lie in pinned memory?",
        f"if less than {LISTS_SHARE:g} % of the speed with lists on the device, then lists of up to"
        " 4 KiB become arguments of the launch, else they stay",
        lists,
    ),
    Rule(
        "(d) What waits for a kernel that runs?",
        "if a function waits, then nobody calls it in a step, else anybody may",
        waits,
    ),
    Rule(
        "(e) Are results wrong where inputs are not awaited?",
        "if they are, then the jobs that are right prove the order of events, else nothing does",
        order,
    ),
    Rule(
        "(f) When does a rank know that another was killed?",
        f"if after {ABORT_S:g} s or more, then ncclCommAbort does not do, else it stays",
        killed,
    ),
    Rule(
        "(g) How fast are half precisions, by a copy's speed?",
        f"if less than {WANTED_SHARE:g} %, then ncu says whether memory or instructions hold them"
        " up, and tiles or unrolling change, else they stay",
        halves,
    ),
    Rule(
        "What holds the slowest kernel up?",
        "if its compute units are busier than its memory, then it has too many instructions, else"
        " it waits for memory",
        bound,
    ),
)


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *map(line, rows), ""]


def decisions(steps: Steps) -> Iterator[list[str]]:
    for rule in RULES:
        answer, decision = rule.decide(steps) or ("no answer", "open")
        yield [rule.question, answer, rule.rule, decision]


def parts(steps: Steps) -> Iterator[list[str]]:
    for step, entries in steps.items():
        for entry in entries.values():
            if step != "machine" or entry.name.startswith(OF_PROGRAMS):
                took = f"{entry.seconds:.0f} s" if entry.seconds >= 0.5 else ""
                yield [entry.name, entry.result, entry.figure, took]


def probe_figures(steps: Steps) -> Iterator[list[str]]:
    names = [name for entries in steps.values() for name in entries if name.startswith("probe, ")]
    for name in names:
        probe = name.partition(", ")[2]
        found = figures_of(steps, probe)
        if found:
            yield [probe, ", ".join(f"{name} {value:g}" for name, value in found.items())]


def failures(steps: Steps) -> Iterator[str]:
    """What those said last that did not come to a good end."""
    for entries in steps.values():
        for entry in entries.values():
            if entry.result in ("failed", "cut short") and entry.output:
                quoted = entry.output[-3000:].replace("```", "'''")
                yield f"## {entry.name}: {entry.result}\n\n```text\n{quoted}\n```\n"


def parts_report(headline: str, steps: Steps, left: list[str]) -> str:
    """What became of the parts alone."""
    lines = [headline, "", *parts_table(steps, left)]
    return "\n".join([*lines, *failures(steps)]).rstrip("\n") + "\n"


def parts_table(steps: Steps, left: list[str]) -> list[str]:
    lines = table(["part", "result", "figure", "took"], list(parts(steps)))
    if left:
        lines += [f"Left for another call: {'; '.join(left)}.", ""]
    return lines


def report(steps: Steps, left: list[str]) -> str:
    machine = steps.get("machine", {})
    of_gpu = machine["GPUs"].figure if "GPUs" in machine else "a machine that was not asked"
    lines = [f"# The first hour on a GPU: {of_gpu}", ""]
    facts = [
        [entry.name, entry.figure]
        for entry in machine.values()
        if not entry.name.startswith(OF_PROGRAMS)
    ]
    lines += table(["machine", ""], facts)
    lines += ["## Parts", "", *parts_table(steps, left)]
    rows = bandwidth_rows(steps.get("bandwidth", {}))
    if rows:
        head = ["launches", "MB", "GB/s", "a copy, GB/s", "share", "kernel"]
        names = ("what", "size", "speed", "copy", "share", "kernel")
        shown = [{**row, "share": f"{row['share']} %"} for row in rows]
        cells = [[row[name] for name in names] for row in shown]
        lines += ["## Bandwidth", "", *table(head, cells)]
    head = ["question", "answer", "rule", "decision"]
    lines += ["## Answers", "", *table(head, list(decisions(steps)))]
    measured = list(probe_figures(steps))
    if measured:
        lines += ["## Figures of the probes", "", *table(["probe", "figures"], measured)]
    return "\n".join([*lines, *failures(steps)]).rstrip("\n") + "\n"
