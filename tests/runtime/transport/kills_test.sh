#!/usr/bin/env bash
# kill -9 at random moments inside operations, and a failure on one rank:
# all other ranks get the error, and neither a process nor memory is left.
#   kills_test.sh <openmpi or mpich> <its prefix> <program> <folder of the shims>
# TF_HVD_KILLS: number of kills; ./dev prove kills makes more of them.
set -euo pipefail
family=$1 prefix=$2 shims=$4
kills=${TF_HVD_KILLS:-12}
started=$(mktemp)
session=$(mktemp -d)
program="${session}/kills_main"  # a path that no other test's processes use
cp "$3" "${program}"
trap 'rm -rf "${started}" "${session}"' EXIT
export PRTE_MCA_prte_local_tmpdir_base="${session}"  # docs/launcher.md says why
export HOME="${HOME:-${TEST_TMPDIR:-/tmp}}"  # Open MPI needs one
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe

# Keeps the survivors of a death alive. MPICH's launcher sends them SIGUSR1,
# and kills them when the dead rank's connection to it closes: a shell around
# each rank holds that open.
if [[ "${family}" == openmpi ]]; then
  launcher=("${prefix}/bin/mpirun" --enable-recovery) shell=()
  export TF_HVD_MPI_LIBRARY="${prefix}/lib/libmpi.so.40"
else
  launcher=("${prefix}/bin/mpiexec" -disable-auto-cleanup)
  shell=(bash -c 'trap "" USR1; "$@"; sleep 1' --)
  export TF_HVD_MPI_LIBRARY="${prefix}/lib/libmpi.so.12"
fi
if [[ ! -x "${launcher[0]}" ]]; then
  echo "the ${family} launcher is missing: pip install ${family}, or run ./dev setup" >&2
  exit 1
fi

# Other tests have segments too, which their processes use: only unused segments are left over.
unused_segments() {
  local file
  for file in /dev/shm/tf_hvd_*; do
    if [[ -e "${file}" ]] && ! grep -qs "${file##*/}" /proc/[0-9]*/maps; then
      echo "${file}"
    fi
  done
}

# Left over by earlier failed tests.
segments_before=$(unused_segments)

# Prints the segments that are still unused after at most 5 seconds.
left_segments() {
  local left attempt
  left=$(comm -13 <(echo "${segments_before}") <(unused_segments))
  for attempt in $(seq 50); do
    [[ -n "${left}" ]] || return 0
    sleep 0.1
    left=$(comm -12 <(echo "${left}") <(unused_segments))
  done
  echo "${left}"
}

fail() {
  echo "$1: $2"
  exit 1
}

# run <dies or fails> <seed>: a job in which the last rank does so.
run() {
  local how=$1 ranks=3 shape=() output good
  # One machine, which finds the launcher's own library; two machines, where the
  # dead rank's neighbour reports its death; messages only.
  case $(($2 % 3)) in
    0) shape=(-u TF_HVD_MPI_LIBRARY) ;;
    1) shape=(TF_HVD_RANKS_PER_NODE=2) ranks=4 ;;
    2) shape=(TF_HVD_NODE_DATA=mpi) ;;
  esac
  # Inside a message to a dead rank MPICH fails before any rank gets the error.
  if [[ "${family}" == mpich && "${how}" == dies && $(($2 % 3)) != 0 ]]; then how=waits; fi
  output=$(env "${shape[@]}" "${launcher[@]}" -n "${ranks}" \
    "${shell[@]}" "${program}" "${how}" "$2" "${shims}" 2>&1) || true
  # MPICH's launcher may put two ranks' texts before their line breaks.
  good=$(grep -o 'ok: ' <<<"${output}" | wc -l) || true
  [[ "${how}" == fails ]] || ranks=$((ranks - 1))
  if [[ "${good}" != "${ranks}" ]] || grep -q FAILED <<<"${output}"; then
    fail "${how} $2" "${shape[*]}: ${output}"
  fi
  pgrep -f "^${program} " >/dev/null && fail "${how} $2" "a process is still running"
  return 0
}

for ((seed = 1; seed <= kills; ++seed)); do run dies "${seed}"; done
for seed in 1 2 3; do run fails "${seed}"; done

# Files that the MPI libraries leave behind after an aborted job.
find /dev/shm -maxdepth 1 -user "$(id -un)" -newer "${started}" \
    \( -name 'mpich_shm_*' -o -name 'sm_segment.*' \) 2>/dev/null |
  while read -r file; do
    grep -qsF "${file}" /proc/[0-9]*/maps || rm -f "${file}"
  done

left=$(left_segments)
[[ -z "${left}" ]] || fail "${kills} kills" "segments left: ${left}"
echo "${kills} kills and 3 failures: all ranks got the error, nothing left"
