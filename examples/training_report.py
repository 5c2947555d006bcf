"""Output of the examples: only rank 0 prints, so that nothing appears twice."""

import hashlib
import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Report:
    """A progress bar, a line for each epoch, and the closing lines."""

    def __init__(self, rank, size, epochs, steps, images):
        self._silent = rank != 0
        self._size = size
        self._epochs = epochs
        self._images_per_epoch = images
        self._seconds = []
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(highlight=False, soft_wrap=True),
            disable=self._silent,
        )
        self._task = self._bar.add_task("training", total=epochs * steps)

    def __enter__(self):
        self._bar.start()
        return self

    def __exit__(self, *error):
        self._bar.stop()

    def begin_epoch(self):
        self._begin = time.perf_counter()

    def step(self):
        self._bar.advance(self._task)

    def end_epoch(self):
        """End an epoch's training; the following test is not timed."""
        self._seconds.append(time.perf_counter() - self._begin)

    def tell(self, epoch, loss, accuracy):
        line = f"epoch {epoch + 1}/{self._epochs}  loss {loss:.4f}  accuracy {accuracy:.4f}"
        self._say(line)

    def close(self, accuracy):
        self._say(f"test accuracy: {accuracy:.4f}")
        # The first epoch also traces and compiles.
        seconds = self._seconds[1:] or self._seconds
        if seconds:
            speed = self._images_per_epoch * len(seconds) / sum(seconds)
            self._say(f"images per second: {speed:.0f} ({self._size} ranks)")

    def check_identical(self, digests):
        """Raise an error unless all ranks have the same digest of their variables."""
        self._say(identical(digests))

    def _say(self, line):
        if not self._silent:
            self._bar.console.print(line)


def identical(digests):
    """Return a line that says all ranks have the same digest of their variables, or raise."""
    if len(set(digests)) != 1:
        listed = ", ".join(f"rank {rank}: {d[:12]}" for rank, d in enumerate(digests))
        raise RuntimeError(f"the ranks' weights differ ({listed})")
    return f"weights bit-identical on all {len(digests)} ranks"


def say_result(rank, accuracy, digests):
    """Print the closing lines if Keras has shown the rest."""
    line = identical(digests)
    if rank == 0:
        print(f"test accuracy: {accuracy:.4f}\n{line}", flush=True)


def digest(arrays):
    """A hash of all bits of some arrays."""
    summed = hashlib.sha256()
    for array in arrays:
        summed.update(array.tobytes())
    return summed.hexdigest()
