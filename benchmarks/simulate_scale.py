"""How jobs scale that are larger than any machine here: simulated, and held against what is known.

    python benchmarks/simulate_scale.py published [--plots FOLDER]
    python benchmarks/simulate_scale.py choices
    python benchmarks/simulate_scale.py agreement
    python benchmarks/simulate_scale.py own MEASURED.json [--gbit 1]
    python benchmarks/simulate_scale.py jitter

`published`: Horovod's agreement and NCCL's ring are fitted to what Horovod's authors measured on 16
GPUs, checked on their 64, and predict their 512; then this project's agreement and buckets take
the place of Horovod's. `choices`: whether other buckets than the default would be faster.
`agreement`: 27,600 ranks agree. `own`: against what scale_own.py has measured here.
`jitter`: measures anew how steps of one rank differ, for scale/jitter.json.

The simulation is benchmarks/scale/: this project's own runtime, with its agreement, fusion and
backends, on a virtual clock.
"""

import json
import pathlib
import resource
import statistics
import sys
import time

import scale_jobs
import scale_own
import scale_published as told
from absl import app, flags

_PLOTS = flags.DEFINE_string("plots", None, "a folder for the pictures, as SVG")
_GBIT = flags.DEFINE_float("gbit", 1.0, "of the link between two nodes")


def published() -> None:
    fit = told.fit_of_16()
    print(
        f"fitted: a link gives {fit.link:.1%} of its rate, TCP takes {fit.tcp_byte_ns:.3f} ns of a "
        f"byte besides, jitter is {fit.jitter:.2f} times what was measured"
    )
    rows = [("fitted", told.FITTED[0]), ("fitted", told.FITTED[1])]
    rows += [("checked", told.CHECKED), ("predicted", told.PREDICTED)]
    for what, row in rows:
        for model, name in enumerate(told.MODELS):
            measured = row.efficiency(model)
            horovod = told.efficiency(row, model, fit)
            ring, trees = (told.efficiency(row, model, fit, schedule) for schedule in told.OURS)
            print(
                f"{what:9} {row.gpus:4} GPUs {row.network:4} {name:12} measured {measured:6.1%} "
                f"simulated {horovod:6.1%} ({100 * (horovod - measured):+5.1f})   "
                f"tf_hvd: ring {ring:6.1%} trees {trees:6.1%}",
                flush=True,
            )
    if _PLOTS.value:
        import scale_plots

        scale_plots.draw_scaling(pathlib.Path(_PLOTS.value) / "scaling.svg", fit)


def choices() -> None:
    """Other numbers of buckets than the default's, and a last one that is cut up."""
    fit = told.fit_of_16()
    print(" " * 39 + "".join(f"{name:>16}" for name in told.MODELS))
    for row in (told.FITTED[0], told.CHECKED, told.PREDICTED):
        for number, halves in (
            (8, True),
            *((n, False) for n in (1, 4, 8, 16, 32)),
            (4, True),
            (16, True),
        ):
            line = f"{row.gpus:4} GPUs {row.network} {number:2} buckets"
            line += ", the last in halves" if halves else " " * 21
            for model, name in enumerate(told.MODELS):
                gradients = scale_jobs.in_buckets(name, number, halves)
                found = [
                    told.efficiency(row, model, fit, told.OURS[0], gradients, seed)
                    for seed in (1, 2)
                ]
                line += f"{statistics.mean(found):9.1%} +-{50 * abs(found[0] - found[1]):4.1f}"
            print(line, flush=True)


def agreement() -> None:
    """27,600 ranks, six on each of 4,600 nodes, agree on what a step asks for."""
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
    """By the median of the 25 around each: a shared machine is slow for a while."""
    import numpy as np

    around = np.lib.stride_tricks.sliding_window_view(np.pad(seconds, 12, mode="reflect"), 25)
    return seconds / np.median(around, axis=1)


def jitter() -> None:
    """Steps of one rank on one core: a convolutional network, 400 times the same batch.

    A training job has its nodes to itself: steps in which the kernel gave the core to others do
    not count. Forward and backward pass are timed apart: what slows a whole step down slows both,
    and what is late but once delays one of them.
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
    if argv[1:2] == ["own"] and len(argv) == 3:
        return scale_own.check(argv[2], _GBIT.value)
    if len(argv) != 2 or argv[1] not in commands:
        sys.exit(f"simulate_scale.py takes one of {', '.join(commands)}, or own MEASURED.json")
    commands[argv[1]]()


if __name__ == "__main__":
    app.run(main)
