"""The release: its workflow, the version, and the templates on GitHub.

GitHub runs the workflow. Here each of its commands is looked up in the checkout, and the commands
that need no network are run.
"""

import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest
import yaml
from finished import finished

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "dev_support"))
sys.path.append(str(ROOT / "pip_package"))

import release  # noqa: E402
from wheel_file import index_page, metadata_text  # noqa: E402

WORKFLOW = ROOT / ".github/workflows/release.yml"
# Programs of GitHub's machines and of the images.
OTHERS = {"apt-get", "cp", "dnf", "docker", "gh", "grep", "mkdir", "xargs"}
SHELL = {"do", "done", "for"}


@pytest.fixture(scope="module")
def jobs():
    return yaml.safe_load(WORKFLOW.read_text())["jobs"]


def needed_by(jobs, name):
    """All jobs that must succeed before this one."""
    direct = jobs[name].get("needs", [])
    direct = [direct] if isinstance(direct, str) else direct
    return set(direct).union(*(needed_by(jobs, other) for other in direct))


def test_nothing_is_published_before_all_checks_have_passed(jobs):
    checks = {name for name in jobs if not name.startswith("publish_")}
    assert checks == {"version", "tests", "wheel", "smoke", "docs", "images"}
    for name in jobs.keys() - checks:
        assert checks <= needed_by(jobs, name), name
        assert jobs[name]["if"] == "needs.version.outputs.publish == 'true'", name


def test_only_jobs_that_publish_may_write(jobs):
    assert yaml.safe_load(WORKFLOW.read_text())["permissions"] == {"contents": "read"}
    for name, job in jobs.items():
        assert ("write" in job.get("permissions", {}).values()) == name.startswith("publish_"), name


def test_a_run_by_hand_publishes_nothing_by_default(jobs):
    text = WORKFLOW.read_text()
    triggers = yaml.safe_load(text)[True]  # YAML 1.1 reads the key `on` as a boolean
    assert triggers["push"] == {"tags": ["v*"]}
    assert triggers["workflow_dispatch"]["inputs"]["dry_run"]["default"] is True
    assert jobs["version"]["outputs"]["publish"] == (
        "${{ github.ref_type == 'tag' && (github.event_name == 'push' || !inputs.dry_run) }}"
    )


def scripts(jobs):
    """Each `run` with the name of its job; a matrix's commands in place of its variable."""
    for name, job in jobs.items():
        rows = job.get("strategy", {}).get("matrix", {}).get("include", [{}])
        for step in job.get("steps", []):
            for row in rows:
                if script := step.get("run"):
                    yield name, re.sub(r"\$\{\{ matrix\.(\w+) }}", lambda m: row[m[1]], script)  # noqa: B023


