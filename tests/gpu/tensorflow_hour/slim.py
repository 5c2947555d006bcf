"""Removes parts of libraries that a borrowed machine does not need: symbols, other GPUs' code.

TensorFlow's wheel for GPUs is a zip of 546 MiB. Its libraries end with tables for debuggers. They
contain each kernel as machine code for four generations of GPUs and as PTX for later ones. That
code is already compressed, so only removing it makes the wheel smaller.
"""

from __future__ import annotations

import mmap
import pathlib
import struct

ELF_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little endian: the only kind on these machines
ELF_SECTIONS_AT, ELF_SECTION_COUNT = 0x28, 0x3C  # fields of the file's header
ELF_SEGMENTS_AT, ELF_SEGMENT_SIZE = 0x20, 0x36
# NVIDIA's container of code for several GPUs. Its layout is not documented, but cuobjdump reads
# it, and tools that remove unused code rely on it.
FATBIN_MAGIC = struct.pack("<I", 0xBA55ED50)
FATBIN_HEADER = struct.Struct("<IHHQ")  # magic, version, size of this header, size of the rest
FATBIN_ELEMENT = struct.Struct("<HHIQIIHHI")  # kind, version, size of this, of the code, ..., arch
MACHINE_CODE = 2  # PTX is kind 1


def cut_tables(path: pathlib.Path) -> int:
    """Cut an ELF file after the last byte that is loaded; return the number of bytes saved.

    The rest is for linkers and debuggers: symbols that the loader needs are loaded.
    """
    with path.open("r+b") as file:
        header = file.read(64)
        if header[:6] != ELF_MAGIC:
            return 0
        (at,) = struct.unpack_from("<Q", header, ELF_SEGMENTS_AT)
        size, count = struct.unpack_from("<HH", header, ELF_SEGMENT_SIZE)
        end: int = at + size * count
        file.seek(at)
        table = file.read(size * count)
        for place in range(0, len(table), size):
            offset, in_file = (struct.unpack_from("<Q", table, place + n)[0] for n in (8, 32))
            end = max(end, offset + in_file)
        saved = file.seek(0, 2) - end
        if saved <= 0:
            return 0
        file.seek(ELF_SECTIONS_AT)
        file.write(bytes(8))
        file.seek(ELF_SECTION_COUNT)
        file.write(bytes(4))
        file.truncate(end)
    return saved


def runs_on(code: int, architecture: int) -> bool:
    """Whether machine code for one compute capability runs on another: 80 does on 89, not on 90."""
    return code // 10 == architecture // 10 and code <= architecture


def blank_other_gpus(path: pathlib.Path, architecture: int, ptx: bool = True) -> int:
    """Zero the machine code that this GPU cannot run; return the number of bytes.

    Headers and sizes stay, so the driver skips it as before. Without `ptx`, all code is removed:
    for a library with kernels that are never launched.
    """
    blanked = 0
    if path.stat().st_size == 0:
        return 0
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        at = memory.find(FATBIN_MAGIC)
        while at >= 0:
            end = _end_of_fatbin(memory, at)
            if end:
                blanked += _blank(memory, at + FATBIN_HEADER.size, end, architecture, ptx)
            at = memory.find(FATBIN_MAGIC, end or at + 4)
    return blanked


def _end_of_fatbin(memory: mmap.mmap, at: int) -> int:
    """The end of the container; 0 if these four bytes only look like one."""
    if at + FATBIN_HEADER.size > len(memory):
        return 0
    _, version, header, size = FATBIN_HEADER.unpack_from(memory, at)
    end: int = at + header + size
    plain: bool = version == 1 and header == FATBIN_HEADER.size and size > 0
    fits = plain and end <= len(memory)
    return end if fits and _elements(memory, at + header, end) else 0


def _elements(memory: mmap.mmap, at: int, end: int) -> list[tuple[int, int, int, int]]:
    """Kind, architecture, start and end of each; none if they do not fill the container."""
    found = []
    while at + FATBIN_ELEMENT.size <= end:
        kind, _, header, size, _, _, _, _, arch = FATBIN_ELEMENT.unpack_from(memory, at)
        if header < FATBIN_ELEMENT.size:
            return []
        found.append((kind, arch, at + header, at + header + size))
        at += header + size
    return found if at == end else []


def _blank(memory: mmap.mmap, at: int, end: int, architecture: int, ptx: bool) -> int:
    blanked = 0
    for kind, arch, start, stop in _elements(memory, at, end):
        if not ptx or (kind == MACHINE_CODE and not runs_on(arch, architecture)):
            memory[start:stop] = bytes(stop - start)
            blanked += stop - start
    return blanked
