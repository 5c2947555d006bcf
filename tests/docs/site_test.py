"""The site is built from the current files and has the whole API; its links are valid."""

import importlib
import os
import pathlib
import re
import subprocess
import sys

import pytest
from finished import finished
from markdown_it import MarkdownIt

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The pages. A broken link, or a page missing in mkdocs.yml, fails the build."""
    folder = tmp_path_factory.mktemp("site")
    done = finished(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        env=dict(os.environ, NO_MKDOCS_2_WARNING="1"),
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return folder


def public_names():
    """The names that the API page must have: `__all__`, and the callbacks."""
    for public in importlib.import_module("tf_hvd").__all__:
        if public not in ("callbacks", "elastic"):  # these are sections
            yield f"tf_hvd.{public}"
    callbacks = importlib.import_module("tf_hvd.keras.callbacks")
    for public in vars(callbacks.of(importlib.import_module("keras"))):
        yield f"tf_hvd.keras.callbacks.{public}"


def test_api_page_has_every_public_name(site):
    page = (site / "api.html").read_text()
    here = set(re.findall(r'id="(tf_hvd[\w.]*)"', page))
    assert set(public_names()) - here == set()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_of_pages_outside_the_site_exist(page):
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
