#!/usr/bin/env bash
# Runs all that this machine's GPUs allow, however long it takes, and prints a table: docs/gpus.md.
# Needs bash, python3, a driver, and g++ or built programs; no network.
folder=$(dirname "${BASH_SOURCE[0]}")
exec python3 "${folder}/gpu/first_hour.py" run --again --budget=inf \
  --steps=machine,kernels,bandwidth,jobs,sanitizer,tensorflow \
  --out="${folder}/../build/run_gpu/results" "$@"
