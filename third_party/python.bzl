"""How repository rules find and query the Python environment of TensorFlow."""

# TF_HVD_PYTHON names the interpreter. TF_HVD_ENVIRONMENT is any text that changes with the
# packages of that interpreter (./dev sets it), so that Bazel queries it again only then.
# TF_HVD_TENSORFLOW_PYTHON names another interpreter, used only for TensorFlow of another minor
# version.
PYTHON_ENVIRON = ["TF_HVD_PYTHON", "TF_HVD_ENVIRONMENT"]
TENSORFLOW_ENVIRON = PYTHON_ENVIRON + ["TF_HVD_TENSORFLOW_PYTHON"]

# An attribute from which a rule gets the workspace's folder.
WORKSPACE_ATTR = {"_workspace_file": attr.label(default = "//:WORKSPACE")}

def python_path(repository_ctx):
    """The interpreter: $TF_HVD_PYTHON, or .venv/bin/python of the workspace."""
    named = repository_ctx.os.environ.get("TF_HVD_PYTHON", "")
    if named:
        return named
    workspace = repository_ctx.path(repository_ctx.attr._workspace_file).dirname
    return str(workspace.get_child(".venv").get_child("bin").get_child("python"))

def tensorflow_python_path(repository_ctx):
    """The interpreter with the TensorFlow to build for."""
    named = repository_ctx.os.environ.get("TF_HVD_TENSORFLOW_PYTHON", "")
    return named or python_path(repository_ctx)

def ask_python(repository_ctx, script, arguments = [], timeout = 300, python = None):
    """Runs a probe script, which prints one `key=value` per line.

    Args:
      repository_ctx: context of the calling rule.
      script: label of the probe.
      arguments: its command line.
      timeout: timeout in seconds.
      python: the interpreter (default: that of python_path).

    Returns:
      A dictionary of the printed keys and values.
    """
    python = python or python_path(repository_ctx)
    if not repository_ctx.path(python).exists:
        fail("%s does not exist: run `./dev setup`, or set TF_HVD_PYTHON to a Python with TensorFlow" % python)
    result = repository_ctx.execute(
        [python, repository_ctx.path(script)] + arguments,
        timeout = timeout,
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    if result.return_code != 0:
        fail("%s failed to run %s:\n%s" % (python, script, result.stderr))
    answers = {}
    for line in result.stdout.splitlines():
        key, found, value = line.partition("=")
        if found:
            answers[key] = value
    return answers
