"""docs/collectives.md agrees with the library's own tables."""

import pathlib

import collectives_table as table

ROOT = pathlib.Path(__file__).resolve().parents[3]


def test_page_matches_the_library():
    assert (ROOT / "docs/collectives.md").read_text() == table.page(), (
        "run: .venv/bin/python dev_support/collectives_table.py > docs/collectives.md"
    )


def test_every_registered_op_is_in_the_table():
    rows = [*table.operations(), *table.plain_operations()]
    assert {row.op_type for row in rows} == table.registered()
