# The tests. Sourced by ./dev, after setup.sh and build.sh.
# shellcheck shell=bash

# Without arguments the first tier, with --all everything; otherwise the named tests: labels of C++
# tests go to bazel test, -np is a job of tests/python/parallel, and everything else goes to
# pytest.
run_tests() {
  require_gtest
  TESTS_MARK=tf_hvd_$$_${RANDOM}
  case "${1:-}" in
    '') run_tier 1 ;;
    --all)
      run_tier 2
      ;;
    //*)
      cpp_tests "$@"
      ;;
    -np)
      build_and_install_wheel
      stop_bazel
      run_parallel "$@"
      ;;
    *)
      build_and_install_wheel
      build_software_gpu
      stop_bazel
      run_pytest "$@"
      ;;
  esac
}

# CONTRIBUTING.md lists the tests of each tier.
run_tier() {
  local tier=$1 lanes=2
  stage "the wheel" build_and_install_wheel
  if [[ ${tier} -eq 1 ]]; then
    stage "C++ tests" cpp_tests --config=tier1 -- //... -//tests/gpu/...
  else
    stage "C++ tests" cpp_tests -- //...
    if command -v nvcc >/dev/null; then
      stage "the code for GPUs, compiled by nvcc" nvcc_check
    fi
    stage "the software GPU" build_software_gpu
    lanes=3 # one of them starts with tests/sanitizers_test.py
  fi
  stop_bazel
  say "set-up and C++ took $(minutes "${SECONDS}"); Python tests"
  # Several at a time: most tests start jobs, and each job waits for something.
  run_pytest --tier="${tier}" --numprocesses="${lanes}" --durations=20 tests
}

build_and_install_wheel() {
  build_wheel
  install_wheel
}

# Runs C++ tests; for failed ones, prints the command that runs only them at the end.
cpp_tests() {
  local log=build/cpp_tests.log failed flags
  mkdir -p build
  BAZEL_USED=1 # a variable set in the pipe's shell is lost
  bazel test "$@" 2>&1 | tee "${log}" && return
  mapfile -t failed < <(sed -nE 's/^(\/\/\S+) +(FAILED|TIMEOUT).*/\1/p' "${log}")
  mapfile -t flags < <(printf '%s\n' "$@" | grep -E '^--config=.san$')
  die "C++ tests failed${failed[*]:+; again: ./dev test ${failed[*]}${flags[*]:+ ${flags[*]}}}"
}

nvcc_check() {
  bazel build --config=cuda //... || die "nvcc found faults: see the lines above"
}

# The programs that tests/gpu starts.
build_software_gpu() {
  bazel build //tests/gpu:libsoftware_device.so //tests/gpu:run_gpu_programs ||
    die "the build failed: see the lines above"
  mkdir -p build/gpu
  install -m 644 bazel-bin/tests/gpu/libsoftware_device.so build/
  install bazel-bin/tests/gpu/{libsoftware_gpu.so,device_check,device_bandwidth,device_probes,nccl_job} build/gpu/
}

# tests/parallel_runs_test.py starts the tests in tests/python/parallel, under each MPI.
# PYTHONSAFEPATH keeps the checkout's tf_hvd/ off the path. All started processes carry a mark, by
# which end_marked finds them. In a process that imports TensorFlow and ends, garbage collection
# takes 30 % of the time. TF_HVD_TESTS_GC makes it rare, and skips it at the end.
run_pytest() {
  PATH="${VENV}/bin:${PATH}" PYTHONSAFEPATH=1 TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2} \
    TF_HVD_TESTS_MARK=${TESTS_MARK} TF_HVD_TESTS_GC=lazy \
    "${VENV}/bin/pytest" --ignore=tests/python/parallel "$@"
}

# test -np N [--mpi openmpi|mpich] TESTS: runs files of tests/python/parallel in one job.
run_parallel() {
  local ranks=${2:?-np needs a number} library=${VENV}/lib/libmpi.so.40
  shift 2
  if [[ ${1:-} == --mpi ]]; then
    case "${2:-}" in
      openmpi) ;;
      mpich) library=${VENV}/mpi/mpich/lib/libmpi.so.12 ;;
      *) die "--mpi needs openmpi or mpich, not '${2:-}'" ;;
    esac
    shift 2
  fi
  # As tests/parallel_runs_test.py starts them: as if on two machines.
  [[ ${ranks} -ne 4 ]] || export TF_HVD_RANKS_PER_NODE=2
  [[ ${ranks} -ne 2 || ${library} != */mpich/* ]] || export TF_HVD_RANKS_PER_NODE=1
  TF_HVD_MPI_LIBRARY=${library} TF_HVD_TESTS_MARK=${TESTS_MARK} PYTHONSAFEPATH=1 \
    run_ranks "${ranks}" -m pytest -q -p no:cacheprovider -p no:xdist "$@"
}

TESTS_MARK=
# Kills processes that interrupted tests have left running.
end_marked() {
  [[ -n ${TESTS_MARK} && -x ${PYTHON} ]] || return 0
  "${PYTHON}" -P "${ROOT}/dev_support/end_marked.py" "${TESTS_MARK}"
}

# Runs a command under a heading, and prints the time it took.
stage() {
  local name=$1 start=${SECONDS}
  shift
  say "${name}"
  "$@" # not in an || list, where failures within it would not end it
  say "${name}: $(minutes $((SECONDS - start)))"
}

minutes() { printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); }

# Random programs of collectives, compared with NumPy, and random trainings, compared with one
# worker. The same seed and number of ranks give the same programs. If one kind is requested, only
# that kind runs.
fuzz() {
  local ranks=2 programs='' training='' seed=${RANDOM} argument value again choices=()
  while [[ $# -gt 0 ]]; do
    argument=$1 value=${2:-}
    if [[ ${argument} == --api ]]; then
      choices+=("${argument}" "${value}")
      shift 2
      continue
    fi
    [[ ${value} =~ ^[0-9]+$ ]] || die "fuzz: ${argument} needs a number, not '${value}'"
    case "${argument}" in
      -np) ranks=${value} ;;
      --programs) programs=${value} ;;
      --training) training=${value} ;;
      --seed) seed=${value} ;;
      --only | --shrink | --known)
        choices+=("${argument}" "${value}")
        training=${training:-1}
        ;;
      *)
        die "unknown argument '${argument}' of fuzz; use --programs, --training, --seed, -np," \
          "for training programs --api keras, or for one of them --only, --shrink and --known"
        ;;
    esac
    shift 2
  done
  [[ -n ${programs}${training} ]] || programs=1000 training=50
  build_and_install_wheel
  stop_bazel
  again="--seed ${seed} -np ${ranks}"
  if [[ -n ${programs} ]]; then
    say "${programs} programs with ${ranks} rank(s); repeat with --programs ${programs} ${again}"
    run_ranks "${ranks}" tests/python/parallel/programs_run.py --programs "${programs}" --seed "${seed}"
  fi
  if [[ -n ${training} ]]; then
    say "${training} trainings with ${ranks} rank(s); repeat with --training ${training} ${again}"
    run_ranks "${ranks}" tests/python/parallel/training_run.py --programs "${training}" \
      --seed "${seed}" ${choices[@]+"${choices[@]}"}
  fi
}
