"""Writes a small system for DeePMD-kit: clusters of atoms with exact energies and forces.

python tests/clients/deepmd_system.py FOLDER writes FOLDER/system, in DeePMD-kit's npy form, and
FOLDER/input.json. Energies are sums over pairs of k (r - r0)^2 / 2, in eV; lengths are in
Angstrom. Each step takes the whole system, and the learning rate does not grow with the number of
ranks. So two ranks with the same frames must give the result of one.
"""

import json
import pathlib
import sys

import numpy as np

ATOMS, FRAMES, STIFFNESS, LENGTH = 5, 24, 2.0, 2.0


def energies_and_forces(places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Energies (frames) and forces (frames, atoms, 3) of places (frames, atoms, 3)."""
    apart = places[:, :, None] - places[:, None, :]
    lengths = np.sqrt((apart**2).sum(-1)) + np.eye(ATOMS) * LENGTH
    stretched = lengths - LENGTH
    energies = STIFFNESS / 4 * (stretched**2).sum((1, 2))  # each pair occurs twice
    forces = -(STIFFNESS * stretched / lengths)[..., None] * apart
    return energies, forces.sum(2)


def write(folder: pathlib.Path, steps: int) -> None:
    """Write the system and the input of a training run of `steps` steps."""
    random = np.random.default_rng(1)
    start = random.normal(size=(ATOMS, 3)) * LENGTH / 2
    places = start + random.normal(size=(FRAMES, ATOMS, 3)) * 0.2
    energies, forces = energies_and_forces(places)
    system = folder / "system"
    (system / "set.000").mkdir(parents=True)
    (system / "type.raw").write_text("0\n" * ATOMS)
    (system / "type_map.raw").write_text("X\n")
    (system / "nopbc").touch()
    values = {"coord": places, "energy": energies, "force": forces, "box": np.eye(3) * 100.0}
    for name, value in values.items():
        value = np.broadcast_to(value, (FRAMES, 3, 3)) if name == "box" else value
        np.save(system / "set.000" / f"{name}.npy", value.reshape(FRAMES, -1))
    descriptor = {"type": "se_e2_a", "sel": [ATOMS], "rcut": 6.0, "rcut_smth": 0.5, "seed": 1}
    settings = {
        "model": {
            "type_map": ["X"],
            "descriptor": {**descriptor, "neuron": [8, 16], "axis_neuron": 4},
            "fitting_net": {"neuron": [16, 16], "seed": 1},
        },
        "learning_rate": {
            "type": "exp",
            "start_lr": 0.005,
            "stop_lr": 1e-4,
            "decay_steps": 50,
            "scale_by_worker": "none",
        },
        "loss": {
            "type": "ener",
            "start_pref_e": 1,
            "limit_pref_e": 1,
            "start_pref_f": 100,
            "limit_pref_f": 1,
        },
        "training": {
            "training_data": {"systems": ["system"], "batch_size": FRAMES},
            "numb_steps": steps,
            "seed": 1,
            "disp_freq": steps // 10,
            "save_freq": steps,
        },
    }
    (folder / "input.json").write_text(json.dumps(settings, indent=2))


if __name__ == "__main__":
    write(pathlib.Path(sys.argv[1]), steps=200)
