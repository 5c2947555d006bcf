#!/usr/bin/env bash
# Runs all tests on a machine with one NVIDIA GPU, borrowed for an hour or less: docs/gpu_kits.md.
#
#   first_hour.sh pack FOLDER      in a built checkout: packs the files for the machine
#   first_hour.sh --dry-run        prints the steps, their commands, and missing parts
#   first_hour.sh run --budget 480 --out DIR [--earlier DIR]    on the machine; repeat until all steps are done
#   first_hour.sh report --out DIR     writes DIR/report.md again from the results in DIR
#
# Needs bash, python3 and a driver there; g++ if the packed programs do not start.
exec python3 "$(dirname "${BASH_SOURCE[0]}")/first_hour.py" "$@"
