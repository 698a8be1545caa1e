#!/usr/bin/env bash
# All there is to check on a GPU, in less than six minutes: the tests that need one, then the speed of config/gpt2.py, whose table
# comes last. With several GPUs, a short run on all of them too.
set -euo pipefail
cd "$(dirname "$0")/.."
python -m pytest tests/test_cuda.py
gpus=$(python -c 'import torch; print(torch.cuda.device_count())')
if ((gpus > 1)); then
    for shard in False True; do
        torchrun --standalone --nproc_per_node="$gpus" -- train.py config/names.py --max_steps=100 --shard=$shard --run="gpus-$shard"
    done
fi
python benchmarks/gpu.py
