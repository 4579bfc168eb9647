#!/usr/bin/env bash
# mypy --strict on simulator/ and hwprofiles/: tests/types.sh [MYPY]
# mypy does not follow an editable install: it gets the packages as links under their own names.
set -euo pipefail
cd "$(dirname "$0")/.."
linked=$(mktemp -d)
trap 'rm -rf "$linked"' EXIT
mkdir "$linked/hbmeter"
ln -s "$PWD"/{simulator,hwprofiles,kernels,experiments} "$linked/hbmeter/"
MYPYPATH=$linked "${1:-mypy}" -p hbmeter.simulator -p hbmeter.hwprofiles
