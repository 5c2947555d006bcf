"""How repository rules find and ask the Python that TensorFlow lives in."""

# TF_HVD_PYTHON names the interpreter. TF_HVD_ENVIRONMENT is any text that
# changes when the packages of that interpreter do (./dev sets it), so that
# Bazel asks again then and only then. TF_HVD_TENSORFLOW_PYTHON names another
# interpreter to ask for TensorFlow alone: that of another minor version.
PYTHON_ENVIRON = ["TF_HVD_PYTHON", "TF_HVD_ENVIRONMENT"]
TENSORFLOW_ENVIRON = PYTHON_ENVIRON + ["TF_HVD_TENSORFLOW_PYTHON"]

# An attribute through which a rule learns where the workspace is.
WORKSPACE_ATTR = {"_workspace_file": attr.label(default = "//:WORKSPACE")}

def python_path(repository_ctx):
    """The interpreter: $TF_HVD_PYTHON, or .venv/bin/python of the workspace."""
    named = repository_ctx.os.environ.get("TF_HVD_PYTHON", "")
    if named:
        return named
    workspace = repository_ctx.path(repository_ctx.attr._workspace_file).dirname
    return str(workspace.get_child(".venv").get_child("bin").get_child("python"))

def tensorflow_python_path(repository_ctx):
    """The interpreter whose TensorFlow is built for."""
    named = repository_ctx.os.environ.get("TF_HVD_TENSORFLOW_PYTHON", "")
    return named or python_path(repository_ctx)

def ask_python(repository_ctx, script, arguments = [], timeout = 300, python = None):
    """Runs a probe script, which prints one `key=value` per line.

    Args:
      repository_ctx: of the calling rule.
      script: label of the probe.
      arguments: its command line.
      timeout: in seconds.
      python: the interpreter; python_path's where it is not given.

    Returns:
      A dictionary of what it printed.
    """
    python = python or python_path(repository_ctx)
    if not repository_ctx.path(python).exists:
        fail("%s does not exist: run `./dev setup`, or set TF_HVD_PYTHON to a Python that has TensorFlow" % python)
    result = repository_ctx.execute(
        [python, repository_ctx.path(script)] + arguments,
        timeout = timeout,
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    if result.return_code != 0:
        fail("%s cannot answer (%s):\n%s" % (python, script, result.stderr))
    answers = {}
    for line in result.stdout.splitlines():
        key, found, value = line.partition("=")
        if found:
            answers[key] = value
    return answers
