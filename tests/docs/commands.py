"""The commands in blocks of the documentation: our own are parsed by our own parsers."""

import contextlib
import importlib.util
import io
import re
import shlex

from tf_hvd.horovod import horovodrun
from tf_hvd.launch.commands import main

# Programs of others, whose options are theirs.
OTHERS = {
    *(".", "export", "pip", "sed", "ssh-copy-id", "ssh-keygen"),
    *("mpiexec", "mpirun", "srun", "bazel", "dp", "apptainer", "docker", "cp", "mv"),
}
# Programs of a reader, which no page shows.
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
    """The options, or what the parser says is wrong."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        try:
            return parser.parse_args(words), ""
        except SystemExit:
            return None, said.getvalue().strip()


def fault(words, root, files):
    """What is wrong with a command of a page that shows `files`; "" for nothing."""
    while re.fullmatch(r"[A-Z]\w*=.*", words[0]) or words[0] == "exec":
        words = words[1:]
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
        return "" if (root / program).is_file() else f"{program} is not there"
    return "" if program in OTHERS else f"unknown program {program}"


def _python_fault(rest, root, files):
    if rest[0] == "-m":
        return "" if importlib.util.find_spec(rest[1]) else f"no module {rest[1]}"
    name = rest[0]
    there = name in READERS or name in files or (root / name).is_file()
    if there and "--" in rest:
        return fault(rest[rest.index("--") + 1 :], root, files)
    return "" if there else f"{name} is not there"
