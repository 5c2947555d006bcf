"""Untrusted files: which are read and which are refused; and how files are written."""

import os
import resource
import signal
import socket
import stat
import threading

import pytest

from tf_hvd.core import files

KINDS = {
    "pipe": "is a pipe, not a file",
    "zeros": "is a device, not a file",
    "folder": "is a folder, not a file",
    "socket": "is a socket, not a file",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with one file of each kind, and `file`, to which `link` points."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.symlink("/dev/zero", "zeros")
    os.mkdir("folder")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    (tmp_path / "file").write_bytes(b"what is there")
    os.symlink("file", "link")
    return tmp_path


@pytest.mark.parametrize("name", KINDS)
def test_only_a_file_is_read(folder, name):
    with pytest.raises(files.FileError) as raised:
        files.read(name, 100)
    assert files.reason(raised.value) == f"{name} {KINDS[name]}"
    assert raised.value.strerror == f"it {KINDS[name]}"


def test_links_are_followed_only_if_allowed(folder):
    assert files.read("link", 100) == b"what is there"
    with pytest.raises(files.FileError, match="link is a symbolic link, not a file"):
        files.opened("link", follow=False)


def test_files_that_are_too_large_are_refused(folder):
    assert files.read("file", 13) == b"what is there"
    with pytest.raises(files.FileError, match="file is 13 bytes; at most 12 bytes are read"):
        files.read("file", 12)
    os.truncate("file", 30 << 30)
    with pytest.raises(files.FileError, match=r"file is 32\.2 GB; at most 1 MB are read"):
        files.read("file", 10**6)
    # It has no size before it is read, like a file that grows meanwhile.
    with pytest.raises(files.FileError, match="status is more than 10 bytes; at most 10 bytes"):
        files.read("/proc/self/status", 10)


def test_a_shells_pipe_is_read(folder):
    reads, writes = os.pipe()
    threading.Thread(target=lambda: (os.write(writes, b"host:2\n"), os.close(writes))).start()
    assert files.read_given(f"/dev/fd/{reads}", 100) == b"host:2\n"
    os.close(reads)
    with pytest.raises(files.FileError, match="pipe is a pipe, not a file"):
        files.read_given("pipe", 100)


def write(name, data=b"new", **how):
    with files.writing(name, **how) as file:
        file.write(data)


def test_a_file_appears_only_when_complete(folder):
    there = set(os.listdir())
    with files.writing("file", mode=0o640) as file:
        file.write(b"half")
        file.flush()
        (new,) = set(os.listdir()) - there
        assert new.startswith(f"{files.NEW}file.")
        assert files.read("file", 100) == b"what is there"
        assert stat.S_IMODE(os.stat(new).st_mode) == 0o640
    assert files.read("file", 100) == b"half"
    with pytest.raises(TypeError), files.writing("file") as file:
        file.write("no bytes")
    assert files.read("file", 100) == b"half"
    assert set(os.listdir()) == there


@pytest.mark.parametrize("name", [*KINDS, "link"])
def test_only_a_file_is_replaced(folder, name):
    there = set(os.listdir())
    text = {**KINDS, "zeros": "is a symbolic link", "link": "is a symbolic link"}[name]
    for make in (write, lambda name: files.stream(name, adds=False)):
        with pytest.raises(files.FileError, match=f"{name} {text}"):
            make(name)
    with pytest.raises(files.FileError, match="/dev/null is a device"):
        write("/dev/null")
    assert set(os.listdir()) == there
    assert files.read("file", 100) == b"what is there"


def test_a_name_cannot_be_guessed(folder):
    names = set()
    for _ in range(3):
        with files.writing("file"):
            names |= {each for each in os.listdir() if each.startswith(files.NEW)}
    assert len(names) == 3
    assert all(len(name.rpartition(".")[2]) >= 16 for name in names)


def test_a_name_may_be_as_long_as_a_name_can_be(folder):
    write("ü" * 127)
    assert files.read("ü" * 127, 100) == b"new"


def test_an_error_names_the_file(folder):
    with pytest.raises(FileNotFoundError) as raised:
        write("nowhere/file")
    assert files.reason(raised.value) == "nowhere/file: No such file or directory"
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as raised:
            write("file", bytes(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files.reason(raised.value) == "file: File too large"
    assert files.read("file", 100) == b"what is there"
    assert not [name for name in os.listdir() if name.startswith(files.NEW)]


def test_a_folder_is_given_by_descriptor(folder):
    at = os.open("folder", os.O_RDONLY | os.O_DIRECTORY)
    os.rename("folder", "moved")
    os.mkdir("folder")
    write("x", folder=at, sync=True)
    with files.opened("x", folder=at) as file:
        assert file.read() == b"new"
    os.close(at)
    assert (os.listdir("folder"), os.listdir("moved")) == ([], ["x"])


@pytest.mark.parametrize(("adds", "text"), [(True, b"what is there!"), (False, b"!")])
def test_a_stream_has_its_name_at_once(folder, adds, text):
    file = files.stream("file", adds)
    os.write(file, b"!")
    assert files.read("file", 100) == text
    os.close(file)
