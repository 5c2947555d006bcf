"""Real handwritten digits for the examples, and each rank's share of them."""

import gzip
import math
import pathlib

import numpy as np

SEED = 2017
TEST_IMAGES = {"digits": 297, "mnist": 1000}


def load(folder=None):
    """Return images (count, height, width, 1) in 0..1 and their labels, for training and test.

    Without a folder these are scikit-learn's 1,797 images of 8x8 pixels. A folder must contain
    MNIST's IDX files, compressed or not. If it contains only the test set, a fixed seed chooses
    1,000 of its images for the test. All others are used for training.
    """
    if folder is None:
        from sklearn.datasets import load_digits

        digits = load_digits()
        return _split(digits.images / 16, digits.target, TEST_IMAGES["digits"])
    folder = pathlib.Path(folder)
    test = _read_pair(folder, "t10k")
    if test is None:
        raise SystemExit(f"{folder} has no t10k-images-idx3-ubyte(.gz) and -labels-: not MNIST")
    train = _read_pair(folder, "train")
    if train is None:
        return _split(*test, TEST_IMAGES["mnist"])
    return (_tidy(*train), _tidy(*test))


def steps_per_epoch(images, batch, size):
    """Number of batches that `batches` gives to each rank."""
    whole, rest = divmod(len(images), batch * size)
    return whole + (rest >= size)


def batches(images, labels, batch, epoch, rank, size):
    """Return one rank's batches of one epoch: all ranks shuffle alike and share each step's images.

    Together they have each image once, and the last step's batches are smaller. If fewer images
    than ranks remain, those images are skipped in this epoch.
    """
    order = np.random.default_rng((SEED, epoch)).permutation(len(images))
    for step in range(steps_per_epoch(images, batch, size)):
        together = order[step * size * batch :][: size * batch]
        chosen = together[rank::size]
        yield images[chosen], labels[chosen]


def pieces(images, labels, rank, size, limit=500):
    """One rank's share of a test set, in pieces that fit into memory."""
    images, labels = images[rank::size], labels[rank::size]
    for start in range(0, len(images), limit):
        yield images[start : start + limit], labels[start : start + limit]


def count_hits(predict, images, labels, rank, size):
    """Number of images in one rank's share of a test set that `predict` recognises."""
    shares = pieces(images, labels, rank, size)
    return sum((predict(share).argmax(axis=1) == answers).sum() for share, answers in shares)


def _read_pair(folder, kind):
    images = _find(folder, f"{kind}-images-idx3-ubyte")
    labels = _find(folder, f"{kind}-labels-idx1-ubyte")
    return None if images is None or labels is None else (_idx(images) / 255, _idx(labels))


def _find(folder, name):
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def _idx(path):
    """Read an IDX file of bytes: two zeros, type 8, number of dimensions, dimensions, data."""
    data = (gzip.open if path.suffix == ".gz" else open)(path, "rb").read()
    shape = np.frombuffer(data, ">i4", count=data[3], offset=4)
    if data[:3] != b"\0\0\x08" or len(data) != 4 + 4 * len(shape) + math.prod(shape):
        raise SystemExit(f"{path} is not a complete IDX file of bytes")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def _split(images, labels, tests):
    order = np.random.default_rng(SEED).permutation(len(images))
    images, labels = images[order], labels[order]
    return _tidy(images[tests:], labels[tests:]), _tidy(images[:tests], labels[:tests])


def _tidy(images, labels):
    return images[..., np.newaxis].astype(np.float32), labels.astype(np.int64)
