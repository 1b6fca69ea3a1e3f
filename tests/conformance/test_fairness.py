"""Tenants share the upstream by predicted tokens, corrected by what answers really took, through a whole proxy."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import RawClient

PLACES = 4
PROMPT_TOKENS = 7
"""What the upstream reports for every prompt."""


async def backlog(sizes: dict[str, int], depth: dict[str, int], answers: int) -> tuple[Counter[str], int]:
    """Keep `depth` requests of each tenant under way, more than there are places, until `answers` came.

    Returns tokens served per tenant, and the largest cost that can be in flight.
    """
    served: Counter[str] = Counter()
    done = 0

    async with (
        MockUpstream() as upstream,
        Stack(
            upstream.url,
            policy="fair",
            setpoints={"window_ms": 0, "max_batch_size": {"min": 1, "max": PLACES, "initial": PLACES}},
            predictor={"min_samples": 20},
        ) as stack,
    ):

        async def caller(tenant: str, size: int) -> None:
            nonlocal done
            body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": f"one of {tenant}"}]}
            async with RawClient(stack.port) as client:
                while done < answers:
                    answer = await client.ask(
                        "POST",
                        "/v1/chat/completions",
                        {"x-trimtab-tenant": tenant},
                        body,
                        # Answers take time in proportion to their size, as they do.
                        {"tokens": size, "delay": size * 1e-5},
                        timeout=60.0,
                    )
                    assert answer.status == 200
                    if done < answers:
                        served[tenant] += PROMPT_TOKENS + size
                    done += 1

        await asyncio.gather(*(caller(tenant, size) for tenant, size in sizes.items() for _ in range(depth[tenant])))
        report = stack.pool.stats()["predictor"]
        assert report["order_by"] == "history", report["steps"]
    return served, PLACES * (PROMPT_TOKENS + max(sizes.values()))


async def test_two_backlogged_tenants_of_ten_to_one_sizes_get_the_same() -> None:
    served, in_flight = await backlog({"large": 500, "small": 50}, {"large": 8, "small": 24}, 700)
    assert abs(served["large"] - served["small"]) <= 2 * in_flight, served
    assert min(served.values()) > 4 * in_flight


async def test_ten_tenants_of_all_sizes_share_alike() -> None:
    sizes = {f"tenant {index}": 40 * index for index in range(1, 11)}
    served, _ = await backlog(sizes, dict.fromkeys(sizes, 12), 700)
    shares = list(served.values())
    # Jain, Chiu and Hawe 1984: 1 when all got the same, 1/n when one got everything.
    jain = sum(shares) ** 2 / (len(sizes) * sum(share * share for share in shares))
    assert jain >= 0.98, served
    assert min(shares) > 2_000
