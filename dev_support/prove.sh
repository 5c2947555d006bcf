# Evidence that is too long for every day. Sourced by ./dev, after check.sh.
# shellcheck shell=bash

readonly PROOFS=(kills soak seeds faults fuzz wheels)

check_proof() {
  local name=${1:-}
  [[ " ${PROOFS[*]} " == *" ${name} "* && -n ${name} ]] ||
    die "prove takes one of ${PROOFS[*]}, not '${name}'"
  [[ $# -eq 1 || $2 == --short ]] || die "prove ${name} takes --short, not '$2'"
}

# prove NAME [--short]: the table goes into docs/evidence.md, but for the short form's.
prove() {
  local name=$1
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
  TESTS_MARK=tf_hvd_$$_${RANDOM}
  PATH="${VENV}/bin:${PATH}" TF_HVD_TESTS_MARK=${TESTS_MARK} \
    "${PYTHON}" tests/prove/prove.py "$@"
}
