"""A model's folder on the local disk: what lies in it is the model's, whoever has packed it.

Only files are read, and links only where they stay in the folder: one that leads elsewhere would
put somebody else's file into what is written, and a pipe would be waited on for ever.
"""

from __future__ import annotations

import os
import stat

from tf_hvd.strip.errors import StripError

_SPECIAL = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def local_path(path: str) -> str | None:
    """A path of the local disk as Python takes it; None for other file systems."""
    scheme, separator, rest = path.partition("://")
    if not separator:
        return path
    return "/" + rest.partition("/")[2] if scheme == "file" else None


def check_file(path: str, folder: str | None = None) -> None:
    """Raises StripError unless `path` is a file, or a link to one within the folder.

    Args:
      path: of the local disk.
      folder: the model's; by default the one that the file is in.
    """
    _check_link(path, os.path.dirname(path) if folder is None else folder)
    kind = stat.S_IFMT(os.stat(path).st_mode)
    if kind != stat.S_IFREG:
        what = _SPECIAL.get(kind, "no file")
        raise StripError(f"{path} is {what}; a model holds files and folders only: remove it")


def _check_link(path: str, folder: str) -> None:
    if not os.path.islink(path):
        return
    target, root = os.path.realpath(path), os.path.realpath(folder)
    if os.path.commonpath([target, root]) != root:
        raise StripError(
            f"{path} is a symbolic link to {target}, outside of the model's folder; if that is "
            "part of the model, put a copy in the link's place"
        )
    if not os.path.exists(target):
        raise StripError(f"{path} is a symbolic link to {target}, which is not there; remove it")


def local_tree(folder: str, graph: str) -> list[tuple[str, int]]:
    """All files below a model's folder of the local disk but its graph: path from there, and size.

    Args:
      folder: the model's.
      graph: its file with the graph, which links may give other names.

    Raises:
      StripError: there is something else than files, folders, and links to them in the folder.
      OSError: it cannot be read.
    """
    result = []
    waiting = [("", False)]
    while waiting:
        at, linked = waiting.pop()
        for name in sorted(os.listdir(os.path.join(folder, at))):
            inside = os.path.join(at, name)
            path = os.path.join(folder, inside)
            _check_link(path, folder)
            if os.path.isdir(path):
                is_link = os.path.islink(path)
                # Of two in one another the inner may lead back to the outer.
                if is_link and linked:
                    raise StripError(
                        f"{path} is a symbolic link to a folder, in one that is reached by such "
                        "a link itself; put a copy in the link's place"
                    )
                waiting.append((inside, linked or is_link))
            else:
                check_file(path, folder)
                if not os.path.samefile(path, graph):
                    result.append((inside, os.stat(path).st_size))
    return result
