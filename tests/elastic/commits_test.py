"""Commits: the contents of their files, and the commit that a job continues from."""

import contextlib
import errno
import os
import threading
import types

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from tf_hvd.core import contract, log
from tf_hvd.elastic import commit_file, commit_folder, commits
from tf_hvd.elastic.commit_file import CommitError, CommitFile
from tf_hvd.elastic.state import ObjectState
from tf_hvd.launch.machine.commits import Parts


@pytest.fixture
def file():
    number = os.memfd_create("commit")
    yield number
    os.close(number)


def arrays_of(number):
    return {
        "kernel": np.full([3, 5], number, np.float32),
        "empty": np.zeros([0, 4], np.float32),
        "count": np.array(number),
        "one": np.float32(number),  # as a v1 session returns a scalar
        "half": np.arange(number, number + 7, dtype=np.uint16),
    }


def read(file):
    index, arrays = commit_file.read(file)
    return index, {name: array.tobytes() for name, array in arrays.items()}


def test_commit_is_read_back(file):
    writer = CommitFile(file)
    for number in (1, 2, 3):
        writer.write(number, 4, arrays_of(number))
        index, found = read(file)
        assert (index.number, index.ranks) == (number, 4)
        assert found == {name: array.tobytes() for name, array in arrays_of(number).items()}


def test_partly_written_commit_is_not_read(file):
    writer = CommitFile(file)
    writer.write(1, 1, arrays_of(1))

    arrays = arrays_of(2)
    original = commit_file._copy

    def die(array, to, entry):
        if array is arrays["half"]:
            raise InterruptedError
        return original(array, to, entry)

    commit_file._copy = die
    try:
        with pytest.raises(InterruptedError):
            writer.write(2, 1, arrays)
    finally:
        commit_file._copy = original
    assert commit_file.number_of(file) == 0
    with pytest.raises(CommitError, match="not complete"):
        commit_file.read_index(file)


@given(st.data())
def test_damaged_file_is_not_used(data):
    file = os.memfd_create("commit")
    try:
        CommitFile(file).write(7, 2, arrays_of(1))
        whole = os.pread(file, os.fstat(file).st_size, 0)
        index = commit_file.read_index(file)
        start = max(e.offset + e.size for e in index.arrays.values())
        ranges = [(0, 40), (start, start + 300)]
        ranges += [(e.offset, e.offset + e.size) for e in index.arrays.values() if e.size]
        begin, end = data.draw(st.sampled_from(ranges))
        at = data.draw(st.integers(begin, end - 1))
        os.pwrite(file, bytes([whole[at] ^ data.draw(st.integers(1, 255))]), at)
        with contextlib.suppress(CommitError):
            other, found = read(file)
            assert other == index  # the damaged byte is unused
            assert found == {name: array.tobytes() for name, array in arrays_of(1).items()}
    finally:
        os.close(file)


def found_of(parts, files, ranks=2):
    return commits.Found(frozenset(parts), {n: (f"commit.0.{n}", ranks) for n in files})


def test_newest_complete_commit_is_found():
    both = {(0, 3), (1, 3), (0, 4)}
    here = found_of(both, [3, 4])
    assert commits.complete([here, here]) == [(3, 2)]
    assert here.newest() == 4


def test_lost_node_loses_no_commit():
    """`tf_hvd run` has its ranks' parts, and sends them to all machines."""
    parts = {(0, 5), (1, 5), (2, 5), (3, 5)}
    there = found_of(parts, [5], ranks=4)
    assert commits.complete([there, there]) == [(5, 4)]


def test_a_rank_on_a_new_machine_has_nothing():
    there = found_of({(0, 5), (1, 5)}, [5])
    assert commits.complete([there, there, found_of((), ())]) == [(5, 2)]
    assert commits.complete([found_of((), ())]) == []
    assert found_of((), ()).newest() == 0


class Steps:
    """An engine that records the steps of a state's commit."""

    def __init__(self):
        self.done = []
        self.writer = types.SimpleNamespace(writes_file=True)

    def heard(self):
        self.done.append("heard")
        return 0

    def commit(self, _contents):
        self.done.append("written")

    def say(self, _mine):
        self.done.append("said")


def steps_of_a_commit():
    state = ObjectState()
    engine = Steps()
    state._engine = engine
    state.commit()
    return engine.done


