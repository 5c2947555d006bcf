"""Compares the names and numbers in pages with the code. Each rule must also find a fault."""

import functools
import importlib
import pathlib
import re
import sys
import types

import plain_english
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRODUCT = ("base/", "compute/", "kernels/", "ops/", "runtime/", "tf_hvd/")
TOOLS = ("tests/", "dev", "benchmarks/", "build_defs/", "third_party/", ".ci/")
SOURCES = {".cc", ".cu", ".h", ".py"}
# A page that means another module by `hvd` declares it: <!-- hvd: horovod.tensorflow -->
DECLARED = re.compile(r"<!-- hvd: ([\w.]+) -->")
# Names of files that only users have, or that a program makes.
ELSEWHERE = re.compile(r"^(/|~|\.\.?/|env/|dist/|build/|bazel-|https?:)|[<>$( ]|NAME")


@functools.cache
def tracked() -> frozenset[str]:
    own = pathlib.Path(__file__).resolve().relative_to(ROOT)  # it names what does not exist
    return frozenset(plain_english.checkout_files()) - {str(own)}


@functools.cache
def places() -> frozenset[str]:
    """All tracked files and their folders."""
    folders = {str(up) for name in tracked() for up in pathlib.PurePath(name).parents}
    return tracked() | folders


def pages() -> list[pathlib.Path]:
    """All Markdown files but the changelog, which names what was there once."""
    dated = ("CHANGELOG.md",)
    names = sorted(n for n in tracked() if n.endswith(".md") and not n.startswith(dated))
    return [ROOT / name for name in names]


def code_spans(text: str) -> list[str]:
    """Texts in single backticks, outside of code blocks."""
    outside = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", outside)]


@pytest.fixture(autouse=True)
def same_convention(monkeypatch):
    """Importing Horovod's names decides the convention of the process, for later tests too."""
    convention = importlib.import_module("tf_hvd.core.convention").Convention
    monkeypatch.setattr(convention, "name", convention.name)


@functools.cache
def imported(name: str) -> types.ModuleType:
    """A module; Horovod's names are imported as `tf_hvd run --as-horovod` does it."""
    as_horovod = str(
        pathlib.Path(importlib.import_module("tf_hvd").__file__).parent / "_as_horovod"
    )
    sys.path.insert(0, as_horovod)
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(as_horovod)
        for loaded in [m for m in sys.modules if m.partition(".")[0] == "horovod"]:
            del sys.modules[loaded]


def unresolved_names(text: str) -> list[str]:
    """Each `hvd.NAME` of a page that the module it means does not have."""
    declared = DECLARED.search(text)
    module = imported(declared.group(1) if declared else "tf_hvd")
    unresolved = []
    for dotted in sorted(set(re.findall(r"\bhvd\.([a-zA-Z_]\w*(?:\.\w+)*)", text))):
        value = module
        for part in dotted.split("."):
            if not hasattr(value, part):
                unresolved.append(f"hvd.{dotted}")
                break
            value = getattr(value, part)
            if not isinstance(value, type | types.ModuleType):
                break  # attributes of methods and instances are not checked
    return unresolved


def braces(span: str) -> list[str]:
    """The names that `runtime/{p2p,shm}` stands for."""
    found = re.fullmatch(r"(.*?)\{([^{}]*)\}(.*)", span)
    if not found:
        return [span]
    before, names, after = found.groups()
    return [whole for name in names.split(",") for whole in braces(before + name.strip() + after)]


def is_dated(text: str, name: str) -> bool:
    """Whether a line with this name says that it was removed, or in which commit it is."""
    lines = [line for line in text.splitlines() if name in line]
    return any(re.search(r"\bremoved\b|\bof commit\b", line) for line in lines)


def missing_paths(text: str) -> list[str]:
    """Paths in backticks that begin like one of the checkout's, and what tests they name."""
    tops = {name.split("/")[0] for name in tracked() if "/" in name}
    missing = []
    for span in code_spans(text):
        for word in span.split():
            path, _, test = word.strip("(),;:").partition("::")
            is_source = re.fullmatch(r"\w+(_test\.py|\.cc)", path)
            if ELSEWHERE.search(path) or not (
                (path.split("/")[0] in tops and "/" in path) or is_source
            ):
                continue
            for name in braces(path.partition("#")[0].rstrip("/")):
                function = f"def {test.partition('[')[0]}("
                gone = not exists(name) or (test and function not in (ROOT / name).read_text())
                if gone and not is_dated(text, word):
                    missing.append(word)
    return missing


def exists(name: str) -> bool:
    if "*" in name:
        return any(pathlib.PurePath(place).match(name) for place in places())
    if "/" not in name:
        return any(place.endswith(f"/{name}") or place == name for place in places())
    return name in places() or any(f"{name}.{end}" in places() for end in ("py", "cc", "h"))


