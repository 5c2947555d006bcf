"""The path of an eager allreduce of 4 bytes: its files, and the forms of its data.

`./dev prove call` builds the wheel with `--config=coverage`. Two jobs of two ranks make different
numbers of calls. In C++ (gcov), code of a call runs an integer number of times per call, on each
rank that runs it. Code that a waiting rank polls runs any number of times. Python's functions are
those that the profiler sees in one additional call.
"""

from __future__ import annotations

import collections
import dataclasses
import json
import pathlib
import re
import subprocess
from collections.abc import Iterator

import jobs
from line_coverage import CPP
from prove import ROOT, Table

FEW, MANY = 200, 2200
NEARLY = 0.005
"""Tolerance for integer counts: a rank may find that another thread has finished its work."""
ORDER = (
    "tf_hvd",
    "ops",
    "kernels",
    "runtime/api",
    "runtime/request",
    "runtime/events",
    "runtime/execution",
    "runtime/agreement",
    "runtime/contract",
    "runtime/transport",
    "compute",
    "base",
)
"""The folders in the order of a call; `base` serves all of them."""
PROGRAM = """
import json
value = tf.constant([1.0])

def call():
    hvd.allreduce(value)

for _ in range(int(os.environ["CALL_CALLS"])):
    call()
seen = set()
package = os.path.dirname(hvd.__file__) + os.sep

def see(frame, event, _):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(package):
        file = "tf_hvd/" + code.co_filename[len(package):]
        seen.add((file, code.co_name, code.co_firstlineno))

sys.setprofile(see)
call()
sys.setprofile(None)
folder = os.environ["TF_HVD_PROVE"]
with open(os.path.join(folder, f"python.{rank}"), "w") as file:
    json.dump(sorted(seen), file)
# Each process writes its counts at exit, with the folders below /proc/self/cwd.
os.environ.update(GCOV_PREFIX=os.path.join(folder, f"counts.{rank}"), GCOV_PREFIX_STRIP="3")
"""
# A call's facts: the type of a member, without namespaces, and its name.
FACTS = {
    "name": (r"Key|string|string_view|RecordedText<.*>", r"key|name"),
    "set": (r"Key|int32_t", r"key|set"),
    "operation": (r"OpKind|ReduceOp", r"kind|reduce_op"),
    "type": (r"DType|optional<DType>", r"dtype|stored|type|wire"),
    "size": (r"size_t|u?int64_t|vector<int64_t>|array<int64_t.*>", r"count|bytes|shape"),
    "memory": (r"(?:const )?void\*|Memory", r"input|output|memory"),
}
LEAST = 3
"""The minimum number of facts that a form has, including those of its members' types. At least one
must be its own, because a container of forms is not a form."""
Place = tuple[str, int]
"""A file and a line in it."""


@dataclasses.dataclass
class Counted:
    """Executed code on a rank: lines, and functions by their first line."""

    lines: dict[Place, int] = dataclasses.field(default_factory=dict)
    functions: dict[Place, int] = dataclasses.field(default_factory=dict)
    names: dict[Place, set[str]] = dataclasses.field(default_factory=dict)


def counts_of(folder: pathlib.Path, built: pathlib.Path) -> Counted:
    """The counts of a job; a line that several objects have adds up."""
    counts = sorted(folder.rglob("*.gcda"))
    assert counts, "no counts found: was the wheel built by `./dev prove call`?"
    for file in counts:
        # gcov looks for the layout of the counts in their folder.
        layout = file.relative_to(folder / "bazel-out").with_suffix(".gcno")
        file.with_suffix(".gcno").symlink_to(built / layout)
    counted = Counted()
    gcov = ["gcov", "--json-format", "--stdout", *map(str, counts)]
    said = subprocess.run(gcov, cwd=folder, check=True, stdout=subprocess.PIPE).stdout
    for document in said.splitlines():
        for file in json.loads(document)["files"]:
            name = file["file"]
            if not name.startswith(tuple(f"{each}/" for each in CPP)):
                continue
            for line in file["lines"]:
                place = name, line["line_number"]
                counted.lines[place] = counted.lines.get(place, 0) + line["count"]
            for function in file["functions"]:
                place = name, function["start_line"]
                count = counted.functions.get(place, 0) + function["execution_count"]
                counted.functions[place] = count
                counted.names.setdefault(place, set()).add(function["demangled_name"])
    return counted


def counts_of_job(calls: int, built: pathlib.Path) -> tuple[list[Counted], set[Place]]:
    """The code run on each rank in C++, and the Python functions of a call: file and line."""
    settings = {"CALL_CALLS": f"{calls}"}
    with jobs.Job("openmpi", 2, jobs.PREAMBLE + PROGRAM, settings) as job:
        assert job.wait(jobs.STARTS + 300) == 0, job.output()
        ranks = [counts_of(job.folder / f"counts.{rank}", built) for rank in range(2)]
        seen = [json.loads((job.folder / f"python.{rank}").read_text()) for rank in range(2)]
    return ranks, {(file, line) for one in seen for file, _, line in one}


