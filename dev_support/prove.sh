# Evidence that is too long for every day. Sourced by ./dev, after check.sh.
# shellcheck shell=bash

readonly PROOFS=(kills soak seeds faults fuzz wheels coverage)

check_proof() {
  local name=${1:-}
  [[ " ${PROOFS[*]} " == *" ${name} "* && -n ${name} ]] ||
    die "prove takes one of ${PROOFS[*]}, not '${name}'"
  [[ $# -eq 1 || $2 == --short ]] || die "prove ${name} takes --short, not '$2'"
}

# prove NAME [--short]: the table goes into docs/evidence.md, but for the short form's.
prove() {
  local name=$1
  TESTS_MARK=tf_hvd_$$_${RANDOM}
  if [[ ${name} == coverage ]]; then
    prove_coverage "$@"
    return
  fi
  build_wheel
  install_wheel
  if [[ ${name} == seeds ]]; then
    require_gtest
    bazel build //tests/runtime/protocol/... //tests/gpu/... ||
      die "the build failed: see the lines above"
    say "the mutants"
    bazel test --test_tag_filters=mutant //tests/... || die "a mutant was not noticed"
  fi
  stop_bazel
  run_proof "$@"
}

run_proof() {
  PATH="${VENV}/bin:${PATH}" TF_HVD_TESTS_MARK=${TESTS_MARK} \
    "${PYTHON}" tests/prove/prove.py "$@"
}

# Everything is built so that it counts the lines it runs; afterwards the wheel is as before.
prove_coverage() {
  require_gtest
  add_to_environment coverage
  BAZEL_FLAGS+=(--config=coverage)
  stage "the wheel, which counts" build_and_install_wheel
  find -L bazel-bin -name '*.gcda' -delete # of an earlier proof
  stage "C++ tests" cpp_tests -- //...
  build_software_gpu
  stop_bazel
  run_proof "$@"
  BAZEL_FLAGS=()
  build_and_install_wheel
}
