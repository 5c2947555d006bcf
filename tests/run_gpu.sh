#!/usr/bin/env bash
# Runs all that this machine's GPUs allow, and prints a table: docs/gpus.md.
# Needs bash, python3, a driver, and g++ or --programs; no network.
exec python3 "$(dirname "${BASH_SOURCE[0]}")/gpu/run_gpu.py" "$@"
