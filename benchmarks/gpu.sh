#!/usr/bin/env bash
# All there is to check on a GPU: the tests that need one, manual against fused attention up to 16,384 tokens, then the speed of
# config/gpt2.py, whose table comes last. With several GPUs, a short run on all of them too.
set -euo pipefail
cd "$(dirname "$0")/.."
python -m pytest tests/test_cuda.py
gpus=$(python -c 'import torch; print(torch.cuda.device_count())')
if ((gpus > 1)); then
    for shard in False True; do
        torchrun --standalone --nproc_per_node="$gpus" -- train.py config/names.py --max_steps=100 --shard=$shard --run="gpus-$shard"
    done
fi
python compare.py --device=cuda --dtype=bfloat16 --shapes 64,4,8,16 8,6,256,64 1,12,16384,64
python benchmarks/gpu.py
