#!/usr/bin/env bash
# Fills a folder with what bench/gpu/measure.sh needs on a machine with a GPU and no network: the compiler's Python packages
# and every case compiled for sm_90a. Takes some ten minutes and writes about 45 MB.
# usage: bench/gpu/prepare.sh FOLDER [PYTHON-VERSION]      (of the machine with the GPU; default: 3.12)
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$1 version=${2:-3.12}
mkdir -p "$folder"
platforms=$(printf -- '--platform manylinux_2_%s_x86_64 ' 17 27 28)
# shellcheck disable=SC2086
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version "$version" --implementation cp $platforms \
    --platform manylinux2014_x86_64 -d "$folder/wheels" \
    llvmlite==0.50.0 xdsl==0.74.0 immutabledict==4.3.1 ordered-set==4.1.0 filecheck ml_dtypes PyYAML
for wheel in "$folder"/wheels/*.whl; do
    python3 -m zipfile -e "$wheel" "$folder/site"
done
XZ_OPT='-9 -T0' tar -cJf "$folder/site.tar.xz" -C "$folder" site
rm -rf "$folder/site" "$folder/wheels"
"${PYTHON:-.venv/bin/python}" -m bench.gpu --compile "$folder/compiled"
XZ_OPT='-6 -T0' tar -cJf "$folder/compiled.tar.xz" -C "$folder" compiled
rm -rf "$folder/compiled"
git rev-parse --short HEAD >"$folder/commit"
