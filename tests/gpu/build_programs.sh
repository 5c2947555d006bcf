#!/usr/bin/env bash
# Compiles the programs of tests/run_gpu.sh only with g++, without
# Bazel: build_programs.sh <folder> <device_codes.cc>
#
# A file is compiled again if it, or any header, is newer than its object. OPTIMIZE=0 only
# checks that everything compiles and links.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=$1 codes=$2
programs=(device_check device_bandwidth device_probes nccl_job)
mkdir -p "${out}/objects"

# Common headers are precompiled. Files with different flags read them again.
common=${out}/objects/common.h
flags=(-std=c++17 "-O${OPTIMIZE:-2}" -g0 -fPIC -pthread -I.)
newest_header=$(find base runtime compute tests/gpu -name '*.h' -newer "${out}/objects/stamp" 2>/dev/null |
  head -1 || true)
[[ -e ${out}/objects/stamp && -z ${newest_header} ]] || rm -f "${out}"/objects/*.o

printf '#include <%s>\n' algorithm atomic chrono cstring deque functional map memory mutex \
  optional random set sstream string string_view thread utility vector >"${common}"
"${CXX:-g++}" "${flags[@]}" -x c++-header "${common}" -o "${common}.gch"
flags+=(-include "${common}")

# The runtime without MPI, the arithmetic, and the programs' shared parts.
mapfile -t sources < <(
  find base runtime compute -name '*.cc' ! -name '*.cu.cc' |
    grep -vE '/(mpi|mpi_library|liveness)/|/gpu/mpi_|/api/(c_api|bootstrap|init_watch|launcher_watch|set_calls)\.cc$'
)
shared=(device_side device_rank device_sums_check collective_list socket_world
  probe_calls probe_memory probe_side probe_streams spin_kernel)
for name in "${shared[@]}" "${programs[@]}"; do sources+=("tests/gpu/${name}.cc"); done
sources+=("${codes}")

# One compiler's command: the source, then its flags.
compile() {
  local source=$1 object
  object=${OUT}/objects/$(tr / _ <<<"${source#/}").o
  [[ ${object} -nt ${source} ]] && return
  local more=()
  case "${source}" in
    *_avx512.cc) more=("${LOOPS}" -ffp-contract=off -mavx512f -mavx512bw -mavx512dq -mavx512vl -mf16c -mprefer-vector-width=512) ;;
    *_avx2.cc) more=("${LOOPS}" -ffp-contract=off -mavx2 -mf16c) ;;
    *_baseline.cc) more=("${LOOPS}" -ffp-contract=off) ;;
    *_cpu.cc | *fused_loops.cc) more=("${LOOPS}") ;;
  esac
  # shellcheck disable=SC2086
  "${CXX:-g++}" ${FLAGS} "${more[@]}" -c "${source}" -o "${object}"
}
export -f compile
export OUT=${out} FLAGS="${flags[*]}" LOOPS=-O${OPTIMIZE:-3}
printf '%s\0' "${sources[@]}" |
  xargs -0 -n 1 -P "$(nproc)" bash -c 'set -euo pipefail; compile "$1"' _
touch "${out}/objects/stamp"

# The linker takes only the needed parts of an archive.
rm -f "${out}/objects/all.a"
mapfile -t objects < <(find "${out}/objects" -name '*.o' ! -name 'tests_gpu_device_check*' \
  ! -name 'tests_gpu_device_bandwidth*' ! -name 'tests_gpu_device_probes*' \
  ! -name 'tests_gpu_nccl_job*')
ar rcs "${out}/objects/all.a" "${objects[@]}"
for name in "${programs[@]}"; do
  "${CXX:-g++}" -pthread "${out}/objects/tests_gpu_${name}.cc.o" "${out}/objects/all.a" \
    -ldl -lrt -o "${out}/${name}"
done
echo "${#programs[@]} programs of ${#sources[@]} files"
