#!/usr/bin/env bash
# Runs all that this machine's GPUs allow, however long it takes, and prints a table: docs/gpus.md.
# Needs bash, python3, a driver, and g++ or built programs; no network.
set -euo pipefail
tests=$(dirname "${BASH_SOURCE[0]}")
results=${tests}/../build/run_gpu/results
rm -rf "${results}" # of another run, which may have failed
exec python3 "${tests}/gpu/first_hour.py" run --budget=inf --out="${results}" \
  --steps=machine,kernels,bandwidth,jobs,sanitizer,tensorflow "$@"