def growth(few: list[Counted], many: list[Counted], what: str) -> dict[Place, list[float]]:
    """How often each line, or function, ran per call, on the ranks that ran it."""
    found = collections.defaultdict(list)
    for before, after in zip(few, many, strict=True):
        old, new = getattr(before, what), getattr(after, what)
        for place, count in new.items():
            if count > old.get(place, 0):
                found[place].append((count - old.get(place, 0)) / (MANY - FEW))
    return found


def in_calls(few: list[Counted], many: list[Counted], what: str) -> tuple[set[Place], set[Place]]:
    """The lines, or functions, of each call, and those that run while a rank waits."""
    calls, waits = set(), set()
    for place, times in growth(few, many, what).items():
        if all(round(each) > 0 and abs(each - round(each)) <= NEARLY for each in times):
            calls.add(place)
        elif max(times) >= 1:
            waits.add(place)
    return calls, waits


@dataclasses.dataclass
class Type:
    """A class or struct of a source file, with the types and names of its data members."""

    name: str
    file: str
    members: list[tuple[str, str]]
    others: set[str] = dataclasses.field(default_factory=set)
    """Other names of the type."""


def types_in(file: str, text: str) -> Iterator[Type]:
    """The types in a text that clang-format has formatted."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)
    heads = re.finditer(r"\b(?:class|struct) (\w+)(?: final)?(?: : [^;{(]*)? \{", text)
    for head in heads:
        found = Type(head[1], file, members_of(body_at(text, head.end())))
        found.others = set(re.findall(rf"using (\w+) = {head[1]}<[^;]*>;", text))
        yield found


def body_at(text: str, begin: int) -> str:
    depth, end = 1, begin
    while depth:
        depth += {"{": 1, "}": -1}.get(text[end], 0)
        end += 1
    return text[begin : end - 1]


def members_of(body: str) -> list[tuple[str, str]]:
    """The data members: statements without parentheses, except in the type or after the name."""
    while True:  # innermost first: bodies of functions and types, and initial values
        flat = re.sub(r"(?:struct|class|enum)[^;{}]*\{[^{}]*\};|\{[^{}]*\};?", ";", body)
        if flat == body:
            break
        body = flat
    members = []
    for statement in re.sub(r"\b(?:public|private|protected):", "", flat).split(";"):
        statement = re.sub(r"\s+", " ", statement.partition("=")[0])
        statement = re.sub(r" (?:PT_)?GUARDED_BY\(.*\)", "", statement).strip()
        member = re.fullmatch(r"(?:mutable )?([\w:]+.*[ >*&]) ?(\w+)", statement)
        if member and not re.match(r"(?:using|friend|static|return|template)\b", statement):
            kind = re.sub(
                r"\bstd::|\b(?:tf|tf_hvd)::|^const |\b(?:Of|atomic)<(\w+)>", r"\1", member[1]
            )
            members.append((kind.replace(" const", "").replace(" *", "*").strip(), member[2]))
    return [(kind, name) for kind, name in members if "(" not in kind]


def facts_of(members: list[tuple[str, str]]) -> set[str]:
    return {
        fact
        for fact, (kinds, names) in FACTS.items()
        for kind, name in members
        if re.fullmatch(kinds, kind) and re.fullmatch(names, name.rstrip("_"))
    }


def all_facts(
    found: Type, types: dict[str, Type], within: frozenset[str] = frozenset()
) -> set[str]:
    """The facts of a type, including those of its members' types."""
    facts = facts_of(found.members)
    for kind, _ in found.members:
        for word in set(re.findall(r"\w+", kind)) - within:
            if word in types and word != found.name:
                facts |= all_facts(types[word], types, within | {found.name, word})
    return facts


def forms_of(sources: dict[str, str], lines: set[Place], names: set[str]) -> list[Type]:
    """The forms that these lines and functions create or fill.

    Args:
      sources: text of each file that a call runs through.
      lines: lines that run in each call.
      names: demangled names of the functions that run in each call.
    """
    types = {one.name: one for file, text in sources.items() for one in types_in(file, text)}
    split = {file: text.splitlines() for file, text in sources.items()}
    ran = [statement_at(split[file], line) for file, line in lines if file in split]
    # Excludes types that are only read, and the classes of member functions.
    made = [re.sub(r"const \w+ ?[*&]", "", re.sub(r"\w+::", "", line)) for line in ran]
    words = {word for line in made for word in re.findall(r"\w+", line)}
    words |= {
        made[1] for name in names for made in re.finditer(r"(\w+)::(?:~?\1|operator=)\(", name)
    }
    return [
        one
        for one in (*types.values(), *tuples_in(split, lines))
        if facts_of(one.members)
        and len(all_facts(one, types)) >= LEAST
        and words & {one.name, *one.others}
    ]


