"""What docs/troubleshooting.md quotes is what the library and its launcher print."""

import pathlib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
SYMPTOMS = [line.split(" | ")[0] for line in PAGE.splitlines() if line.startswith("| ")]
SOURCES = "".join(
    file.read_text()
    for folder in ("tf_hvd", "runtime", "kernels")
    for file in (ROOT / folder).rglob("*")
    if file.suffix in (".py", ".cc", ".h") and not file.is_symlink()
)
OURS = [
    "the number of ranks is missing",
    "NO RANK JOINED THE JOB",
    "has no room",
    "init() has waited ",
    " is installed there, and ",
    "stall: ",
    "missing rank",
    " no collective",
    "the same name in another process set",
    "no answer from ",
    " left: ",
    " died",
    "mismatch in ",
    " is at step ",
    "a dense tensor",
    "gradients that were not ",
    " use the same GPU (number ",
]


@pytest.mark.parametrize("text", OURS)
def test_quoted_texts_are_ours(text):
    assert any(text in symptom for symptom in SYMPTOMS)
    assert text.strip() in SOURCES


def test_every_quoted_error_is_in_the_list():
    """A quote that is no name or program of the reader's is one of ours, or of TensorFlow's."""
    others = [
        "command not found",
        "Op type not registered",
        "built for another TensorFlow",
        "srun --mpi=pmi2",
    ]
    spans = [part for symptom in SYMPTOMS for part in symptom.split("`")[1::2]]
    quoted = [part for part in spans if " " in part]
    assert len(quoted) > 12
    known = [*OURS, *others, "is 'dense' on rank"]
    assert [q for q in quoted if not any(text.strip() in q for text in known)] == []
