#!/bin/sh
# run.sh SERVER [PYTEST ARGUMENTS] - the end-to-end tests against that program.
server=$1
shift
here=$(dirname "$0")
DORMOUSE=$server exec build/venv-e2e/bin/python -m pytest -q -p no:cacheprovider "$here" "$@"
