#!/usr/bin/env bash
# All that is measured and checked on a machine with a GPU, torch and Triton, in nine minutes at most; each part is a name, so
# that a part can be run alone. Everything it prints is kept in OUT.
# usage: bench/gpu/measure.sh FOLDER OUT [constants arithmetic kernels networks chains tests]
set -uo pipefail
cd "$(dirname "$0")/../.."
folder=$1 out=$2
shift 2
parts=${*:-constants arithmetic kernels networks chains tests}
export PYTHONUNBUFFERED=1 TILEWRIGHT_BENCH_COMMIT
TILEWRIGHT_BENCH_COMMIT=$(cat "$folder/commit")
place=$(mktemp -d)
tar -xJf "$folder/compiled.tar.xz" -C "$place"
tar -xJf "$folder/site.tar.xz" -C "$place"
export PYTHONPATH=$place/site:$PWD

part() { # NAME SECONDS COMMAND...: run it for so long at most, if it was asked for
    local name=$1 seconds=$2
    shift 2
    [[ " $parts " == *" $name "* ]] || return 0
    echo "== $name $(date +%T)"
    timeout -s INT -k 5 "$seconds" "$@" 2>&1 | tee "$out/$name.log" | tail -n 60
}

part constants 60 python3 -m bench.gpu.calibrate --out "$out/constants.json"
part arithmetic 30 python3 -m bench.gpu.arithmetic --out "$out/mma.npz"
part kernels 110 python3 -m bench.gpu --compiled "$place/compiled" --seconds 100 --without torch.compile \
    --out "$out/run.json" --table "$out/run.md"
part networks 110 python3 -m bench.gpu.networks --seconds 100 --out "$out/networks.json" --table "$out/networks.md"
part chains 60 python3 -m tilewright.cli reproduce chimera-gpu --machine sm_90a --device cuda --json
part tests 140 python3 -m pytest -p no:cacheprovider --device=cuda -n "$(($(nproc) - 1))" --max-worker-restart=99 \
    -o faulthandler_timeout=40 -o faulthandler_exit_on_timeout=true -q --tb=short \
    tests/test_gpu_*.py tilewright/codegen/nvptx tilewright/emulator tilewright/runtime/cuda tilewright/kernel/passes \
    tilewright/compiler/tests/test_gpu*.py tilewright/compiler/tests/test_user_records.py \
    tilewright/lower/tests/test_block_nest.py
rm -rf "$place"
