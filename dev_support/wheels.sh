# Builds wheels for other minors of TensorFlow, and for machines older than this one.
# Sourced by ./dev, after setup.sh and build.sh.
# shellcheck shell=bash

readonly MINORS=(2.18 2.19 2.20 2.21)
readonly SYSROOT=${CACHE}/sysroot-ubuntu-18.04
readonly UBUNTU=${TF_HVD_UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}

# Options of `wheel` and `smoke`. TENSORFLOW is the Python that has the wheel's TensorFlow; empty
# for the one of MINOR.
MINOR=${MINORS[-1]}
TENSORFLOW=
PORTABLE=
RELEASE=
SMOKE_MINORS=()
SMOKE_PYTHON=
SMOKE_ROOT=

parse_wheel_options() {
  while [[ $# -gt 0 ]]; do
    case "$1" in
      --tensorflow)
        choose_tensorflow "${2:-}"
        shift 2
        ;;
      --release) RELEASE=1; shift ;;
      --portable) PORTABLE=1; shift ;;
      --python)
        SMOKE_PYTHON=$(command -v "${2:?--python needs a Python}") || die "cannot find $2"
        shift 2
        ;;
      --root)
        SMOKE_ROOT=$(cd "${2:?--root needs a folder}" && pwd -P) || die "$2 is not a folder"
        shift 2
        ;;
      *) die "unknown option '$1'; use --tensorflow MINOR or PYTHON, --release, --portable or, for smoke, --python PYTHON and --root DIR" ;;
    esac
  done
}