class Rank:
    """A rank that commits, with its writing thread. It may be killed between any two steps."""

    def __init__(self, of_file):
        self.said, self.begun, self.at = 0, 0, 0
        self.files = [0] * commit_file.COPIES if of_file else []
        self.parts = []
        self.writing = []  # the thread's remaining work

    def steps(self, everyone, order):
        """The possible next steps."""
        if self.writing:
            yield self.writing[0]
        if order[self.at] == "heard" and self.said <= min(rank.said for rank in everyone):
            yield self.go_on
        elif order[self.at] == "written" and not self.writing:
            yield self.begin
        elif order[self.at] == "said":
            yield self.say

    def go_on(self):
        self.at = (self.at + 1) % 3

    def say(self):
        self.said += 1
        self.go_on()

    def begin(self):
        self.begun += 1
        self.writing = [*[self.spoil, self.write] * bool(self.files), self.put]
        self.go_on()

    def spoil(self):
        self.files[self.begun % len(self.files)] = 0
        self.writing.pop(0)

    def write(self):
        self.files[self.begun % len(self.files)] = self.begun
        self.writing.pop(0)

    def put(self):
        self.parts = [*self.parts, self.begun][-contract.COMMITS_KEPT :]
        self.writing.pop(0)


@given(st.randoms(use_true_random=False))
def test_complete_commit_survives_any_kill(chance):
    """A rank could overwrite the last complete commit before another had written a newer one."""
    order = steps_of_a_commit()
    assert sorted(order) == ["heard", "said", "written"]
    ranks = [Rank(of_file=number % 2 == 0) for number in range(4)]
    patience = [chance.random() ** 4 for _ in ranks]  # some are much slower than others
    newest = 0
    for _ in range(300):
        steps = [
            (rank, step) for rank, each in enumerate(ranks) for step in each.steps(ranks, order)
        ]
        chance.choices(steps, [patience[rank] + 1e-9 for rank, _ in steps])[0][1]()
        complete = [
            number
            for number in set(ranks[0].files) & set(ranks[2].files)
            if number and all(number in rank.parts for rank in ranks)
        ]
        assert complete or not newest, [(rank.files, rank.parts, rank.begun) for rank in ranks]
        newest = max(complete, default=0)


def test_only_commits_of_all_ranks_count():
    """If one rank failed repeatedly, the job ran indefinitely, because other ranks had written."""
    parts = Parts()
    assert parts.newest(2) == 0
    for commit in (1, 2):
        parts.put(0, commit, b"")
    assert parts.newest(2) == 0
    parts.put(1, 1, b"")
    assert (parts.newest(1), parts.newest(2), parts.newest(3)) == (2, 1, 0)


def test_store_deletes_unusable_commits():
    parts = Parts()
    for commit in (1, 2, 3, 4):
        parts.put(0, commit, b"%d" % commit)
    parts.put(1, 4, b"")
    assert parts.get(0, 1) is None
    parts.forget(3, 4)
    assert sorted(parts.listed()) == [(0, 2), (0, 3)]
    assert parts.get(0, 3) == b"3"


