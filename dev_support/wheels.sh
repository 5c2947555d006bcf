# Wheels for other minors of TensorFlow, and for older machines than this one.
# Sourced by ./dev, after setup.sh and build.sh.
# shellcheck shell=bash

readonly MINORS=(2.18 2.19 2.20 2.21)
readonly SYSROOT=${CACHE}/sysroot-ubuntu-18.04
readonly UBUNTU=${TF_HVD_UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}

# What `wheel` and `smoke` were asked for. TENSORFLOW is the Python whose TensorFlow the wheel is
# for; empty for that of MINOR.
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
        SMOKE_PYTHON=$(command -v "${2:?--python needs a Python}") || die "there is no $2"
        shift 2
        ;;
      --root)
        SMOKE_ROOT=$(cd "${2:?--root needs a folder}" && pwd -P) || die "there is no folder $2"
        shift 2
        ;;
      *) die "there is no option '$1'; there are --tensorflow MINOR or PYTHON, --release, --portable and, for smoke, --python PYTHON and --root DIR" ;;
    esac
  done
}

# One of MINORS, or a Python that has another TensorFlow.
choose_tensorflow() {
  if [[ " ${MINORS[*]} " == *" $1 "* && -n $1 ]]; then
    MINOR=$1
    SMOKE_MINORS+=("$1")
    return
  fi
  [[ $1 == */* && -x $1 ]] || die "--tensorflow takes one of ${MINORS[*]}, or the path of a Python, not '$1'"
  TENSORFLOW=$1
  MINOR=$("$1" -c 'import tensorflow as tf; print(".".join(tf.__version__.split(".")[:2]))') ||
    die "$1 cannot import tensorflow"
}

# What was asked for: the wheel for one TensorFlow, or the release's, which has a library for each.
make_wheel() {
  if [[ -z ${RELEASE} ]]; then
    choose_wheel
    build_wheel
    return
  fi
  [[ -z ${TENSORFLOW} ]] || die "--release has a library for each of ${MINORS[*]}, and no other"
  local parts=() version whole
  for MINOR in "${MINORS[@]}"; do
    choose_wheel
    build_wheel
    parts+=("$(built_wheel)")
  done
  say "one wheel of ${#parts[@]}"
  version=$(sed -n 's/^VERSION = "\(.*\)"$/\1/p' pip_package/version.bzl)
  WHEEL_NAME=build/wheel_name-release${PORTABLE:+-portable}.txt
  whole=$(PYTHONPATH=pip_package "${PYTHON}" pip_package/assemble_wheel.py --dist dist \
    --version "${version}" "${parts[@]}") || die "the parts do not fit together: see the lines above"
  echo "${whole##*/}" >"${WHEEL_NAME}"
}

# Bazel's flags for one TensorFlow, and where the wheel's name is kept. The default needs none; what
# `install` and the tests look for stays the plain one.
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

# Only TensorFlow: all else that a build asks for is .venv's.
make_minor_environment() {
  local folder=${ROOT}/build/tensorflow-${MINOR}
  [[ ! -f ${folder}/.tf_hvd_environment ]] || return 0
  say "making ${folder}"
  python3 -m venv "${folder}"
  pip_of "${folder}/bin/python" install "tensorflow-cpu==${MINOR}.*"
  touch "${folder}/.tf_hvd_environment"
}

# The C and C++ libraries of Ubuntu 18.04, as this machine's compiler is to see
# them: what is built runs wherever TensorFlow's own wheels do.
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
      die "${UBUNTU} is out of reach; TF_HVD_UBUNTU_MIRROR names another"
    echo "${hash}  ${package}" | sha256sum --check --quiet || die "${path} is not the file it was"
    dpkg-deb --extract "${package}" "${part}"
    rm "${package}"
  done <"${ROOT}/dev_support/sysroot.txt"
  # Their links are to / of the machine that they are for.
  local link
  while read -r link; do
    ln -sf --relative "${part}$(readlink "${link}")" "${link}"
  done < <(find "${part}" -type l -lname '/*')
  mv "${part}" "${SYSROOT}"
}

# The wheel in an environment of its own, under the Python that was asked for, or
# under that of another system, whose root is in a folder (debootstrap makes one).
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
      die "the wheel does not work there with TensorFlow ${MINOR}: see the lines above"
  done
}

# Runs a command in another system's root, which sees this checkout, /dev, /proc
# and /sys for as long as the command runs.
in_root() {
  [[ ${EUID} -eq 0 ]] || die "--root needs root"
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