# Takes one of MINORS, or a Python that has another TensorFlow.
choose_tensorflow() {
  if [[ " ${MINORS[*]} " == *" $1 "* && -n $1 ]]; then
    MINOR=$1
    SMOKE_MINORS+=("$1")
    return
  fi
  [[ $1 == */* && -x $1 ]] || die "--tensorflow is '$1'; pass one of ${MINORS[*]}, or the path of a Python"
  TENSORFLOW=$1
  MINOR=$("$1" -c 'import tensorflow as tf; print(".".join(tf.__version__.split(".")[:2]))') ||
    die "$1 cannot import tensorflow"
}

# Builds the requested wheel: for one TensorFlow, or the release's with a library for each.
make_wheel() {
  if [[ -z ${RELEASE} ]]; then
    choose_wheel
    build_wheel
    return
  fi
  [[ -z ${TENSORFLOW} ]] || die "--release builds a library for each of ${MINORS[*]} only; omit --tensorflow with a Python"
  local parts=() version whole
  for MINOR in "${MINORS[@]}"; do
    choose_wheel
    build_wheel
    parts+=("$(built_wheel)")
  done
  say "combining ${#parts[@]} wheels into one"
  version=$(sed -n 's/^VERSION = "\(.*\)"$/\1/p' pip_package/version.bzl)
  WHEEL_NAME=build/wheel_name-release${PORTABLE:+-portable}.txt
  whole=$(PYTHONPATH=pip_package "${PYTHON}" pip_package/assemble_wheel.py --dist dist \
    --version "${version}" "${parts[@]}") || die "the parts cannot be combined: see the lines above"
  echo "${whole##*/}" >"${WHEEL_NAME}"
}

# Bazel's flags for one TensorFlow, and the file for the wheel's name. The default needs no flags;
# `install` and the tests always use the plain wheel.
choose_wheel() {
  local python=${TENSORFLOW}
  BAZEL_FLAGS=()
  WHEEL_NAME=build/wheel_name.txt
  if [[ -z ${python} && ${MINOR} != "${MINORS[-1]}" ]]; then
    make_minor_environment
    python=${ROOT}/build/tensorflow-${MINOR}/bin/python
  fi
  if [[ -n ${python} ]]; then
    BAZEL_FLAGS+=("--repo_env=TF_HVD_TENSORFLOW_PYTHON=${python}")
  fi
  if [[ -n ${PORTABLE} ]]; then
    make_sysroot
    BAZEL_FLAGS+=("--repo_env=CC=${SYSROOT}/bin/gcc"
      "--action_env=TF_HVD_C_LIBRARIES=glibc=2.27-3ubuntu1.6,libstdc++=8.4.0-1ubuntu1~18.04")
  fi
  if [[ ${#BAZEL_FLAGS[@]} -gt 0 ]]; then
    WHEEL_NAME=build/wheel_name-${MINOR}${PORTABLE:+-portable}.txt
  fi
}

# Only TensorFlow: the build takes all other packages from .venv.
make_minor_environment() {
  local folder=${ROOT}/build/tensorflow-${MINOR}
  [[ ! -f ${folder}/.tf_hvd_environment ]] || return 0
  say "making ${folder}"
  python3 -m venv "${folder}"
  pip_of "${folder}/bin/python" install "tensorflow-cpu==${MINOR}.*"
  touch "${folder}/.tf_hvd_environment"
}

# The C and C++ libraries of Ubuntu 18.04, for this machine's compiler: the result runs wherever
# TensorFlow's own wheels do.
make_sysroot() {
  [[ -d ${SYSROOT} ]] || fetch_sysroot
  sed "s|@SYSROOT@|${SYSROOT}|" "${ROOT}/dev_support/sysroot_gcc.sh" >"${SYSROOT}/bin/gcc"
  chmod +x "${SYSROOT}/bin/gcc"
}

fetch_sysroot() {
  command -v dpkg-deb >/dev/null || die "dpkg-deb is missing: sudo ${APT} dpkg"
  say "fetching the libraries of Ubuntu 18.04"
  local part=${SYSROOT}.part hash path package
  rm -rf "${part}"
  mkdir -p "${part}/bin"
  while read -r hash path; do
    [[ -n ${hash} && ${hash} != '#'* ]] || continue
    package=${part}/${path##*/}
    python3 -c 'import shutil, sys, urllib.request as u
with u.urlopen(sys.argv[1], timeout=60) as page, open(sys.argv[2], "wb") as file:
    shutil.copyfileobj(page, file)' "${UBUNTU}/${path}" "${package}" ||
      die "${UBUNTU} is unreachable; set TF_HVD_UBUNTU_MIRROR to another mirror"
    echo "${hash}  ${package}" | sha256sum --check --quiet || die "${path} has changed: its SHA-256 differs from dev_support/sysroot.txt"
    dpkg-deb --extract "${package}" "${part}"
    rm "${package}"
  done <"${ROOT}/dev_support/sysroot.txt"
  # Their absolute links refer to the root of the target machine.
  local link
  while read -r link; do
    ln -sf --relative "${part}$(readlink "${link}")" "${link}"
  done < <(find "${part}" -type l -lname '/*')
  mv "${part}" "${SYSROOT}"
}

# Tests the wheel in a separate environment, with the requested Python, or with that of another
# system, which has its root in a folder (debootstrap makes one).
smoke() {
  local python=${SMOKE_PYTHON:-python3} folder wheel name=here minors=("${MINOR}")
  local call=(env)
  wheel=$(built_wheel)
  if [[ -n ${SMOKE_ROOT} ]]; then
    name=$(basename "${SMOKE_ROOT}")
    call=(in_root "${SMOKE_ROOT}")
  elif [[ -n ${SMOKE_PYTHON} ]]; then
    name=python$("${python}" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  fi
  if [[ -n ${RELEASE} ]]; then
    minors=("${SMOKE_MINORS[@]:-${MINORS[@]}}")
  fi
  for MINOR in "${minors[@]}"; do
    folder=${ROOT}/build/smoke-${MINOR}-${name}
    say "TensorFlow ${MINOR}, ${SMOKE_ROOT:-${python}}: ${wheel}"
    "${call[@]}" bash "${ROOT}/dev_support/smoke.sh" "${python}" "${folder}" "${wheel}" "${MINOR}" ||
      die "the wheel fails there with TensorFlow ${MINOR}: see the lines above"
  done
}

# Runs a command in another system's root, with this checkout, /dev, /proc and /sys mounted while
# the command runs.
in_root() {
  [[ ${EUID} -eq 0 ]] || die "--root must be run as root"
  # shellcheck disable=SC2016
  unshare --mount bash -euc '
    root=$1 checkout=$2
    shift 2
    mkdir -p "${root}${checkout}"
    mount --bind "${checkout}" "${root}${checkout}"
    mount --rbind /dev "${root}/dev"
    mount --bind /proc "${root}/proc"
    mount --rbind /sys "${root}/sys"
    for file in /etc/resolv.conf /etc/hosts ${PIP_CERT:-}; do
      [[ ! -f ${file} ]] || install -D -m 644 "${file}" "${root}${file}"
    done
    exec chroot "${root}" "$@"' in_root "$1" "${ROOT}" "${@:2}"
}
