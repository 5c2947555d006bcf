# Tests and lints. Sourced by ./dev, after setup.sh and build.sh.
# shellcheck shell=bash

# With arguments: pytest alone, with these, against the wheel of this checkout.
run_tests() {
  require_gtest
  build_wheel
  install_wheel
  if [[ $# -eq 0 ]]; then
    say "C++ tests"
    bazel test //... || die "C++ tests failed"
    if command -v nvcc >/dev/null; then
      say "The code for GPUs, compiled by nvcc"
      bazel build --config=cuda //... || die "nvcc found faults: see the lines above"
    fi
    say "C++ tests with AddressSanitizer and UBSan"
    bazel test --config=asan //... || die "C++ tests failed under AddressSanitizer or UBSan"
    say "C++ tests with ThreadSanitizer"
    bazel test --config=tsan //... || die "C++ tests failed under ThreadSanitizer"
    set -- --durations=20 tests
  fi
  # For tests/gpu.
  bazel build //tests/gpu:libsoftware_device.so //tests/gpu:run_gpu_programs ||
    die "the build failed: see the lines above"
  mkdir -p build/gpu
  install -m 644 bazel-bin/tests/gpu/libsoftware_device.so build/
  install bazel-bin/tests/gpu/{libsoftware_gpu.so,device_check,device_bandwidth,nccl_job} build/gpu/
  stop_bazel
  say "Python tests"
  # tests/parallel_runs_test.py starts what lies in tests/python/parallel, under
  # each MPI. PYTHONSAFEPATH keeps the checkout's tf_hvd/ off the path.
  PATH="${VENV}/bin:${PATH}" PYTHONSAFEPATH=1 TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2} \
    "${VENV}/bin/pytest" --ignore=tests/python/parallel "$@"
}

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
  build_wheel
  install_wheel
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

# The documentation as a site; a link that leads nowhere is an error.
docs() {
  NO_MKDOCS_2_WARNING=1 "${VENV}/bin/mkdocs" build --strict --quiet ||
    die "the documentation has faults: see the lines above"
  say "the documentation is in build/site: open build/site/index.html"
}

lint() {
  local failed=0 formatted sources scripts
  PATH="${VENV}/bin:${PATH}"
  mapfile -t formatted < <(checkout_files '*.h' '*.cc')
  mapfile -t sources < <(checkout_files 'runtime/*.cc' 'kernels/buffer_ops*.cc' 'kernels/device_image.cc')
  mapfile -t scripts < <(checkout_files dev .ci/run '*.sh')
  run_check "ruff check" ruff check . || failed=1
  run_check "ruff format" ruff format --check . || failed=1
  run_check mypy mypy || failed=1
  run_check clang-format clang-format --dry-run -Werror "${formatted[@]}" || failed=1
  run_check clang-tidy tidy "${sources[@]}" || failed=1
  if command -v shellcheck >/dev/null; then
    run_check shellcheck shellcheck --external-sources "${scripts[@]}" || failed=1
  fi
  [[ ${failed} -eq 0 ]] || die "lint found faults: see the lines above"
  say "lint is clean"
}

checkout_files() {
  git -c safe.directory="${ROOT}" ls-files --cached --others --exclude-standard -- "$@"
}

# The runtime's files, which need no header but their own and, for MPI's shim,
# one family's mpi.h. What it says of the headers of others is left out.
tidy() {
  # shellcheck disable=SC2016
  printf '%s\0' "$@" | xargs -0 -n 4 -P 2 sh -c \
    'clang-tidy --quiet "$@" -- -std=c++17 -I. -isystem "$0" 2>/dev/null' "${VENV}/include"
}

# Says which check is at work, and shows what it prints where it finds a fault.
run_check() {
  local output name=$1
  shift
  printf '%s ... ' "${name}"
  if output=$("$@" 2>&1); then
    echo ok
  else
    printf 'failed\n%s\n' "${output}"
    return 1
  fi
}
