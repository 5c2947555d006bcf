"""Simulates jobs larger than any machine here, and compares them with published results.

    python benchmarks/simulate_scale.py published [--plots FOLDER] [--tails]
    python benchmarks/simulate_scale.py choices
    python benchmarks/simulate_scale.py agreement
    python benchmarks/simulate_scale.py own MEASURED.json [--gbit 1]
    python benchmarks/simulate_scale.py jitter

`published`: fit Horovod's agreement and NCCL's ring to the measurements of Horovod's authors on
16 GPUs. Check the fit on their 64 GPUs, and predict their 128 and 512. Then repeat with this
project's agreement and buckets. `choices`: compare other buckets with the default. `agreement`:
simulate the agreement of 27,600 ranks. `own`: compare with the measurements of
scale_own.py. `jitter`: measure the variation of one rank's steps again, for scale/jitter.json.

The simulation in benchmarks/scale/ is this project's own runtime on a virtual clock.
docs/scaling.md lists the parts that are real for each table. Build the simulation first:

    ./dev test //tests/scale/... //benchmarks/scale:simulate
"""

import functools
import json
import pathlib
import resource
import statistics
import sys
import time
from collections.abc import Callable

import scale_jobs
import scale_own
import scale_published
from absl import app, flags
from scale_tables import Table, percent, points

_PLOTS = flags.DEFINE_string("plots", None, "folder for the pictures (SVG)")
_GBIT = flags.DEFINE_float(
    "gbit", 1.0, "rate of the link between two nodes in Gbit/s", lower_bound=0.001
)


def published() -> None:
    picture = _picture()
    fit = scale_published.fit_of_16()
    print(
        f"fitted: a link gives {fit.link:.1%} of its rate, TCP adds {fit.tcp_byte_ns:.3f} ns to a "
        f"byte, jitter is {fit.jitter:.2f} times the measured jitter\n"
    )
    table = Table(
        *("rows", "GPUs", "network", "model", "measured", "as on 16 GPUs", "error"),
        *("Horovod, simulated", "error", "tf_hvd, ring", "tf_hvd, trees"),
    )
    rows = [("fitted", row) for row in scale_published.FITTED]
    rows += [("checked", scale_published.CHECKED)]
    rows += [("predicted", row) for row in scale_published.PREDICTED]
    for what, row in rows:
        for model, name in enumerate(scale_published.NAMES):
            table.row(what, str(row.gpus), _network(row), name, *_figures(what, row, model, fit))
    if picture:
        picture(fit)


def _picture() -> Callable[[scale_published.Fit], None] | None:
    """Return a function that draws into the folder of --plots; check the folder first."""
    if not _PLOTS.value:
        return None
    folder = pathlib.Path(_PLOTS.value)
    try:
        import scale_plots

        folder.mkdir(parents=True, exist_ok=True)
    except (ImportError, OSError) as error:
        sys.exit(f"--plots: {error}")
    return lambda fit: scale_plots.draw_scaling(folder / "scaling.svg", fit)


def _network(row: scale_published.Row) -> str:
    return f"{row.gbit:g} Gbit/s, {row.network.upper()}"


def _figures(what: str, row: scale_published.Row, model: int, fit: scale_published.Fit):
    """Figures of a row of the table: measured, expected without simulation, and simulated."""
    measured = row.efficiency(model)
    same = scale_published.baseline(row, model)
    simulated = scale_published.efficiency(row, model, fit)
    fitted = what == "fitted"
    return (
        percent(measured),
        *(("", "") if fitted else (percent(same), points(same - measured))),
        percent(simulated),
        points(simulated - measured),
        *(
            percent(scale_published.efficiency(row, model, fit, schedule))
            for schedule in scale_published.OURS
        ),
    )


# Minimum number of buckets, whether the last is cut in halves, and the maximum MiB of one.
_CHOICES = (
    *((8, True, 32), (1, False, 32), (4, False, 32), (8, False, 32), (16, False, 32)),
    *((32, False, 32), (4, True, 32), (16, True, 32), (8, True, 64), (8, False, 64)),
)
_CHOICE_ROWS = (
    scale_published.FITTED[0],
    scale_published.CHECKED,
    scale_published.PREDICTED[-1],
)


