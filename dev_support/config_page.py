"""docs/config.md: the settings of both sides, and Horovod's variables.

    .venv/bin/python dev_support/config_page.py > docs/config.md

tests/architecture_test.py compares the two.
"""

from tf_hvd.core import _native, config, horovod_variables

_PAGE = """{native}

## Python

Read by the Python side, when a collective is called or put in a graph; `init()` compares the values that they have then.

| variable | default | meaning | equal on all ranks |
|---|---|---|---|
{python}

## Log lines

The Python side logs through absl, as Keras and TensorFlow do, with absl's format and verbosity. Lines of the native library look different, `tf_hvd warning, rank 1 (host): ...`, and obey `HOROVOD_LOG_LEVEL`: they come from threads that run without Python, even while it is blocked in `init()` or ending, and so are written straight to standard error, each line in one piece.

## Horovod's variables

Every one that Horovod 0.28.1 reads, when it runs or when it is built. `init` warns, once and on rank 0, of what is set and not honoured, and of names that Horovod does not have.

| variable | here |
|---|---|
{horovods}

Ignored, without a warning: {ignored}.

`TF_HVD_NODE_DATA` replaces `HOROVOD_HIERARCHICAL_*` and `HOROVOD_TORUS_ALLREDUCE`. Options of [`tf_hvd run`](launcher.md) replace `HOROVOD_ELASTIC` and `HOROVOD_ELASTIC_TIMEOUT`.

This page is made by `dev_support/config_page.py`; a test compares the two.
"""  # noqa: E501


def main() -> None:
    """Prints the page."""
    python = [
        f"| `{s.name}` | {s.default} | {s.meaning} | {'yes' if s.equal else 'no'} |"
        for s in config.SETTINGS
    ]
    horovods = [
        f"| `{name}` | {variable.meaning} |"
        for name, variable in horovod_variables.VARIABLES.items()
    ]
    text = _PAGE.format(
        native=_native.config_markdown().strip(),
        python="\n".join(python),
        horovods="\n".join(horovods),
        ignored=", ".join(f"`{name}`" for name in sorted(horovod_variables.IGNORED)),
    )
    print(text, end="")


if __name__ == "__main__":
    main()