def commands_of(script):
    """Lists of words, one for each command."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        words = []
        for word in [*lexer, ";"]:
            if not set(word) <= set(";&|"):
                words.append(word)
            elif words:
                yield words
                words = []


def fault(words):
    """Why a command cannot run; "" if it can."""
    program, *rest = words
    if program == "./dev":
        known = re.findall(r"^    (\w+)(?:\)| \|)", (ROOT / "dev").read_text(), re.MULTILINE)
        return "" if rest[0] in known else f"./dev has no command {rest[0]}"
    if program in ("bash", "python3", ".venv/bin/python") and rest[0] != "-m":
        return "" if (ROOT / rest[0]).is_file() else f"no file {rest[0]}"
    if program in SHELL | OTHERS | {"python3", ".venv/bin/python"} or re.match(r"\w+=", program):
        return ""
    return f"unknown program {program}"


def test_each_command_exists(jobs):
    found = [(name, words) for name, script in scripts(jobs) for words in commands_of(script)]
    assert len(found) > 15
    assert [(name, words, fault(words)) for name, words in found if fault(words)] == []


@pytest.mark.parametrize("line", ["./dev publish", "python3 dev_support/no.py", "nothing x"])
def test_a_wrong_command_is_found(line):
    assert fault(line.split())


def test_each_script_is_valid_for_its_shell(jobs):
    for name, script in scripts(jobs):
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
        assert done.returncode == 0, (name, done.stderr)


def test_options_of_the_wheel_are_those_of_dev(jobs):
    """`--release --portable` is parsed by the function that ./dev calls."""
    (line,) = [w for _, s in scripts(jobs) for w in commands_of(s) if w[:2] == ["./dev", "wheel"]]
    program = (
        'die() { echo "$*"; exit 1; }; ROOT=. CACHE=.; source dev_support/wheels.sh;'
        'parse_wheel_options "$@"; echo "${RELEASE}${PORTABLE} ${MINORS[*]}"'
    )
    done = finished(["bash", "-euc", program, "bash", *line[2:]], cwd=ROOT)
    assert done.returncode == 0, done.stdout
    assert done.stdout.split()[0] == "11"
    assert jobs["smoke"]["strategy"]["matrix"]["include"][0]["minors"] in done.stdout


def test_the_images_are_built_from_files_of_the_checkout(jobs):
    checked = jobs["images"]["strategy"]["matrix"]["file"]
    published = [row["file"] for row in jobs["publish_images"]["strategy"]["matrix"]["include"]]
    assert checked == published
    assert all((ROOT / "containers" / name).is_file() for name in checked)


def test_the_version_is_written_once():
    """Other files read it; changelog and tag are compared with it."""
    version = release.version_of(ROOT)
    listed = finished(["git", "-c", "safe.directory=*", "ls-files"], cwd=ROOT).stdout.split()
    sources = [
        n for n in listed if n.endswith((".toml", ".bzl", ".cff", ".yml", ".sh", ".cc", ".h"))
    ]
    sources += [n for n in listed if n.startswith(("tf_hvd", "pip_package")) and n.endswith(".py")]
    written = re.compile(rf"(?<![\d.]){re.escape(version)}(?![\d.])")
    found = [n for n in set(sources) if written.search((ROOT / n).read_text())]
    assert found == ["pip_package/version.bzl"]


@pytest.fixture
def checkout(tmp_path):
    """A checkout of version 1.2.3, released on 2030-01-02."""
    (tmp_path / "pip_package").mkdir()
    (tmp_path / "pip_package/version.bzl").write_text('"""Doc."""\n\nVERSION = "1.2.3"\n')
    shutil.copy(ROOT / "pip_package/metadata.toml", tmp_path / "pip_package")
    text = "# Changelog\n\n## [1.2.3] - 2030-01-02\n\n- New.\n\n## [1.2.2] - 2029-01-01\n\n- Old.\n"
    (tmp_path / "CHANGELOG.md").write_text(text)
    return tmp_path


def test_this_checkout_can_be_released():
    """The changelog has a section for the version; its date is written on the day."""
    script = [sys.executable, str(ROOT / "dev_support/release.py")]
    assert finished([*script, "check"]).stdout.startswith(f"{release.version_of(ROOT)}, ")
    assert finished([*script, "notes"]).stdout.count("\n### ") >= 2


def test_a_tag_is_compared_with_the_version(checkout):
    assert release.check(checkout, "v1.2.3") == "1.2.3, 2030-01-02, tag v1.2.3"
    assert release.changes_of(checkout, "1.2.3") == ("2030-01-02", "- New.")
    with pytest.raises(release.ReleaseError, match=re.escape("The tag is v1.2.4, but")):
        release.check(checkout, "v1.2.4")


def test_a_tag_needs_a_date_in_the_changelog(checkout):
    path = checkout / "CHANGELOG.md"
    path.write_text(path.read_text().replace("2030-01-02", "unreleased"))
    assert release.check(checkout, "") == "1.2.3, unreleased"
    with pytest.raises(release.ReleaseError, match="has 'unreleased' as the date"):
        release.check(checkout, "v1.2.3")
    path.write_text("# Changelog\n")
    with pytest.raises(release.ReleaseError, match="no section"):
        release.check(checkout, "")


def make_wheel(folder, version, readme="x\n"):
    metadata = tomllib.loads((ROOT / "pip_package/metadata.toml").read_text())
    path = folder / f"tf_hvd-{version}-py3-none-manylinux_2_27_x86_64.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        text = metadata_text(metadata, version, ["2.18", "2.21"], readme)
        wheel.writestr(f"tf_hvd-{version}.dist-info/METADATA", text)
    return path


def test_a_wheel_is_compared_with_the_checkout(checkout):
    wheel = make_wheel(checkout, "1.2.3")
    assert release.check_wheel(checkout, wheel).startswith(f"{wheel.name}, ")
    with pytest.raises(release.ReleaseError, match="not tf_hvd-"):
        release.check_wheel(checkout, make_wheel(checkout, "1.2.4"))
    changed = checkout / "pip_package/metadata.toml"
    changed.write_text(changed.read_text().replace("4 - Beta", "3 - Alpha"))
    with pytest.raises(release.ReleaseError, match="not that of this checkout"):
        release.check_wheel(checkout, wheel)


def test_metadata_is_accepted_by_pypi(tmp_path):
    """twine's own check, with the README as the description."""
    wheel = make_wheel(tmp_path, "1.2.3", (ROOT / "README.md").read_text())
    done = finished([sys.executable, "-m", "twine", "check", "--strict", wheel])
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_index_shows_the_readme_with_links_that_work():
    urls = {"Documentation": "https://site/", "Source": "https://source"}
    text = "[a](docs/adr/01-a.md#b) ![c](docs/images/c.svg) [d](x.md) [e](https://e) [f](#g)"
    assert index_page(text, urls) == (
        "[a](https://site/adr/01-a.html#b) ![c](https://site/images/c.svg) "
        "[d](https://source/blob/main/x.md) [e](https://e) [f](#g)"
    )


def test_addresses_are_the_same_everywhere():
    urls = tomllib.loads((ROOT / "pip_package/metadata.toml").read_text())["urls"]
    (site,) = re.findall(r"^site_url: (\S+)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert urls["Documentation"] == site == citation["url"]
    assert urls["Source"] == citation["repository-code"]
