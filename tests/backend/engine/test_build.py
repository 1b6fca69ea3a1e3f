"""From options to an engine, as the engine process does it."""

from __future__ import annotations

from pathlib import Path

from backend.engine.build import build_core
from backend.engine.core import EngineCore
from backend.engine.options import EngineOptions
from backend.engine.request import SamplingParams
from tests.backend.engine.results import request, run
from tests.e2e.tiny_checkpoint import make_tiny_checkpoint


def build(path: Path) -> EngineCore:
    options = EngineOptions(path, device="cpu", dtype="float32", threads=1, num_blocks=16, max_model_len=64)
    core, _ = build_core(options, lambda stage, fraction: None)
    return core


def test_two_engines_of_one_model_have_prefix_digests_and_unseeded_noise_of_their_own(tmp_path: Path) -> None:
    """vllm PR#12621 (GHSA-rm76-4mrf-v9r8): whoever knows the root of the digests can construct a collision."""
    path = make_tiny_checkpoint(tmp_path)
    first, second = build(path), build(path)
    tokens = list(range(16))
    pools = [core.scheduler.pool for core in (first, second)]
    assert pools[0].digests([], tokens, "") != pools[1].digests([], tokens, "")
    outputs = []
    for core in (first, second):
        core.add(request("a", [1, 2, 3], SamplingParams(max_tokens=30, ignore_eos=True)))
        outputs.append(run(core)["a", 0].token_ids)
    assert outputs[0] != outputs[1]
