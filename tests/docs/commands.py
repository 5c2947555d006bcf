"""The commands in the documentation's blocks: tf_hvd's own commands are parsed by their parsers."""

import contextlib
import importlib.util
import io
import re
import shlex

from tf_hvd.horovod import horovodrun
from tf_hvd.launch.commands import main

# The shell's words before a command, and those that are commands.
SHELL_KEYWORDS = {"exec", "while", "do", "done"}
BUILTINS = {"[", ":", "kill", "trap", "wait", "exit"}
# Programs of other projects, with options that are not checked.
OTHERS = {
    *(".", "export", "hostname", "pip", "sed", "ssh-copy-id", "ssh-keygen"),
    *("mpiexec", "mpirun", "srun", "bazel", "dp", "apptainer", "docker", "cp", "mv"),
    *("cd", "kubectl", "rsync", "salloc", "scontrol", "ssh"),
}
# The reader's programs, which pages do not show.
READERS = {"train.py", "their_script.py", "script.py"}


def command_lines(text, console):
    """Lists of words, one for each command."""
    lines = text.replace("\\\n", " ").splitlines()
    if console:
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    for line in lines:
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|")
        lexer.whitespace_split = True
        words = []
        for word in [*lexer, ";"]:
            if set(word) <= set(";&|"):
                if words:
                    yield words
                words = []
            else:
                words.append(word)


def _parse(parser, words):
    """The options, or the parser's error."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            return parser.parse_args(words), ""
        except SystemExit:
            return None, said.getvalue().strip()


def _without_keywords(words):
    """The command without assignments and the shell's keywords before it."""
    while words and (re.fullmatch(r"[A-Za-z]\w*=.*", words[0]) or words[0] in SHELL_KEYWORDS):
        words = words[1:]
    return words


def fault(words, root, files):
    """The fault of a command on a page that shows `files`; "" if there is none."""
    words = _without_keywords(words)
    if not words or words[0] in BUILTINS:
        return ""
    program, *rest = words
    if program in ("tf_hvd", "horovodrun"):
        parser = main.make_parser() if program == "tf_hvd" else horovodrun.make_parser()
        options, said = _parse(parser, rest)
        command = getattr(options, "command", None)
        return said if said or not command else fault(command, root, files)
    if program == "./dev":
        known = re.findall(r"^    (\w+)(?:\)| \|)", (root / "dev").read_text(), re.MULTILINE)
        return "" if rest[0] in known else f"./dev has no command {rest[0]}"
    if program in ("python", "python3"):
        return _python_fault(rest, root, files)
    if "/" in program:
        return "" if (root / program).is_file() else f"{program} does not exist"
    return "" if program in OTHERS else f"unknown program {program}"


def _python_fault(rest, root, files):
    if rest[0] == "-m":
        return "" if importlib.util.find_spec(rest[1]) else f"no module {rest[1]}"
    name = rest[0]
    there = name in READERS or name in files or (root / name).is_file()
    if there and "--" in rest:
        return fault(rest[rest.index("--") + 1 :], root, files)
    return "" if there else f"{name} does not exist"
