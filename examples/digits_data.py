"""Real handwritten digits for the examples, and the share of them that each rank takes."""

import gzip
import math
import pathlib

import numpy as np

SEED = 2017
TEST_IMAGES = {"digits": 297, "mnist": 1000}


def load(folder=None):
    """The images (count, height, width, 1) in 0..1, and their labels: train and test.

    Without a folder these are the 1,797 images of 8x8 pixels that scikit-learn carries.
    A folder holds MNIST's IDX files, compressed or not; if only the test set is there,
    1,000 of its images, chosen by a fixed seed, are the test and the others are trained on.
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
    """How many batches `batches` gives to each rank."""
    whole, rest = divmod(len(images), batch * size)
    return whole + (rest >= size)


def batches(images, labels, batch, epoch, rank, size):
    """One rank's batches of one epoch: all ranks shuffle alike, and share each step's images.

    Together they have each image once. The last step's batches are smaller; what is left
    then, if it is fewer images than there are ranks, waits for another epoch.
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
    """How many of one rank's share of a test set are recognised by `predict`."""
    shares = pieces(images, labels, rank, size)
    return sum((predict(share).argmax(axis=1) == answers).sum() for share, answers in shares)


def _read_pair(folder, kind):
    images = _find(folder, f"{kind}-images-idx3-ubyte")
    labels = _find(folder, f"{kind}-labels-idx1-ubyte")
    return None if images is None or labels is None else (_idx(images) / 255, _idx(labels))


def _find(folder, name):
    return next((p for p in (folder / name, folder / f"{name}.gz") if p.is_file()), None)


def _idx(path):
    """An IDX file of bytes: two zeros, type 8, the number of dimensions, each of them, data."""
    data = (gzip.open if path.suffix == ".gz" else open)(path, "rb").read()
    shape = np.frombuffer(data, ">i4", count=data[3], offset=4)
    if data[:3] != b"\0\0\x08" or len(data) != 4 + 4 * len(shape) + math.prod(shape):
        raise SystemExit(f"{path} is not an IDX file of bytes, or not whole")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def _split(images, labels, tests):
    order = np.random.default_rng(SEED).permutation(len(images))
    images, labels = images[order], labels[order]
    return _tidy(images[tests:], labels[tests:]), _tidy(images[:tests], labels[:tests])


def _tidy(images, labels):
    return images[..., np.newaxis].astype(np.float32), labels.astype(np.int64)
