#!/usr/bin/env bash
# All that a machine with one NVIDIA GPU, lent for an hour or less, should tell: docs/gpus.md.
#
#   first_hour.sh pack FOLDER      in a checkout that is built: what is to be carried there
#   first_hour.sh --dry-run        what would run, with which commands, and what is missing
#   first_hour.sh run --budget 480 --out DIR [--earlier DIR]    there, again until nothing is left
#   first_hour.sh report --out DIR     DIR/report.md again, of what DIR has
#
# Needs bash and python3 there, and a driver; g++ where the programs do not start.
exec python3 "$(dirname "${BASH_SOURCE[0]}")/first_hour.py" "$@"
