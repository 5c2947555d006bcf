#!/usr/bin/env bash
# Runs mpi_world_main under one family's launcher:
#   mpi_world_test.sh <family> <its prefix> <the other family's prefix> <program> <folder of the shims>
set -euo pipefail
source tests/runtime/transport/left_segments.sh
family=$1 prefix=$2 other=$3 program=$4 shims=$5
started=$(mktemp)
session=$(mktemp -d)
trap 'rm -rf "${started}" "${session}"' EXIT
export PRTE_MCA_prte_local_tmpdir_base="${session}"  # docs/launcher.md says why
export HOME="${HOME:-${TEST_TMPDIR:-/tmp}}"  # Open MPI wants one
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

if [[ "${family}" == openmpi ]]; then
  launcher="${prefix}/bin/mpirun"
  survive=--enable-recovery
  library="${prefix}/lib/libmpi.so.40" wrong="${other}/lib/libmpi.so.12"
else
  launcher="${prefix}/bin/mpiexec"
  survive=-disable-auto-cleanup
  library="${prefix}/lib/libmpi.so.12" wrong="${other}/lib/libmpi.so.40"
fi
if [[ ! -x "${launcher}" ]]; then
  echo "there is no ${family} launcher: pip install ${family}, or run ./dev setup" >&2
  exit 1
fi

# run <ranks that must say ok> <number of ranks> <mode> [options of the launcher]
run() {
  local expected=$1 ranks=$2 mode=$3
  shift 3
  local output
  if [[ $# == 0 ]]; then
    output=$("${launcher}" -n "${ranks}" "${program}" "${mode}" "${shims}" 2>&1) || true
  else
    output=$("${launcher}" "$@" -n "${ranks}" "${shell[@]}" "${program}" "${mode}" "${shims}" 2>&1) || true
  fi
  local good
  good=$(grep -c '^ok: ' <<<"${output}") || true
  echo "${family} ${mode} on ${ranks} ranks, ${TF_HVD_RANKS_PER_NODE:-all} per node: ${good} ok"
  if [[ "${good}" != "${expected}" ]] || grep -q FAILED <<<"${output}"; then
    echo "${output}"
    exit 1
  fi
}

# What keeps the survivors of a death alive. MPICH's launcher sends them SIGUSR1,
# and kills them when the dead rank's connection to it closes: a shell around
# each rank holds that open.
if [[ "${family}" == mpich ]]; then
  shell=(bash -c 'trap "" USR1; "$@"; sleep 1' --)
else
  shell=()
fi

export TF_HVD_MPI_LIBRARY="${library}"
"${program}" alone "${shims}"
run 2 2 collectives
run 4 4 collectives
run 2 2 reuse
run 4 4 part
run 3 3 outsider
run 2 2 gives_up
run 1 2 stopped
run 3 4 death "${survive}"
run 4 4 raise "${survive}"
export TF_HVD_RANKS_PER_NODE=1
run 2 2 collectives
run 4 4 part
run 4 4 collectives
run 4 4 raise "${survive}"
export TF_HVD_RANKS_PER_NODE=2
run 4 4 collectives
run 3 3 collectives
run 3 4 death "${survive}"
run 3 3 raise "${survive}"
unset TF_HVD_RANKS_PER_NODE

# Without a hint the launcher's own library is found.
unset TF_HVD_MPI_LIBRARY
run 2 2 collectives

export TF_HVD_MPI_LIBRARY="${wrong}"
run 2 2 refused
export TF_HVD_MPI_LIBRARY=/nowhere/libmpi.so
run 2 2 refused

# What the MPI libraries themselves leave behind of a job that was aborted.
find /dev/shm -maxdepth 1 -user "$(id -un)" -newer "${started}" \
    \( -name 'mpich_shm_*' -o -name 'sm_segment.*' \) 2>/dev/null |
  while read -r file; do
    grep -qsF "${file}" /proc/[0-9]*/maps || rm -f "${file}"
  done

left=$(left_segments)
[[ -z "${left}" ]] || { echo "segments left: ${left}" && exit 1; }
