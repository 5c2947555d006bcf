"""Prints where NVRTC 12 is, for Bazel: the library that compiles code for GPUs, on any machine."""

import importlib.util
import pathlib


def main() -> None:
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or []) if spec else []
    for root in roots:
        library = pathlib.Path(root) / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"
        if library.exists():
            print(f"library={library}")
            return


main()
