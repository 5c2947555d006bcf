#!/usr/bin/env bash
# Compiles one .cu.cc file to an object; warnings are errors:
# nvcc.sh <toolkit or empty> <out.o> <source>
set -euo pipefail
toolkit=$1 out=$2 source=$3
if [[ -z ${toolkit} ]]; then
  echo "nvcc not found; --config=cuda needs it to compile ${source}: install the CUDA" \
    "toolkit, or set TF_HVD_CUDA=/path/to/toolkit" >&2
  exit 1
fi
exec "${toolkit}/bin/nvcc" -x cu -c "${source}" -o "${out}" -std=c++17 -O2 -I. \
  --fmad=false -Werror all-warnings -Xcompiler -fPIC,-Wall,-Wextra,-Wshadow,-Werror \
  -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90