def choices() -> None:
    """Compare the default buckets with more, fewer and larger ones, and with a whole last one."""
    fit = scale_published.fit_of_16()
    print(
        f"{' / '.join(scale_published.NAMES)}; efficiency in %, means of two draws of the jitter\n"
    )
    table = Table(
        *("target", "MiB at most", "last bucket", "buckets"),
        *(f"{row.gpus} GPUs, {row.network.upper()}" for row in _CHOICE_ROWS),
    )
    apart = dict.fromkeys(_CHOICE_ROWS, 0.0)

    @functools.cache  # several choices give a model the same buckets
    def both(row, model, gradients):
        found = [
            scale_published.efficiency(
                row, model, fit, scale_published.OURS[0], gradients, seed=seed
            )
            for seed in (1, 2)
        ]
        apart[row] = max(apart[row], abs(found[0] - found[1]))
        return 100 * statistics.mean(found)

    for number, halves, mib in _CHOICES:
        plans = [
            scale_jobs.in_buckets(model, number, halves, mib << 20)
            for model in scale_published.MODELS
        ]
        table.row(
            str(number),
            str(mib),
            "in halves" if halves else "whole",
            " / ".join(str(len(plan)) for plan in plans),
            *(
                " / ".join(f"{both(row, model, plan):.1f}" for model, plan in enumerate(plans))
                for row in _CHOICE_ROWS
            ),
        )
    print("\nthe two draws differ by up to", end=" ")
    print(", ".join(f"{100 * by:.1f} on {row.gpus} GPUs" for row, by in apart.items()))


def agreement() -> None:
    """Simulate the agreement on one step's requests: 27,600 ranks, six on each of 4,600 nodes."""
    began = time.monotonic()
    calls = [(f"bucket{number}", 0.0, []) for number in range(8)]
    steps = {"steps": 3, "warmup": 2}
    settings = {"nodes": 4600, "ranks_per_node": 6, "schedule": "gpu", **steps}
    agreed = scale_jobs.simulate(settings, calls)
    took = time.monotonic() - began
    step = statistics.mean(agreed["steps_ns"]) / 1e3
    messages = agreed["agreement_messages"] // sum(steps.values())
    print(
        f"27600 ranks agree on 8 calls in {step:.0f} us, with {messages} messages between nodes; "
        f"simulated in {took:.1f} s"
    )


def _without_drift(seconds):
    """Divide by the median of the 25 around each: a shared machine is slow for a while."""
    import numpy as np

    around = np.lib.stride_tricks.sliding_window_view(np.pad(seconds, 12, mode="reflect"), 25)
    return seconds / np.median(around, axis=1)


def jitter() -> None:
    """Measure steps of one rank on one core: a convolutional network, 400 times the same batch.

    A training job has its nodes to itself, so steps in which the kernel gave the core to another
    process are dropped. Forward and backward pass are timed separately: a slow step slows both,
    and a single delay affects one of them.
    """
    import numpy as np
    import tensorflow as tf

    layers = [tf.keras.layers.Conv2D(64, 3, activation="relu") for _ in range(6)]
    layers += [tf.keras.layers.GlobalAveragePooling2D(), tf.keras.layers.Dense(10)]
    network = tf.keras.Sequential([tf.keras.Input([32, 32, 3]), *layers])
    images, labels = tf.ones([32, 32, 32, 3]), tf.ones([32, 10])
    marks = []
    for _ in range(420):
        taken = resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
        began = time.perf_counter()
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(network(images, training=True) - labels))
        loss.numpy()
        middle = time.perf_counter()
        gradients = tape.gradient(loss, network.trainable_variables)
        gradients[0].numpy()
        times = middle - began, time.perf_counter() - middle
        if resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw == taken:
            marks.append(times)
    forward, backward = (_without_drift(each) for each in np.array(marks[20:]).T)
    steps = forward + 2 * backward
    quantiles = np.quantile(steps, (np.arange(200) + 0.5) / 200) / steps.mean()
    found = {
        "steps": len(steps),
        "correlation_of_passes": round(float(np.corrcoef(forward, backward)[0, 1]), 3),
        "quantiles": [round(float(each), 5) for each in quantiles],
    }
    print(f"standard deviation {steps.std() / steps.mean():.2%}, {found}")
    (scale_jobs.FOLDER / "jitter.json").write_text(json.dumps(found) + "\n")


def main(argv):
    commands = {each.__name__: each for each in (published, choices, agreement, jitter)}
    if argv[1:2] == ["own"] and len(argv) > 2:
        return scale_own.check(argv[2:], _GBIT.value)
    if len(argv) != 2 or argv[1] not in commands:
        sys.exit(
            f"simulate_scale.py needs a command: {', '.join(commands)}, or own MEASURED.json ..."
        )
    commands[argv[1]]()


if __name__ == "__main__":
    app.run(main)
