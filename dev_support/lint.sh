# Checks the sources. Sourced by ./dev, after setup.sh.
# shellcheck shell=bash

lint() {
  local failed=0 formatted sources scripts
  PATH="${VENV}/bin:${PATH}"
  mapfile -t formatted < <(checkout_files '*.h' '*.cc')
  mapfile -t sources < <(checkout_files 'base/*.cc' 'compute/*.cc' 'runtime/*.cc' ':!*.cu.cc' "${KERNELS[@]}")
  mapfile -t scripts < <(checkout_files dev .ci/run '*.sh')
  run_check "ruff check" ruff check . || failed=1
  run_check "ruff format" ruff format --check . || failed=1
  run_check "plain English" "${PYTHON}" dev_support/plain_english.py || failed=1
  run_check mypy mypy || failed=1
  run_check "GitHub's files" valid_github_files || failed=1
  run_check "mypy on the public names" types_every_name || failed=1
  run_check clang-format clang-format --dry-run -Werror "${formatted[@]}" || failed=1
  run_check clang-tidy tidy "${sources[@]}" || failed=1
  run_check "clang-tidy's thread safety analysis" refuses_unguarded || failed=1
  if command -v shellcheck >/dev/null; then
    run_check shellcheck shellcheck --external-sources "${scripts[@]}" || failed=1
  fi
  [[ ${failed} -eq 0 ]] || die "lint found faults: see the lines above"
  say "lint is clean"
}

checkout_files() {
  git -c safe.directory="${ROOT}" ls-files --cached --others --exclude-standard -- "$@"
}

# The files of kernels/ that include no TensorFlow headers. They have all mutexes of kernels/.
readonly KERNELS=(
  kernels/{huge_pages,local_checks,on_gpu,topology,verdict}.cc
  kernels/xla/{compiled_call,compiled_calls,started_call,step_threads}.cc
)

# By the schemas that check-jsonschema contains.
valid_github_files() {
  local check=(check-jsonschema --quiet --builtin-schema) templates=.github/ISSUE_TEMPLATE
  "${check[@]}" vendor.github-workflows .github/workflows/*.yml &&
    "${check[@]}" vendor.github-issue-forms "${templates}"/{bug,feature}.yml &&
    "${check[@]}" vendor.github-issue-config "${templates}/config.yml" &&
    "${check[@]}" vendor.citation-file-format CITATION.cff
}

types_every_name() {
  local program
  program=$(mktemp --suffix=.py)
  "${PYTHON}" dev_support/every_name.py >"${program}" && mypy --config-file pyproject.toml "${program}"
  local status=$?
  rm -f "${program}"
  return "${status}"
}

# Files that need only their own header and, for MPI's shim, one family's mpi.h. Findings in other
# projects' headers are dropped.
tidy() {
  # shellcheck disable=SC2016
  printf '%s\0' "$@" | xargs -0 -n 4 -P 2 sh -c \
    'clang-tidy --quiet "$@" -- -std=c++17 -I. -isystem "$0" -Wthread-safety 2>/dev/null' "${VENV}/include"
}

# Fails unless clang-tidy reports exactly one error: the access without the lock.
refuses_unguarded() {
  local errors file=tests/runtime/unguarded.cc
  errors=$(tidy "${file}" | grep 'error:')
  [[ ${errors} == *"/${file}:"*"[clang-diagnostic-thread-safety-analysis,"* && ${errors} != *$'\n'* ]] && return
  echo "${file} must have exactly one error, from the thread safety analysis:"
  echo "${errors}"
  return 1
}

# Prints the name of the check, and its output if it finds faults.
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
