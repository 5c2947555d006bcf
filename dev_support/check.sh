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
    say "C++ tests with AddressSanitizer and UBSan"
    bazel test --config=asan //... || die "C++ tests failed under AddressSanitizer or UBSan"
    say "C++ tests with ThreadSanitizer"
    bazel test --config=tsan //... || die "C++ tests failed under ThreadSanitizer"
    set -- tests
  fi
  stop_bazel
  say "Python tests"
  # tests/parallel_runs_test.py starts what lies in tests/python/parallel, under
  # each MPI. PYTHONSAFEPATH keeps the checkout's tf_hvd/ off the path.
  PATH="${VENV}/bin:${PATH}" PYTHONSAFEPATH=1 TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2} \
    "${VENV}/bin/pytest" --ignore=tests/python/parallel "$@"
}

lint() {
  local failed=0 sources headers_and_sources
  PATH="${VENV}/bin:${PATH}"
  mapfile -t headers_and_sources < <(git -c safe.directory="${ROOT}" ls-files --cached --others --exclude-standard -- '*.h' '*.cc' '*.cu')
  mapfile -t sources < <(git -c safe.directory="${ROOT}" ls-files --cached --others --exclude-standard -- 'runtime/*.cc')
  run_check ruff check . || failed=1
  run_check ruff format --check . || failed=1
  run_check mypy || failed=1
  run_check clang-format --dry-run -Werror "${headers_and_sources[@]}" || failed=1
  # mpi_api.cc is compiled against the mpi.h of each family; one is enough here.
  run_check clang-tidy --quiet "${sources[@]}" -- -std=c++17 -I. -isystem "${VENV}/include" \
    || failed=1
  if command -v shellcheck >/dev/null; then
    run_check shellcheck --external-sources dev .ci/run dev_support/*.sh build_defs/*.sh || failed=1
  fi
  [[ ${failed} -eq 0 ]] || die "lint found faults: see the lines above"
  say "lint is clean"
}

# Says which tool is at work, and shows what it prints where it finds a fault.
run_check() {
  local output
  printf '%s ... ' "$1"
  if output=$("$@" 2>&1); then
    echo ok
  else
    printf 'failed\n%s\n' "${output}"
    return 1
  fi
}
