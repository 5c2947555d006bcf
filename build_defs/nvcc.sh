#!/usr/bin/env bash
# Compiles one .cu.cc file to an object: nvcc.sh <toolkit> <out.o> <source> [flags]
set -euo pipefail
toolkit=$1 out=$2 source=$3
shift 3
exec "${toolkit}/bin/nvcc" -x cu -c "${source}" -o "${out}" -std=c++17 -O2 \
  -Xcompiler -fPIC,-fvisibility=hidden -I. "$@"