def unknown_commands(text: str) -> list[str]:
    """Each `./dev NAME`, and `./dev prove NAME`, that there is not."""
    commands = set(
        re.findall(r"^    ([a-z]+)(?: \| -h \| --help)?\)$", (ROOT / "dev").read_text(), re.M)
    )
    assert {"build", "prove", "train", "help"} <= commands
    unknown = [name for name in re.findall(r"\./dev ([a-z]+)", text) if name not in commands]
    named = re.findall(r"\./dev prove ([a-z]+)", text)
    return unknown + [f"prove {name}" for name in named if name not in proofs()]


def proofs() -> list[str]:
    declared = re.search(r"PROOFS=\(([^)]*)\)", (ROOT / "dev_support/prove.sh").read_text())
    return declared.group(1).split()


@functools.cache
def product_sources() -> dict[str, str]:
    """The texts of the product's sources, by path."""
    named = [n for n in sorted(tracked()) if n.startswith(PRODUCT)]
    chosen = [name for name in named if pathlib.PurePath(name).suffix in SOURCES]
    assert len(chosen) > 300
    return {name: (ROOT / name).read_text() for name in chosen}


@functools.cache
def read_variables() -> frozenset[str]:
    """The variables that the product reads: their names are whole strings in its sources."""
    texts = product_sources().values()
    return frozenset(v for text in texts for v in re.findall(r"\"(TF_HVD_[A-Z_]+[A-Z])\"", text))


@functools.cache
def internal_variables() -> frozenset[str]:
    """Those by which a job's processes speak to each other."""
    contract = (ROOT / "tf_hvd/core/contract.py").read_text()
    before_settings = contract.partition("# This one is a setting")[0]
    return frozenset(re.findall(r'= "(TF_HVD_\w+)"', before_settings))


def variable_faults(settings_page: str) -> list[str]:
    """Variables that are read and not listed, or listed and not read."""
    listed = set(re.findall(r"^\| `(TF_HVD_\w+)`", settings_page, re.M))
    unlisted = read_variables() - internal_variables() - listed
    return sorted({*unlisted, *(listed - read_variables())})


def unlisted_variables(text: str) -> list[str]:
    """The TF_HVD_ variables of a page that nothing reads."""
    others = read_variables() | internal_variables() | variables_of_tools()
    named = set(re.findall(r"\bTF_HVD_[A-Z_]+[A-Z]\b(?!\*)", text))
    unknown = sorted(name for name in named if name not in others and f"{name}_" not in text)
    return [name for name in unknown if not is_dated(text, name)]


@functools.cache
def variables_of_tools() -> frozenset[str]:
    """Variables of tests and of the checkout's tools."""
    return frozenset(re.findall(r"\bTF_HVD_[A-Z_]+[A-Z]\b", text_of(TOOLS)))


def package_faults(contributing: str) -> list[str]:
    """Packages of the requirement files that the table lacks, and those that only it has."""
    table = contributing.partition("## Dependencies")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| ")][1:]
    listed = {plain(name) for row in rows for name in re.sub(r"\(.*?\)", "", row).split(",")}
    text = plain(text_of(("dev", "pip_package/", "WORKSPACE", "tests/", "tf_hvd/")))
    unused = sorted(name for name in listed if name.split()[0] not in text)
    return sorted(required_packages() - listed) + unused


def required_packages() -> set[str]:
    """The packages that the requirement files name."""
    lines = [line.strip() for line in text_of(("dev_support/requirements/",)).splitlines()]
    return {plain(re.split(r"[<>=!~\[; ]", line)[0]) for line in lines if line[:1].isalnum()}


def text_of(folders: tuple[str, ...]) -> str:
    """The text of all files in these folders, except for pages."""
    chosen = [n for n in sorted(tracked()) if n.startswith(folders) and not n.endswith(".md")]
    return "\n".join((ROOT / name).read_text(errors="ignore") for name in chosen)


def plain(name: str) -> str:
    """A package's name as PyPI compares them."""
    return re.sub(r"[-_.]+", "-", name.strip().strip("`")).lower()


def evidence_faults(text: str) -> list[str]:
    """Sections without a commit, and folders of the product that the coverage lacks."""
    faults = []
    for section in text.split("\n## ")[1:]:
        name = section.partition("\n")[0]
        made = re.search(r"`\./dev prove (\w+)`, (\d{4}-\d\d-\d\d), commits? [0-9a-f]{7,}", section)
        if not made:
            faults.append(f"{name}: no date and commit")
    coverage = text.partition("## coverage")[2].partition("\n## ")[0]
    measured = set(re.findall(r"^\| ([a-z]\w*(?:/\w+)*) \| \d+ \| \d+ \|", coverage, re.M))
    gone = [folder for folder in sorted(measured) if folder not in places()]
    return faults + gone + sorted(product_folders() - measured)


