"""Prints the path and the version of NVRTC 12, for Bazel.

The library compiles code for GPUs, on any machine.
"""

import importlib.metadata
import importlib.util
import pathlib


def main() -> None:
    spec = importlib.util.find_spec("nvidia")
    roots = list(spec.submodule_search_locations or []) if spec else []
    for root in roots:
        library = pathlib.Path(root) / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"
        if library.exists():
            print(f"library={library}")
            print(f"version={importlib.metadata.version('nvidia-cuda-nvrtc-cu12')}")
            return


main()
