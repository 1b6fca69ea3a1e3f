from __future__ import annotations

from pathlib import Path

import pytest

from backend.engine.errors import EngineError
from backend.engine.options import EngineOptions

MODEL = Path("model")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"num_blocks": 0}, "num_blocks must be at least 1"),
        ({"memory_bytes": -1}, "memory_bytes must be at least 1"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"max_num_seqs": 65, "max_num_batched_tokens": 64}, "must be at least max_num_seqs"),
        ({"watermark": 1.0}, r"watermark must be in \[0, 1\)"),
        ({"admission": "hopeful"}, "admission must be one of auto, optimistic, predicted, guaranteed"),
        ({"max_preemptions": -1}, "max_preemptions must not be negative"),
        ({"offload_blocks": -1}, "offload_blocks must not be negative"),
    ],
)
def test_a_wrong_option_is_named_with_what_would_be_right(options: dict[str, object], match: str) -> None:
    with pytest.raises(EngineError, match=match):
        EngineOptions(MODEL, **options)  # type: ignore[arg-type]


def test_what_depends_on_the_device_is_settled_when_it_is_known() -> None:
    for device, budget, chunk in (("cpu", 256, 128), ("cuda", 2048, 512)):
        resolved = EngineOptions(MODEL).resolve(device)
        assert (resolved.max_num_batched_tokens, resolved.prefill_chunk) == (budget, chunk)
    assert EngineOptions(MODEL, max_num_seqs=1000).resolve("cpu").max_num_batched_tokens == 1000
    assert EngineOptions(MODEL, max_num_batched_tokens=64, prefill_chunk=7).resolve("cuda").prefill_chunk == 7