def product_folders() -> set[str]:
    """The folders that the coverage counts: those with statements."""
    named = [pathlib.PurePath(n) for n in tracked() if n.startswith(PRODUCT)]
    found = {str(path.parent) for path in named if path.suffix in (".py", ".cc")}
    # A single file each, which programs import as `horovod` and `keras`.
    return {f for f in found if not f.startswith(("tf_hvd/_as_horovod", "tf_hvd/_as_keras"))}


def checkout_pointers(path: str, text: str) -> list[str]:
    """Strings of the wheel's sources that send a user to a file of the checkout."""
    if path.endswith(".py"):
        text = re.sub(r'"""(?:.|\n)*?"""', "", text)
    else:
        text = re.sub(r"//.*", "", text)
    strings = re.findall(r'"((?:[^"\\\n]|\\.)*)"', re.sub(r"^\s*#.*", "", text, flags=re.M))
    return [f"{path}: {s}" for s in strings if re.search(r"\bdocs/\w+\.md|\b[A-Z]{4,}\.md", s)]


PAGE_RULES = (unresolved_names, missing_paths, unknown_commands, unlisted_variables)


@pytest.mark.parametrize("rule", PAGE_RULES)
def test_pages_state_what_exists(rule):
    found = {str(p.relative_to(ROOT)): rule(p.read_text()) for p in pages()}
    assert len(found) > 40
    assert {page: faults for page, faults in found.items() if faults} == {}


@pytest.mark.parametrize(
    ("rule", "text", "fault"),
    [
        (unresolved_names, "call `hvd.allreduce_all(x)`", "hvd.allreduce_all"),
        (unresolved_names, "`hvd.callbacks.NoSuchCallback()`", "hvd.callbacks.NoSuchCallback"),
        (unresolved_names, "<!-- hvd: tf_hvd.elastic -->\n`hvd.Tensor`", "hvd.Tensor"),
        (missing_paths, "`tests/stall_test.py` shows it", "tests/stall_test.py"),
        (missing_paths, "`runtime/{api,gone}`", "runtime/{api,gone}"),
        (missing_paths, "`tests/many_ranks_test.py::test_99`", "tests/many_ranks_test.py::test_99"),
        (missing_paths, "as `counting_tree.cc` does", "counting_tree.cc"),
        (unknown_commands, "`./dev bench` does", "bench"),
        (unknown_commands, "`./dev prove interrupts`", "prove interrupts"),
        (unlisted_variables, "`TF_HVD_ELASTIC_STANDBY=off`", "TF_HVD_ELASTIC_STANDBY"),
        (variable_faults, "| `TF_HVD_NO_SUCH` | 0 |", "TF_HVD_NO_SUCH"),
        (variable_faults, "", "TF_HVD_MPI_LIBRARY"),
        (package_faults, "## Dependencies\n| x | y |\n|---|\n| leftpad | run |", "leftpad"),
        (package_faults, "## Dependencies\n| x | y |\n|---|\n| numpy | run |", "pytest"),
        (evidence_faults, "\n## soak\n`./dev prove soak`, 2 cores", "soak: no date and commit"),
        (evidence_faults, "\n## coverage\n| runtime/wire | 10 | 10 | 100 % |", "runtime/wire"),
        (evidence_faults, "\n## coverage\n| base | 10 | 10 | 100 % |", "runtime/api"),
    ],
)  # fmt: skip
def test_the_rule_finds_a_fault(rule, text, fault):
    assert fault in rule(text)


def test_every_variable_that_is_read_is_listed():
    assert variable_faults((ROOT / "docs/config.md").read_text()) == []


def test_contributing_lists_packages_and_proofs():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert package_faults(text) == []
    listed = re.search(r"The proofs are (.*?)\.", text, re.S).group(1)
    assert sorted(re.findall(r"`(\w+)`", listed)) == sorted(proofs())


def test_evidence_names_its_commits_and_covers_all_folders():
    assert evidence_faults((ROOT / "docs/evidence.md").read_text()) == []


def test_no_message_of_the_wheel_points_into_the_checkout():
    sources = product_sources().items()
    assert [fault for name, text in sources for fault in checkout_pointers(name, text)] == []
    assert checkout_pointers("a.cc", '// docs/a.md\nerror("see docs/errors.md");') == [
        "a.cc: see docs/errors.md"
    ]


if __name__ == "__main__":  # for another checkout's pages: python facts_test.py FOLDER
    for page in sorted(pathlib.Path(sys.argv[1]).rglob("*.md")):
        for rule in PAGE_RULES:
            sys.stdout.writelines(f"{page}: {fault}\n" for fault in rule(page.read_text()))
