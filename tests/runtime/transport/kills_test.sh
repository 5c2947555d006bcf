#!/usr/bin/env bash
# kill -9 at random moments inside operations: everybody else hears who died,
# and nothing is left, neither a process nor memory.
#   kills_test.sh <Open MPI's prefix> <program> <folder of the shims>
# TF_HVD_KILLS: how many; ./dev prove kills makes more of them.
set -euo pipefail
source tests/runtime/transport/left_segments.sh
prefix=$1 shims=$3
program=$(realpath "$2")  # not that of another checkout
kills=${TF_HVD_KILLS:-12}
session=$(mktemp -d)
trap 'rm -rf "${session}"' EXIT
export PRTE_MCA_prte_local_tmpdir_base="${session}"  # docs/launcher.md says why
export HOME="${HOME:-${TEST_TMPDIR:-/tmp}}"  # Open MPI wants one
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
export TF_HVD_MPI_LIBRARY="${prefix}/lib/libmpi.so.40"

fail() {
  echo "kill $1: $2"
  exit 1
}

for ((seed = 1; seed <= kills; ++seed)); do
  # One machine; two machines, where the other rank of the dead one's tells;
  # messages alone.
  ranks=3
  case $((seed % 3)) in
    0) shape=() ;;
    1) shape=(TF_HVD_RANKS_PER_NODE=2) ranks=4 ;;
    2) shape=(TF_HVD_NODE_DATA=mpi) ;;
  esac
  output=$(env "${shape[@]}" "${prefix}/bin/mpirun" --enable-recovery -n "${ranks}" \
    "${program}" "${seed}" "${shims}" 2>&1) || true
  good=$(grep -c '^ok: ' <<<"${output}") || true
  if [[ "${good}" != $((ranks - 1)) ]] || grep -q FAILED <<<"${output}"; then
    fail "${seed}" "${shape[*]}: ${output}"
  fi
  pgrep -f "^${program} " >/dev/null && fail "${seed}" "a process is left"
done

left=$(left_segments)
[[ -z "${left}" ]] || fail "${kills}" "segments left: ${left}"
echo "${kills} kills: all heard, nothing left"