class TestOnDisk:
    """Commits in a folder, of three ranks."""

    @pytest.fixture
    def folder(self, tmp_path):
        return commit_folder.CommitFolder(str(tmp_path / "commits"), 1)

    def put(self, folder, number, ranks=3, without=()):
        with contextlib.ExitStack() as stack:
            memory = os.memfd_create("test")
            stack.callback(os.close, memory)
            values = np.full([1000], number, np.float32)
            commit_file.CommitFile(memory).write(number, ranks, {"v": values})
            for rank in range(ranks):
                if rank not in without:
                    folder.put_part(rank, number, f"{rank} of {number}".encode())
            folder.put_file(number, memory)

    def test_newest_complete_commit_is_loaded(self, folder, store):
        self.put(folder, 4)
        self.put(folder, 5)
        self.put(folder, 6, without=[1])
        assert folder.load(store) == 5
        found = commits.look(store)
        assert commits.complete([found]) == [(5, 3)]
        assert store.part(2, 5) == b"2 of 5"
        _, arrays = commit_file.read(store.file(commit_folder.FILE))
        assert arrays["v"].view(np.float32).tolist() == [5.0] * 1000
        # Otherwise a later commit 6 could get a part of this one.
        assert folder.load(store) == 5
        self.put(folder, 6, without=[0, 2])
        assert folder.load(store) == 5

    def test_commit_of_another_version_is_an_error_and_kept(self, folder, store, tmp_path):
        """It was taken for damaged, and training restarted from the beginning."""
        self.put(folder, 4)
        path = tmp_path / "commits" / "commit.4"
        data = bytearray(path.read_bytes())
        data[8] += 1  # a byte of the version, after the magic
        path.write_bytes(data)
        names = sorted(os.listdir(tmp_path / "commits"))
        with pytest.raises(
            ValueError, match=r"commit\.4: another version of tf_hvd has written it \(format 3\)"
        ):
            folder.load(store)
        assert sorted(os.listdir(tmp_path / "commits")) == names

    def test_old_commits_are_removed(self, folder, tmp_path):
        for number in range(1, 7):
            self.put(folder, number)
        names = sorted(os.listdir(tmp_path / "commits"))
        kept = ["commit.5", "commit.6", *(f"part.{r}.{n}" for r in range(3) for n in (5, 6))]
        assert names == kept
        folder.clear()
        assert os.listdir(tmp_path / "commits") == []

    def test_rank_that_is_ahead_loses_nothing(self, folder, store):
        """Rank 0, which writes the file, removed the other ranks' parts of the next commit."""
        self.put(folder, 1)
        self.put(folder, 2)
        folder.put_part(1, 4, b"1 of 4")
        self.put(folder, 3)
        self.put(folder, 4, without=[1])
        assert folder.load(store) == 4

    def test_last_complete_commit_is_kept(self, folder, store, tmp_path):
        """Only the two newest commits were kept, and both could be incomplete."""
        self.put(folder, 1)
        for number in (2, 3, 4):  # rank 1 is slow, or has died
            self.put(folder, number, without=[1])
        assert folder.load(store) == 1
        for number in range(5, 20):  # as if each machine had its own folder
            self.put(folder, number, without=[1])
        assert len(list((tmp_path / "commits").glob("commit.*"))) == 8
        assert folder.load(store) == 0

    def test_other_files_are_kept(self, folder, store, tmp_path):
        """Files that began with `new.` were removed."""
        names = ["new.csv", "notes", "commit.txt", "new.folder"]
        for name in names[:-1]:
            (tmp_path / "commits" / name).write_text("kept")
        (tmp_path / "commits" / names[-1]).mkdir()
        assert folder.load(store) == 0
        self.put(folder, 1)
        folder.clear()
        assert sorted(os.listdir(tmp_path / "commits")) == sorted(names)

    def test_last_commit_is_saved_regardless_of_number(self, store, tmp_path):
        """Ranks that ended by `check_host_updates` had it only in memory."""
        folder = commit_folder.CommitFolder(str(tmp_path / "commits"), 10)
        writer = commits.Writer(store, 0, 1, 0, folder=folder)
        for number in range(1, 4):
            values = {"v": np.full([3], number, np.float32)}
            writer.commit(number, commits.Contents(b"", values, {}))
        writer.flush()
        assert not list((tmp_path / "commits").glob("commit.*"))
        writer.save()
        writer.save()
        assert folder.load(store) == 3
        _, arrays = commit_file.read(store.file(commit_folder.FILE))
        assert arrays["v"].view(np.float32).tolist() == [3.0] * 3

    def test_folder_belongs_to_one_job(self, tmp_path):
        path = str(tmp_path / "one")
        first = commit_folder.CommitFolder(path, 1, "first", first=True)
        with pytest.raises(BlockingIOError, match="another running job"):
            commit_folder.CommitFolder(path, 1, "second", first=True)
        # The same job: a process of an earlier start may hold the lock for a while.
        commit_folder.CommitFolder(path, 1, "first", first=True).clear()
        first.clear()

    @pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, 0])
    def test_two_jobs_in_a_folder_without_locks_do_not_mix(
        self, code, store, tmp_path, monkeypatch
    ):
        """Or with locks local to each machine: commits had parts of both jobs."""

        def flock(*_):
            if code:
                raise OSError(code, os.strerror(code))

        monkeypatch.setattr(commit_folder.fcntl, "flock", flock)
        said = []
        monkeypatch.setattr(log, "warn_once", said.append)
        path = str(tmp_path / "one")
        first = [commit_folder.CommitFolder(path, 1, "first", first=r == 0) for r in range(2)]
        self.put(first[0], 1, ranks=2)
        second = commit_folder.CommitFolder(path, 1, "second", first=True)
        assert second.load(store) == 1
        self.put(second, 2, ranks=2)
        for folder in first:
            with pytest.raises(
                BlockingIOError, match=r"another job has started to use .*/one; give"
            ):
                folder.put_part(1, 2, b"1 of 2, of the first job")
        with pytest.raises(BlockingIOError, match="another job has started to use"):
            self.put(first[0], 3, ranks=2, without=range(2))
        first[0].clear()  # its training has finished
        # It warns, and training continues.
        writer = commits.Writer(store, 0, 1, 0, folder=first[0])
        writer.commit(4, commits.Contents(b"", {}, {}), last=True)
        writer.flush()
        assert len(said) == 1
        assert said[0].startswith("commits cannot be written to disk: another job has started to")
        assert second.load(store) == 2
        assert store.part(1, 2) == b"1 of 2"

    def test_unfinished_files_are_removed(self, folder, tmp_path):
        with pytest.raises(TypeError):
            folder._put("commit.7", [b"half", None])
        folder.clear()
        assert os.listdir(tmp_path / "commits") == []

    @pytest.mark.parametrize("name", ["commit.2", "part.1.2"])
    @pytest.mark.parametrize("damage", ["cut", "bit", "gone"])
    def test_damaged_commit_is_not_used(self, name, damage, folder, store, tmp_path, monkeypatch):
        said = []
        monkeypatch.setattr(log, "warning", lambda text, *given: said.append(text % given))
        self.put(folder, 1)
        self.put(folder, 2)
        file = tmp_path / "commits" / name
        data = bytearray(file.read_bytes())
        data[200 if name.startswith("commit") else -2] ^= 1
        if damage == "gone":
            file.unlink()
        else:
            file.write_bytes(data[: len(data) // 50] if damage == "cut" else data)
        with contextlib.suppress(FileNotFoundError):
            data = file.read_bytes()
        assert folder.load(store) == 1
        refused = f"a commit of TF_HVD_COMMIT_DIR is not used: commit 2: {name}: "
        assert [text.startswith(refused) for text in said[:-2]] == [True] * (damage != "gone")
        # It can be inspected, and its number is free.
        aside = tmp_path / "commits" / "refused.1"
        assert said[-2:] == [
            "continuing from commit 1 of TF_HVD_COMMIT_DIR",
            f"unused commits of TF_HVD_COMMIT_DIR were moved to {aside}",
        ]
        assert damage == "gone" or (aside / name).read_bytes() == data
        self.put(folder, 2)
        assert folder.load(store) == 2
        assert said[3 - (damage == "gone") :] == ["continuing from commit 2 of TF_HVD_COMMIT_DIR"]

    def test_damaged_commit_may_be_an_error(self, folder, store, tmp_path):
        """All commits were damaged, and were removed without a message."""
        self.put(folder, 1)
        os.truncate(tmp_path / "commits" / "part.0.1", 7)
        before = sorted(os.listdir(tmp_path / "commits"))
        with pytest.raises(ValueError, match=r"commit 1: part\.0\.1: the part is damaged"):
            folder.load(store, strict=True)
        assert sorted(os.listdir(tmp_path / "commits")) == before
        assert folder.load(store) == 0

    def test_nothing_is_loaded_from_a_refused_folder(self, folder, store, tmp_path):
        """An older commit was already in the store, and the next start continued from it."""
        self.put(folder, 1)
        self.put(folder, 2)
        os.truncate(tmp_path / "commits" / "part.0.2", 7)
        with pytest.raises(ValueError, match=r"commit 2: part\.0\.2: the part is damaged"):
            folder.load(store, strict=True)
        found = commits.look(store)
        assert (found.parts, found.files) == (frozenset(), {})

    def test_folder_of_another_user_is_refused(self, tmp_path):
        (tmp_path / "open").mkdir()
        (tmp_path / "open").chmod(0o777)
        with pytest.raises(OSError, match="other users can write to it"):
            commit_folder.CommitFolder(str(tmp_path / "open"), 1)


def test_unpicklable_value_is_named():
    state = ObjectState(batch=0, lock=threading.Lock())
    with pytest.raises(TypeError, match=r"'lock' of the state cannot be saved, .*: TypeError: "):
        state.save()


def test_value_named_model_is_an_ordinary_value():
    """It was taken for a Keras model with random numbers in its layers."""
    contents = ObjectState(model="resnet50")._contents(whole=True)
    assert contents.own["random"]["states"] == {}
