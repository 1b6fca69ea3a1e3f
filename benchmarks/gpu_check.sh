#!/usr/bin/env bash
# Checks the worker on a CUDA machine from a bare checkout: kernels against float64, one decode and one prefill step
# of real model shapes against what the card can do, and a whole workload against transformers. Needs torch, numpy,
# triton, safetensors, tokenizers and transformers; no install, no weights, no network.
#   benchmarks/gpu_check.sh [kernels|steps|end-to-end ...]     all three by default, about five minutes
#   TRITON_INTERPRET=1 benchmarks/gpu_check.sh --tiny          the same code on a CPU, tiny shapes: only for its syntax
set -euo pipefail
cd "$(dirname "$0")/.."
export HF_HUB_OFFLINE=1 TOKENIZERS_PARALLELISM=false
exec "${PYTHON:-python3}" -m benchmarks.gpu_check "$@"
