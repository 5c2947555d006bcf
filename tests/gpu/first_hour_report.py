"""Makes the report of the first hour in Markdown, only from the steps' files.

docs/gpu_kits.md explains which figures decide what.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from step_log import Entry

Steps = dict[str, dict[str, Entry]]  # by step, by part

ROW = re.compile(
    r"^(?P<what>\S.*?\S) +(?P<size>[\d.]+) MB +(?P<speed>[\d.]+) GB/s, a copy +(?P<copy>[\d.]+)"
    r" GB/s: +(?P<share>[\d.]+) % by (?P<kernel>\w+)$",
    re.MULTILINE,
)
# The case, and the parts, for the comparison.
LISTS_CASE = "ResNet-50, Sum"
PINNED_LISTS, DEVICE_LISTS = "lists in pinned memory", "lists in device memory"
# ncu's names of figures, and the report's.
PROFILE = {
    "Duration": "duration",
    "Memory Throughput": "memory busy",
    "DRAM Throughput": "DRAM busy",
    "Compute (SM) Throughput": "compute units busy",
    "Achieved Occupancy": "occupancy",
    "Registers Per Thread": "registers of a thread",
}
# Parts of the machine's step that are not facts about it.
OF_PROGRAMS = ("device code", "programs")


def rows_of(entry: Entry | None) -> list[dict[str, str]]:
    """The lines of device_bandwidth by case."""
    found = [match.groupdict() for match in ROW.finditer(entry.output if entry else "")]
    return list({row["what"]: row for row in found}.values())


def bandwidth_rows(entries: dict[str, Entry]) -> list[dict[str, str]]:
    """All lines except those that compare lists."""
    whole = [one for one in entries.values() if one.name not in (PINNED_LISTS, DEVICE_LISTS)]
    return [row for entry in whole for row in rows_of(entry)]


def slowest(entries: dict[str, Entry]) -> tuple[str, str] | None:
    """Case and kernel with the smallest share of a copy's speed."""
    rows = bandwidth_rows(entries)
    if not rows:
        return None
    row = min(rows, key=lambda one: float(one["share"]))
    return row["what"].rpartition(", ")[0], row["kernel"]


def profile_figures(output: str) -> dict[str, str]:
    """The first figure of each name, which is the launch's, for example `12.3 %`."""
    found: dict[str, str] = {}
    for line in output.split("\n"):
        match = re.match(r"^ +(\S.*?) {2,}(\S+) +([\d.,]+) *$", line)
        if match and match[1] in PROFILE:
            unit = "" if match[2] == "register/thread" else f" {match[2]}"
            found.setdefault(PROFILE[match[1]], f"{match[3]}{unit}")
    return found


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    def line(cells: list[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"

    return [line(head), "|" + "---|" * len(head), *map(line, rows), ""]


def parts(steps: Steps) -> Iterator[list[str]]:
    for step, entries in steps.items():
        for entry in entries.values():
            if step != "machine" or entry.name.startswith(OF_PROGRAMS):
                took = f"{entry.seconds:.0f} s" if entry.seconds >= 0.5 else ""
                yield [entry.name, entry.result, entry.figure, took]


def figures(steps: Steps) -> Iterator[list[str]]:
    """The probes' figures, and the time until ranks got the error about a killed rank."""
    for entry in (entry for entries in steps.values() for entry in entries.values()):
        for said in re.findall(
            r"^\w+: (\w+=.*)|(got the error .* call)", entry.output, re.MULTILINE
        ):
            yield [entry.name, "".join(said)]


def failures(steps: Steps) -> Iterator[str]:
    """The last output of parts that failed."""
    for entries in steps.values():
        for entry in entries.values():
            if entry.result in ("failed", "cut short") and entry.output:
                quoted = entry.output[-3000:].replace("```", "'''")
                yield f"## {entry.name}: {entry.result}\n\n```text\n{quoted}\n```\n"


def parts_report(headline: str, steps: Steps, left: list[str]) -> str:
    """A report with only the results of the parts."""
    lines = [headline, "", *parts_table(steps, left)]
    return "\n".join([*lines, *failures(steps)]).rstrip("\n") + "\n"


def parts_table(steps: Steps, left: list[str]) -> list[str]:
    lines = table(["part", "result", "figure", "took"], list(parts(steps)))
    if left:
        lines += [f"Left for another call: {'; '.join(left)}.", ""]
    return lines


def report(steps: Steps, left: list[str]) -> str:
    machine = steps.get("machine", {})
    of_gpu = machine["GPUs"].figure if "GPUs" in machine else "a machine that was not examined"
    lines = [f"# The first hour on a GPU: {of_gpu}", ""]
    facts = [
        [entry.name, entry.figure]
        for entry in machine.values()
        if not entry.name.startswith(OF_PROGRAMS)
    ]
    lines += table(["machine", ""], facts)
    lines += ["## Parts", "", *parts_table(steps, left)]
    entries = steps.get("bandwidth", {})
    rows = bandwidth_rows(entries)
    for part in (PINNED_LISTS, DEVICE_LISTS):
        rows += [{**row, "what": f"{row['what']}, {part}"} for row in rows_of(entries.get(part))]
    if rows:
        head = ["launches", "MB", "GB/s", "a copy, GB/s", "share", "kernel"]
        names = ("what", "size", "speed", "copy", "share", "kernel")
        shown = [{**row, "share": f"{row['share']} %"} for row in rows]
        cells = [[row[name] for name in names] for row in shown]
        lines += ["## Bandwidth", "", *table(head, cells)]
    measured = list(figures(steps))
    if measured:
        lines += ["## Figures", "", *table(["part", "figures"], measured)]
    return "\n".join([*lines, *failures(steps)]).rstrip("\n") + "\n"
