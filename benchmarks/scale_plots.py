"""Draws the results of simulate_scale.py."""

import pathlib

import scale_published as scale
from matplotlib.figure import Figure

_NODES = (1, 2, 4, 8, 16, 32, 64, 128)
_COLOURS = {"horovod": "#d55e00", "gpu": "#0072b2"}
_NAMES = {"horovod": "Horovod's schedule", "gpu": "tf_hvd's schedule"}


def draw_scaling(path: pathlib.Path, fit: scale.Fit) -> None:
    """Draw the efficiency by number of GPUs for each model, with the measurements."""
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    panels = figure.subplots(1, len(scale.MODELS), sharey=True)
    rows = [scale.Row(nodes, "rdma", 25, scale.FITTED[0].single_gpu) for nodes in _NODES]
    gpus = [row.gpus for row in rows]
    for model, panel in enumerate(panels):
        for schedule in (scale.HOROVOD, scale.OURS[0]):
            found = [100 * scale.efficiency(row, model, fit, schedule) for row in rows]
            panel.plot(gpus, found, color=_COLOURS[schedule.name], label=_NAMES[schedule.name])
        bound = [100 * scale.ceiling(row, model, fit) for row in rows]
        panel.plot(gpus, bound, color="#777777", linestyle=":", label="the links are never idle")
        for measured, filled in ((scale.FITTED[:1], False), (scale.PREDICTED, True)):
            panel.plot(
                [row.gpus for row in measured],
                [100 * row.efficiency(model) for row in measured],
                "o",
                color=_COLOURS["horovod"],
                markerfacecolor=_COLOURS["horovod"] if filled else "white",
                label="Horovod, measured" if filled else "Horovod, measured: fitted to",
            )
        panel.set_title(scale.MODELS[model])
        panel.set_xscale("log", base=2)
        panel.set_xticks(gpus, [str(each) for each in gpus])
        panel.set_xlabel("GPUs, 4 on each node")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("efficiency, %")
    panels[0].set_ylim(50, 102)
    panels[-1].legend(fontsize=8, loc="lower left")
    figure.savefig(path, metadata={"Date": None})
