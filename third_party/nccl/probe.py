"""Prints the path of nccl.h, from the NCCL wheel or from the system, for Bazel."""

import importlib.util
import pathlib


def main() -> None:
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or []) if spec else []
    folders = [pathlib.Path(root) / "nccl" / "include" for root in roots]
    for folder in [*folders, pathlib.Path("/usr/include")]:
        if (folder / "nccl.h").exists():
            print(f"header={folder / 'nccl.h'}")
            return


main()
