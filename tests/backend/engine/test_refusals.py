"""What the core does not take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from backend.engine.errors import EngineOverloaded, RequestRefused
from backend.engine.request import SamplingParams
from tests.backend.engine.fake import fake_core, fake_options, greedy
from tests.backend.engine.results import GREEDY, request, run


@pytest.mark.parametrize(
    ("prompt", "params", "n", "param", "match"),
    [
        ([], GREEDY, 1, "prompt", "no tokens"),
        ([1, 64], GREEDY, 1, "prompt", "outside"),
        ([-1], GREEDY, 1, "prompt", "outside"),
        ([1] * 64, GREEDY, 1, "prompt", "KV cache holds 64"),
        ([1] * 500, GREEDY, 1, "prompt", "500 tokens"),
        ([1], replace(GREEDY, max_tokens=0), 1, "max_tokens", "at least 1"),
        ([1], GREEDY, 9, "n", "between 1 and 8"),
        ([1], GREEDY, 0, "n", "between 1 and 8"),
        ([1], replace(GREEDY, logit_bias={64: 1.0}), 1, "logit_bias", "outside"),
    ],
)
def test_what_can_never_be_served_is_refused_at_once(
    prompt: list[int], params: SamplingParams, n: int, param: str, match: str
) -> None:
    """vllm#39734, sglang#28530: it waited for ever and blocked the queue."""
    core = fake_core(fake_options(num_blocks=16))
    with pytest.raises(RequestRefused, match=match) as refusal:
        core.add(request("a", prompt, params, n=n))
    assert refusal.value.param == param
    assert not core.has_work


def test_the_longest_prompt_that_fits_is_served() -> None:
    """vllm#23683: a prompt of exactly the limit ended the runner; vllm#28172: lengths are counted in ids."""
    core = fake_core(fake_options(num_blocks=16))
    core.add(request("a", [1] * 63))
    assert len(run(core)["a", 0].token_ids) == 1


def test_under_guaranteed_admission_what_could_outgrow_the_pool_is_refused() -> None:
    core = fake_core(fake_options(num_blocks=4, admission="guaranteed"))
    core.add(request("a", [1] * 4, replace(GREEDY, max_tokens=5), n=3))
    with pytest.raises(RequestRefused, match="5 KV blocks and there are 4"):
        core.add(request("b", [1] * 4, replace(GREEDY, max_tokens=6), n=2))
    run(core)


def test_a_full_line_turns_newcomers_away() -> None:
    """sglang PR#33940: the refusal was routed nowhere and the client hung."""
    core = fake_core(fake_options(max_waiting=2))
    for name in "ab":
        core.add(request(name, [1]))
    with pytest.raises(EngineOverloaded):
        core.add(request("c", [1]))
    assert len(run(core)) == 2


def test_an_id_that_is_running_is_refused_and_may_be_used_again_afterwards() -> None:
    core = fake_core()
    core.add(request("a", [1]))
    with pytest.raises(RequestRefused, match="already running"):
        core.add(request("a", [2]))
    run(core)
    core.add(request("a", [2]))
    assert run(core)["a", 0].token_ids == greedy([2], 6)
