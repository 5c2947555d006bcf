"""The layout of recordings: equal in both languages, and checked before a file is read."""

import ctypes
import pathlib
import re
import struct

import pytest
from recording_test import HEADER_BYTES, SLOT_BYTES, file_of

from tf_hvd.observe import recording

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
HEADER = (ROOT / "runtime/events/recording.h").read_text()
TYPES = HEADER + (ROOT / "base/types.h").read_text() + (ROOT / "base/status.h").read_text()
MEMBER = re.compile(
    r"\s(?:(?:std::atomic|Of)<(?P<type>\w+)>|RecordedText<(?P<text>\d+)(?:, Of)?>"
    r"|std::array<Of<(?P<of>\w+)>, (?P<count>\d+)>) (?P<name>\w+);"
)


def enumerators(name):
    """The enumerators of a C++ enumeration of 8 or 32 bits, by value."""
    (body,) = re.findall(rf"enum class {name} : uint(?:8|32)_t \{{(.*?)\}};", TYPES, re.DOTALL)
    return {int(value): text for text, value in re.findall(r"k(\w+) = (\d+)", body)}


def ctype(name):
    """The ctypes type of a member."""
    if name == "double":
        return ctypes.c_double
    number = re.fullmatch(r"(u?int\d+)_t", name)
    if number is None:
        assert enumerators(name)
        return ctypes.c_uint8
    return getattr(ctypes, f"c_{number[1]}")


def members(struct_name):
    """The members of a C++ struct, as ctypes fields."""
    (body,) = re.findall(rf"struct {struct_name} \{{(.*?)\n\}};", HEADER, re.DOTALL)
    body = re.sub(r"//.*", "", body)
    found = []
    for one in MEMBER.finditer(body):
        if one["text"]:
            kind = ctypes.c_char * int(one["text"])
        elif one["of"]:
            kind = ctype(one["of"]) * int(one["count"])
        else:
            kind = ctype(one["type"])
        found.append((one["name"], kind))
    # No member has been missed.
    assert len(found) == body.count(";") - body.count("static constexpr")
    return found


@pytest.mark.parametrize(
    ("struct_name", "layout", "size_of"),
    [
        ("RecordingHeader", recording._Header, "RecordingHeader"),
        ("CallLayout", recording._Slot, "RecordingSlot"),
    ],
)
def test_both_languages_have_the_same_layout(struct_name, layout, size_of):
    """Both languages align members to their size; static_asserts check the C++ sizes."""
    assert members(struct_name) == list(layout._fields_)
    assert f"static_assert(sizeof({size_of}) == {ctypes.sizeof(layout)});" in HEADER


def test_both_languages_have_the_same_numbers():
    """tests/contract_test.py checks the numbers of kinds and reduce ops."""
    assert f'kMagic[9] = "{recording._MAGIC.decode()}"' in HEADER
    assert f"kVersion = {recording._VERSION};" in HEADER
    assert f"kRecordingHeaderBytes = {recording._HEADER_BYTES};" in HEADER
    assert enumerators("CallerKind")[recording._COMPILED] == "Compiled"
    for enumeration, names in (
        ("DType", recording.DTYPES),
        ("DeviceKind", recording.DEVICES),
        ("StatusCode", recording.CODES),
        ("RankState", recording._STATES),
    ):
        assert list(enumerators(enumeration)) == list(range(len(names))), enumeration
    # The names of the numbers.
    named = (ROOT / "base/types.cc").read_text()
    assert tuple(re.findall(r'\{"(\w+)", \d+, \w+\}', named)) == recording.DTYPES
    assert (
        tuple(each.lower() for each in enumerators("RankState").values())[1:]
        == (recording._STATES[1:])
    )


@pytest.mark.parametrize(
    ("place", "number", "words"),
    [
        (8, 0, "the file has format version 0; this tf_hvd reads version 1"),
        (8, 2, "the file has format version 2; this tf_hvd reads version 1"),
        (12, 2048, r"header and calls have \(2048, 320\) bytes; .* reads \(4096, 320\)"),
        (16, 312, r"header and calls have \(4096, 312\) bytes; .* reads \(4096, 320\)"),
    ],
)
def test_a_file_of_another_build_is_refused(tmp_path, place, number, words):
    data = bytearray(file_of())
    assert struct.unpack_from("<3I", data, 8) == (1, HEADER_BYTES, SLOT_BYTES)
    struct.pack_into("<I", data, place, number)
    with pytest.raises(recording.RecordingError, match=words):
        recording.parse(bytes(data))
    (tmp_path / "rank.0").write_bytes(data)
    (tmp_path / "rank.1").write_bytes(file_of())
    dump = recording.read(tmp_path)
    assert len(dump.recordings) == 1
    assert re.search(words, dump.faults[0])
