"""The examples train as their first lines say, and end with identical weights."""

import gzip
import importlib.util
import os
import pathlib
import re
import struct
import sys

import numpy as np
import pytest

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
LIMIT = 600


pytestmark = pytest.mark.usefixtures("extras", "usual_garbage")


@pytest.fixture
def run(run_to_end, extras):
    """Runs an example with 2 ranks and returns the output."""

    def run_example(example, *arguments):
        # Because of PYTHONSAFEPATH the examples would not find the modules next to them.
        environ = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
        command = [sys.executable, "-m", "tf_hvd_command", "run", "-np", "2", sys.executable]
        command += [str(EXAMPLES / f"{example}.py"), *map(str, arguments)]
        code, output = run_to_end(command, environ, LIMIT, cwd="/")
        assert code == 0
        return output

    return run_example


def only(pattern, output):
    """The only line that matches; the lines of two ranks would be two."""
    found = re.findall(rf"^{pattern}\s*$", output, re.MULTILINE)
    assert len(found) == 1, (pattern, found)
    return found[0]


def load_module(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("example", ["mnist_tape", "mnist_session"])
def test_two_ranks_learn_the_digits(run, example):
    output = run(example)
    assert float(only(r"test accuracy: (0\.\d{4})", output)) >= 0.97
    assert int(only(r"images per second: (\d+) \(2 ranks\)", output)) > 0
    only("weights bit-identical on all 2 ranks", output)
    epochs = re.findall(r"^epoch (\d+)/20  loss (\d\.\d{4})  accuracy [01]\.\d{4}", output, re.M)
    assert [int(epoch) for epoch, _ in epochs] == list(range(1, 21))
    assert float(epochs[-1][1]) < 0.5 * float(epochs[0][1])


def test_session_resumes_from_its_checkpoint(run, tmp_path):
    folder = tmp_path / "checkpoints"
    first = run("mnist_session", "--epochs", 2, "--checkpoints", folder)
    only(r"epoch 2/2 .*", first)
    assert (folder / "checkpoint").is_file()
    second = run("mnist_session", "--epochs", 3, "--checkpoints", folder)
    assert re.findall(r"^epoch (\d)/3", second, re.MULTILINE) == ["3"]
    only("weights bit-identical on all 2 ranks", second)


@pytest.mark.parametrize("example", ["mnist_keras", "mnist_keras_advanced"])
def test_two_ranks_learn_the_digits_with_keras(run, example, tmp_path):
    checkpoint = tmp_path / "best.keras"
    arguments = ["--checkpoint", checkpoint] if example == "mnist_keras" else []
    output = run(example, *arguments)
    assert float(only(r"test accuracy: (0\.\d{4})", output)) >= 0.97
    only("weights bit-identical on all 2 ranks", output)
    assert checkpoint.exists() == bool(arguments)


@pytest.mark.parametrize(
    "example", ["mnist_keras", "mnist_keras_advanced", "mnist_session", "mnist_tape"]
)
def test_first_line_is_the_command(example):
    first = (EXAMPLES / f"{example}.py").read_text().splitlines()[0]
    assert first.startswith(f"# tf_hvd run -np 2 python examples/{example}.py")


def write_idx(path, array):
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wb") as file:
        file.write(header + array.astype(np.uint8).tobytes())


@pytest.fixture
def data():
    return load_module("digits_data")


def test_scikit_learn_digits(data):
    (train, train_labels), (test, test_labels) = data.load()
    assert train.shape == (1500, 8, 8, 1)
    assert test.shape == (297, 8, 8, 1)
    assert train.dtype == np.float32
    assert train.max() == 1
    assert set(train_labels) == set(test_labels) == set(range(10))


def test_mnist_test_set_on_its_own_is_split(data, tmp_path):
    images = np.arange(1010 * 4).reshape(1010, 2, 2) % 256
    write_idx(tmp_path / "t10k-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte.gz", np.arange(1010) % 10)
    (train, train_labels), (test, test_labels) = data.load(tmp_path)
    assert len(train) == len(train_labels) == 10
    assert len(test) == len(test_labels) == 1000
    # No image is lost or duplicated, and each has its label.
    pixels = np.concatenate([test, train])[..., 0]
    labels = np.concatenate([test_labels, train_labels])
    expected = sorted(
        ((image / 255).astype(np.float32).tobytes(), label % 10)
        for label, image in enumerate(images)
    )
    assert sorted(zip([p.tobytes() for p in pixels], labels, strict=True)) == expected
    again = data.load(tmp_path)[1][0]
    assert np.array_equal(again, test)


def test_mnist_train_set_is_used_if_it_exists(data, tmp_path):
    for kind, count in (("train", 7), ("t10k", 3)):
        write_idx(tmp_path / f"{kind}-images-idx3-ubyte", np.full((count, 2, 2), count))
        write_idx(tmp_path / f"{kind}-labels-idx1-ubyte", np.arange(count))
    (train, train_labels), (test, _) = data.load(tmp_path)
    assert train.shape == (7, 2, 2, 1)
    assert test.shape == (3, 2, 2, 1)
    assert list(train_labels) == list(range(7))


def test_folder_without_mnist(data, tmp_path):
    with pytest.raises(SystemExit, match="not MNIST"):
        data.load(tmp_path)


def test_truncated_file(data, tmp_path):
    for name, array in (("images-idx3", np.zeros((3, 2, 2))), ("labels-idx1", np.zeros(3))):
        write_idx(tmp_path / f"t10k-{name}-ubyte", array)
    path = tmp_path / "t10k-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SystemExit, match="not a complete IDX file"):
        data.load(tmp_path)


def test_ranks_share_each_epoch(data):
    images = np.arange(103)
    shares = [
        [list(batch) for batch, _ in data.batches(images, images, 10, 4, rank, 2)]
        for rank in range(2)
    ]
    assert [len(share) for share in shares] == [6, 6]
    assert data.steps_per_epoch(images, 10, 2) == 6
    seen = [image for share in shares for batch in share for image in batch]
    assert sorted(seen) == list(range(103))
    # With the same global batch, one rank's step has the rows of two ranks' steps.
    single = [set(batch) for batch, _ in data.batches(images, images, 20, 4, 0, 1)]
    assert [set(a) | set(b) for a, b in zip(*shares, strict=True)] == single
    other = [list(batch) for batch, _ in data.batches(images, images, 10, 5, 0, 2)]
    assert other != shares[0]


def test_no_rank_has_an_empty_batch(data):
    images = np.arange(61)  # one image is left over
    shares = [list(data.batches(images, images, 10, 0, rank, 2)) for rank in range(2)]
    assert [len(share) for share in shares] == [3, 3] == 2 * [data.steps_per_epoch(images, 10, 2)]
    assert all(len(batch) == 10 for share in shares for batch, _ in share)


def test_ranks_share_the_test_set(data):
    images = np.arange(1003)
    pieces = [data.pieces(images, images, rank, 2, limit=100) for rank in range(2)]
    seen = [image for share in pieces for piece, _ in share for image in piece]
    assert sorted(seen) == list(range(1003))


def test_different_weights_raise():
    module = load_module("training_report")
    report = module.Report(1, 2, epochs=1, steps=1, images=1)
    same = module.digest([np.float32([0.0, 1.0])])
    report.check_identical([same, same])
    with pytest.raises(RuntimeError, match="differ"):
        report.check_identical([same, module.digest([np.float32([-0.0, 1.0])])])
