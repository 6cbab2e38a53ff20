#!/bin/sh
# What runs on two GPUs from Python, each part for a minute at most: with the wheel and PyTorch installed,
#     sh python/tests/gpu/two_gpus.sh FOLDER [PART ..]
# PART: one of two_ranks.py, bench or moe_torch; all of them if none is named. What each says goes to FOLDER/PART.txt.
folder=${1:?"a folder for what parts say"}
shift
here=$(dirname "$0")
[ $# -gt 0 ] || set -- behaviours moe host_times formats layouts halves faults overlap collectives compiled gradients moe_torch bench
mkdir -p "$folder"
failed=0
for part; do
    case $part in
    bench) set -- python3 -m peerwarp bench --tokens 1,64,4096 --iterations 20 --json "$folder/bench.json" ;;
    moe_torch) set -- python3 -m torch.distributed.run --standalone --nproc-per-node 2 "$here/../../examples/moe_torch.py" ;;
    *) set -- python3 -m torch.distributed.run --standalone --nproc-per-node 2 "$here/two_ranks.py" "$part" ;;
    esac
    if timeout 60 "$@" >"$folder/$part.txt" 2>&1; then
        echo "$part: ok"
    else
        echo "$part: FAILED, $?"
        failed=1
    fi
    tail -n 5 "$folder/$part.txt" | cut -c 1-400
done
exit $failed
