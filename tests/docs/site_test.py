"""The site is built from the files at hand, and its pages load nothing from elsewhere."""

import importlib
import os
import pathlib
import re
import subprocess
import sys

import pytest
from markdown_it import MarkdownIt

ROOT = pathlib.Path(__file__).resolve().parents[2]
# What a browser fetches by itself when it opens a page; links are only followed on demand.
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|link)\b[^>]*?(?:src|href)=["']?(?:https?:)?//[^"' >]*"""
)


def build(folder, *arguments, cwd=ROOT):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    return subprocess.run(
        [*command, *arguments],
        cwd=cwd,
        env=dict(os.environ, NO_MKDOCS_2_WARNING="1"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_each_page_is_built(site):
    pages = {page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")}
    assert len(pages) > 30
    assert [page for page in pages if not (site / page.with_suffix(".html")).is_file()] == []


def test_pages_load_nothing_from_elsewhere(site):
    fetched = {
        found
        for page in site.rglob("*.html")
        for found in FETCHED.findall(page.read_text())
        if 'rel="canonical"' not in found
    }
    assert fetched == set()
    styles = [
        style for style in site.rglob("*.css") if re.search(r"url\(.?https?:", style.read_text())
    ]
    assert styles == []


def test_what_a_browser_fetches_is_found():
    assert FETCHED.search('<script async src="https://unpkg.com/mermaid.js"></script>')
    assert FETCHED.search('<link rel="stylesheet" href="//fonts.googleapis.com/css">')
    assert not FETCHED.search('<a href="https://docs.open-mpi.org/">')


@pytest.mark.parametrize(
    "line", ["[page](nowhere.md)", "[part](errors.md#nowhere)", "::: tf_hvd.nothing"]
)
def test_a_link_that_leads_nowhere_is_an_error(line, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "tf_hvd").symlink_to(ROOT / "tf_hvd")
    (tmp_path / "dev_support").symlink_to(ROOT / "dev_support")
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    (tmp_path / "mkdocs.yml").write_text(settings)
    (tmp_path / "docs/errors.md").write_text("# Errors\n")
    index = tmp_path / "docs/index.md"
    index.write_text("# Page\n\n[errors](errors.md#errors)\n")
    assert build(tmp_path / "site", cwd=tmp_path).returncode == 0
    index.write_text(f"# Page\n\n{line}\n")
    assert build(tmp_path / "site", cwd=tmp_path).returncode != 0


def public_names():
    """What the API page must have: `__all__` of both packages, and the callbacks."""
    for name in ("tf_hvd", "tf_hvd.keras"):
        for public in importlib.import_module(name).__all__:
            yield f"{name}.{public}"
    callbacks = importlib.import_module("tf_hvd.keras.callbacks")
    for public in vars(callbacks.of(importlib.import_module("keras"))):
        yield f"tf_hvd.keras.callbacks.{public}"


def test_api_page_has_every_public_name(site):
    page = (site / "api.html").read_text()
    here = set(re.findall(r'id="(tf_hvd[\w.]*)"', page))
    roots = {name.rpartition(".")[2] for name in here}
    wanted = {name for name in public_names() if name not in here}
    # tf_hvd.keras hands on names of tf_hvd, which stand on the page once.
    assert {name for name in wanted if not name.startswith("tf_hvd.keras.")} == set()
    assert {name for name in wanted if name.rpartition(".")[2] not in roots} == set()


def test_api_page_has_the_rules_of_all_collectives(site):
    """They had moved to another module than the one that the page showed."""
    assert "A request is known to the other ranks by a name." in (site / "api.html").read_text()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_pages_beside_the_site_link_to_what_is_there(page):
    tokens = MarkdownIt("commonmark").enable("table").parse((ROOT / page).read_text())
    links = [
        child.attrs["href"]
        for token in tokens
        for child in token.children or ()
        if child.type == "link_open"
    ]
    local = [link.partition("#")[0] for link in links if "://" not in link]
    assert local
    assert [link for link in local if link and not (ROOT / link).exists()] == []


def test_pictures_are_those_of_the_script(tmp_path):
    script = ROOT / "dev_support/pictures.py"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    drawn = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert drawn == {f.name: f.read_text() for f in (ROOT / "docs/images").glob("*.svg")}
