"""docs/collectives.md says what the library says of itself."""

import importlib.util
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]


def load_table():
    path = ROOT / "dev_support" / "collectives_table.py"
    spec = importlib.util.spec_from_file_location("collectives_table", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


table = load_table()


def test_page_is_what_the_library_says():
    assert (ROOT / "docs/collectives.md").read_text() == table.page(), (
        "make it anew: .venv/bin/python dev_support/collectives_table.py > docs/collectives.md"
    )


def test_every_registered_op_is_in_the_table():
    rows = [*table.operations(), *table.plain_operations()]
    assert {row.op_type for row in rows} == table.registered()
