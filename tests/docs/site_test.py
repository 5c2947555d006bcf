"""The site is built from the files at hand, and has the whole API; links lead somewhere."""

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
    """The pages. A link that leads nowhere, and a page that mkdocs.yml does not list, end it."""
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