def tuples_in(split: dict[str, list[str]], lines: set[Place]) -> Iterator[Type]:
    """The tuples that the lines create, with the names of their values."""
    for file, line in lines:
        if file in split:
            values = statement_at(split[file], line).partition("make_tuple(")[2]
            words = set(re.findall(r"[a-z_]+", values))
            named = [(kind, word) for word in words for kind in ("Key", "OpKind", "DType")]
            yield Type(f"a tuple of {file.rpartition('/')[2]}", file, named, {"make_tuple"})


def sources_of(files: set[str]) -> dict[str, str]:
    """The text of files and of the headers that they include, for the types in them."""
    texts = {file: (ROOT / file).read_text() for file in files}
    included = {name for text in texts.values() for name in re.findall(r'#include "(.*?)"', text)}
    headers = {name for name in included - files if name.startswith(CPP)}
    return {name: (ROOT / name).read_text() for name in headers} | texts


def statement_at(lines: list[str], number: int) -> str:
    """The statement that contains the line; the compiler reports its first or last line."""
    codes = [line.partition("//")[0].rstrip() for line in lines]
    begin = end = number - 1
    while begin and codes[begin - 1] and codes[begin - 1][-1] not in ";{}:":
        begin -= 1
    while end + 1 < len(codes) and codes[end] and codes[end][-1] not in ";{}:":
        end += 1
    return " ".join(codes[begin : end + 1])


def unit(file: str) -> str:
    """A header and its sources are one unit: `loops_avx2.cc`, which has no header, is `loops.h`."""
    name = file.rpartition(".")[0]
    while not (ROOT / f"{name}.h").exists() and "_" in name.rpartition("/")[2]:
        name = name.rpartition("_")[0]
    return name if (ROOT / f"{name}.h").exists() else file.rpartition(".")[0]


def folder_of(file: str) -> str:
    return str(pathlib.PurePath(file).parent)


def within(folder: str, texts: list[tuple[str, str]]) -> set[str]:
    """The texts of the files in the folder."""
    return {text for file, text in texts if folder_of(file) == folder}


def place_in_order(folder: str) -> tuple[int, str]:
    return next(n for n, each in enumerate(ORDER) if f"{folder}/".startswith(f"{each}/")), folder


def prove(short: bool) -> Table:
    built = (ROOT / "bazel-bin").resolve()
    built = pathlib.Path(*built.parts[: built.parts.index("bazel-out") + 1])
    few, _ = counts_of_job(FEW, built)
    many, python = counts_of_job(MANY, built)
    return table_of(few, many, python)


def table_of(few: list[Counted], many: list[Counted], python: set[Place]) -> Table:
    lines, _ = in_calls(few, many, "lines")
    functions, waits = in_calls(few, many, "functions")
    names = set().union(*(counted.names.get(at, ()) for counted in many for at in functions))
    sources = sources_of({file for file, _ in lines})
    forms = forms_of(sources, lines, names)
    files = {file for file, _ in functions | python}
    units = {unit(file) for file in files}
    polled = {unit(file) for file, _ in waits} - units
    serving = {name for name in units if name.startswith("base/")}
    waiting = {name for name in polled if not name.startswith("base/")}
    table = Table(
        "The table shows the path of an eager call `hvd.allreduce(t)` with 4 bytes, between two "
        "ranks on one machine. The call is part of a long series. It passes through "
        f"{len(units - serving)} files and takes {len(forms)} forms. A file counts if one of its "
        "functions runs in each call. A header and its sources count as one file, and a header "
        "that only defines types does not count. "
        f"The {len(serving)} files in `base/` that serve all other files are not counted either. "
        "With `base/`, and with headers and sources counted separately, there are "
        f"{len(files)} files. {len(waiting)} more files, in parentheses, are executed only while a "
        "rank waits. A form is a type that contains at least three values of a call: name, process "
        "set, operation, element type, size or memory. At least one of these values is a direct "
        "member. Each call creates or fills an object of the type.",
        ["folder", "files", "functions", "forms"],
    )
    add_rows(table, units, polled, functions | python, forms)
    return table


def add_rows(
    table: Table,
    units: set[str],
    polled: set[str],
    functions: set[Place],
    forms: list[Type],
) -> None:
    visited = [(name, f"`{name.rpartition('/')[2]}`") for name in units]
    visited += [(name, f"(`{name.rpartition('/')[2]}`)") for name in polled]
    ran = [(file, f"{file}:{line}") for file, line in functions]
    taken = [(one.file, f"`{one.name}`" if one.name.isidentifier() else one.name) for one in forms]
    rows = {folder_of(file) for file, _ in (*visited, *ran, *taken)}
    for folder in sorted(rows, key=place_in_order):
        names = sorted(within(folder, visited), key=lambda text: (text[0] == "(", text))
        made = ", ".join(sorted(within(folder, taken)))
        table.add(f"`{folder}/`", ", ".join(names), len(within(folder, ran)), made)
