# Proofs that take too long for daily use. Sourced by ./dev, after test.sh.
# shellcheck shell=bash

readonly PROOFS=(kills soak seeds faults fuzz wheels coverage call elastic sizes keras)

check_proof() {
  local name=${1:-}
  [[ " ${PROOFS[*]} " == *" ${name} "* && -n ${name} ]] ||
    die "unknown proof '${name}'; pass one of ${PROOFS[*]}"
  [[ $# -eq 1 || "${*:2}" == --short ]] || die "prove ${name}: unknown argument '${*:2}'; only --short is allowed"
}

# prove NAME [--short]: writes the table into a page of docs/, except with --short.
prove() {
  local name=$1
  TESTS_MARK=tf_hvd_$$_${RANDOM}
  if [[ ${name} == coverage || ${name} == call ]]; then
    prove_counted "$@"
    return
  fi
  build_and_install_wheel
  if [[ ${name} == kills && $# -eq 1 ]]; then
    require_gtest
    bazel test --test_env=TF_HVD_KILLS=100 --test_timeout=1800 \
      //tests/runtime/transport:kills_test_openmpi ||
      die "a kill ended in an unexpected way: see the lines above"
  fi
  if [[ ${name} == fuzz && $# -eq 1 ]]; then
    require_gtest
    export TF_HVD_FUZZ_ROUNDS=2000000 TF_HVD_FUZZ_SEED=2000
    bazel test --config=asan --test_env=TF_HVD_FUZZ_ROUNDS --test_env=TF_HVD_FUZZ_SEED \
      --test_filter=Message.RandomDamageIsHarmless --test_timeout=1800 \
      //tests/runtime:message_test || die "a damaged message was not handled safely: see the lines above"
  fi
  if [[ ${name} == seeds ]]; then
    require_gtest
    bazel build //tests/runtime/protocol/... //tests/gpu/... ||
      die "the build failed: see the lines above"
    say "the mutants"
    bazel test --test_tag_filters=mutant //tests/... || die "a mutant was not detected"
    PROVE_MUTANTS=$(bazel query 'attr(tags, mutant, tests(//tests/...))' | grep -c _mutant_test)
    export PROVE_MUTANTS
  fi
  stop_bazel
  run_proof "$@"
}

run_proof() {
  PATH="${VENV}/bin:${PATH}" TF_HVD_TESTS_MARK=${TESTS_MARK} \
    "${PYTHON}" tests/prove/prove.py "$@"
}

# Builds everything so that it counts executed lines. Afterwards the previous wheel is restored;
# after Ctrl-C the next command rebuilds it.
prove_counted() {
  if [[ $1 == coverage ]]; then
    require_gtest
    add_to_environment coverage
  fi
  # The compiler sees its working directory as /proc/self/cwd.
  GCOV_PREFIX=$(bazel info execution_root)
  export GCOV_PREFIX GCOV_PREFIX_STRIP=3
  BAZEL_FLAGS+=(--config=coverage --test_env=GCOV_PREFIX --test_env=GCOV_PREFIX_STRIP)
  build_wheel
  if [[ $1 == coverage ]]; then
    find -L bazel-bin -name '*.gcda' -delete # from an earlier proof
    stage "C++ tests" cpp_tests -- //...
    build_software_gpu
  fi
  install_wheel
  stop_bazel
  local code=0
  run_proof "$@" || code=$?
  BAZEL_FLAGS=()
  build_and_install_wheel
  return "${code}"
}
