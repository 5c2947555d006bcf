"""Predicts the share of nccl-tests' bus bandwidth that a step's reduction reaches: a model.

No GPU is used: all figures are assumptions that options can change. The first real run
(tests/gpu/first_hour.sh, nccl-tests' all_reduce_perf) shows which of them are wrong. The model
omits kernels that share memory bandwidth with NCCL, and TensorFlow's own kernels.
"""

from __future__ import annotations

import argparse
import dataclasses

MIB = 1 << 20
HALF = 32 * MIB  # of the staging memory (GpuOptions)
CALL = 128 * MIB  # GpuLimits::call_bytes


@dataclasses.dataclass
class Machine:
    """Times in microseconds, bandwidths in GB/s."""

    ranks: int
    bus: float
    latency: float
    memory: float
    launch: float
    handover: float

    def nccl(self, size: int) -> float:
        """Time of an allreduce as all_reduce_perf measures it.

        The bus bandwidth is 2 (n - 1) / n of the bandwidth.
        """
        return self.latency + size * 2 * (self.ranks - 1) / self.ranks / self.bus / 1e3

    def move(self, size: int) -> float:
        """Time of a launch that packs or unpacks: it reads and writes each byte."""
        return self.launch + 2 * size / self.memory / 1e3


def pieces_of(size: int, most: int) -> list[int]:
    """Sizes of the pieces into which `size` bytes are cut."""
    return [min(most, size - at) for at in range(0, size, most)]


def packed(machine: Machine, sizes: list[int]) -> float:
    """Time of pieces that are packed, reduced and unpacked on three streams, in two halves."""
    free = [0.0, 0.0]
    pack = call = unpack = 0.0
    for number, size in enumerate(sizes):
        half = number % 2
        pack = max(pack, free[half]) + machine.move(size)
        call = max(call, pack + machine.handover) + machine.nccl(size)
        unpack = max(unpack, call + machine.handover) + machine.move(size)
        free[half] = unpack + machine.handover
    return unpack


def in_place(machine: Machine, sizes: list[int], scaled: bool) -> float:
    """Time of tensors that are reduced in place; `scaled`: an average, divided after the sum."""
    call = unpack = 0.0
    for size in sizes:
        call += machine.nccl(size)
        unpack = max(unpack, call + machine.handover)
        unpack += machine.move(size) if scaled else 0.0
    return unpack


def one_stream(machine: Machine, sizes: list[int]) -> float:
    """Time on one stream, one piece after the other, as before ADR 23."""
    return sum(machine.nccl(size) + 2 * machine.move(size) for size in sizes)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--ranks", type=int, default=8, help="number of GPUs on the machine (default: 8)"
    )
    parser.add_argument(
        "--bus", type=float, default=450, help="NCCL's bus bandwidth in GB/s (default: 450)"
    )
    parser.add_argument(
        "--latency", type=float, default=25, help="latency of an NCCL call in us (default: 25)"
    )
    parser.add_argument(
        "--memory",
        type=float,
        default=2400,
        help="bandwidth of packing kernels in GB/s (default: 2400)",
    )
    parser.add_argument(
        "--launch", type=float, default=4, help="launch time of a kernel in us (default: 4)"
    )
    parser.add_argument(
        "--handover", type=float, default=3, help="time from stream to stream in us (default: 3)"
    )
    machine = Machine(**vars(parser.parse_args()))
    print("share of nccl-tests' bus bandwidth\n")
    columns = ("MiB", "nccl-tests, us", "small tensors", "one large", "averaged", "one stream")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for mib in (1, 4, 16, 32, 64, 128, 256, 1024):
        size = mib * MIB
        peer = machine.nccl(size)
        ways = (
            packed(machine, pieces_of(size, HALF)),
            in_place(machine, pieces_of(size, CALL), scaled=False),
            in_place(machine, pieces_of(size, CALL), scaled=True),
            one_stream(machine, pieces_of(size, 2 * HALF)),
        )
        shares = " | ".join(f"{peer / way:.0%}" for way in ways)
        print(f"| {mib} | {peer:.0f} | {shares} |")


if __name__ == "__main__":
    main()
