"""The names that the processes of a job share, defined once per language."""

import ast
import functools
import pathlib
import re
import runpy

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PRODUCT = ("base", "runtime", "kernels", "tf_hvd")
CONTRACTS = ("tf_hvd/core/contract.py", "base/contract.h")
# These two are also settings, which have separate tables.
SETTINGS = ("ALONE_VARIABLE", "DUMP_FOLDER")


@functools.cache
def contract() -> dict[str, object]:
    """The constants of the contract by name."""
    values: dict[str, object] = {}
    exec((ROOT / CONTRACTS[0]).read_text(), values)
    return {name: value for name, value in values.items() if name.isupper()}


def shared_names() -> set[str]:
    """Names with no other use; without verbs such as "file"."""
    texts = {text for name, text in contract().items() if name not in SETTINGS}
    return {*contract()["MPI_SEGMENTS"], *(t for t in texts if str(t).lower().find("tf_hvd") >= 0)}


def contract_faults(path: str, text: str) -> list[str]:
    """Literals of shared names outside of the contract."""
    if path in CONTRACTS:
        return []
    if path.endswith(".py"):
        found = {n.value for n in ast.walk(ast.parse(text)) if isinstance(n, ast.Constant)}
        found = {value for value in found if isinstance(value, str) or type(value) is int}
        known = {*shared_names(), contract()["START_AGAIN"]}
    else:
        found, known = set(re.findall(r'"([^"\n]*)"', text)), shared_names()
    return [
        f"{path} contains {name!r}; use the constant of {CONTRACTS[0]}" for name in found & known
    ]


def test_shared_names_are_not_written_out():
    found = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.*")]
    chosen = [path for path in found if path.suffix in (".py", ".h", ".cc")]
    assert len(chosen) > 300
    faults = [
        fault
        for path in chosen
        for fault in contract_faults(str(path.relative_to(ROOT)), path.read_text())
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("tf_hvd/launch/job/run.py", 'JOB = "TF_HVD_JOB"\n'),
        ("tf_hvd/elastic/run.py", "raise SystemExit(75)\n"),
        ("base/processes.cc", 'return name == "tf_hvd_run_rank";\n'),
    ],
)
def test_written_out_names_are_found(path, text):
    assert contract_faults(path, text)


def test_both_languages_have_the_same_contract():
    header = (ROOT / CONTRACTS[1]).read_text()
    names = {name: set(re.findall(r'"([^"]+)"', text)) for name, text in constants(header)}
    python = {
        "".join(["k", *(word.capitalize() for word in name.split("_"))]): value
        for name, value in contract().items()
    }
    assert len(names) > 5
    for name, texts in names.items():
        value = python[name]
        assert texts == ({value} if isinstance(value, str) else set(value)), name


def constants(header: str) -> list[tuple[str, str]]:
    """The constants of a header and their values."""
    return re.findall(r"constexpr (?:const )?char\W+(k\w+)\[\] =([^;]*);", header)


def test_both_languages_have_the_same_kinds_of_collectives_and_reduce_ops():
    header = (ROOT / "base/types.h").read_text()
    rows = re.findall(r'\{"(\w+)",\s*Yield::k(\w+),\s*([^}]*)\}', header)
    table = runpy.run_path(str(ROOT / "tf_hvd/core/kinds.py"))
    kinds = table["KINDS"]
    assert len(rows) > 5
    assert [(name, words, "Reduces" in traits, "Root" in traits, "Groups" in traits)
            for name, words, traits in rows] == [
        (kind.name, "".join(word.capitalize() for word in kind.yields.name.split("_")),
         kind.reduces, kind.has_root, kind.grouped)
        for kind in kinds
    ]  # fmt: skip
    reduce_ops = re.search(r"enum class ReduceOp [^{]*{([^}]*)}", header)
    assert tuple(re.findall(r"k(\w+) = ", reduce_ops[1])) == table["REDUCE_OPS"]
