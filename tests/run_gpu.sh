#!/usr/bin/env bash
# Runs all tests that this machine's GPUs allow, without a time limit, and prints a table:
# docs/gpu_kits.md. Needs bash, python3, a driver, and g++ or built programs; no network.
set -euo pipefail
tests=$(dirname "${BASH_SOURCE[0]}")
results=${tests}/../build/run_gpu/results
rm -rf "${results}" # from a previous run, which may have failed
exec python3 "${tests}/gpu/first_hour.py" run --budget=inf --out="${results}" \
  --steps=machine,kernels,bandwidth,jobs,sanitizer,tensorflow "$@"
