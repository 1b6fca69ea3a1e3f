"""Taking an upstream out where several workers serve: the leader is told, everybody keeps away."""

from __future__ import annotations

import pytest

from controller.shared import Leader
from proxy.config.model import PoolConfig
from proxy.config.rules import controller_for
from proxy.workers.pools import LedPool

URL = "http://127.0.0.1:8000"


def led(told: list[LedPool]) -> LedPool:
    config = PoolConfig(upstreams=[URL, "http://127.0.0.1:8001"])
    return LedPool(config, controller_for(config, 0.0, Leader), told.append)


def test_the_orders_name_who_is_out_until_it_is_taken_back_in() -> None:
    told: list[LedPool] = []
    pool = led(told)
    decision = pool.take_out(URL + "/", True, 1.0, "admin:x")
    pool.knobs_changed()
    assert (decision.rule, pool.orders()["taken_out"], told) == ("admin.drain", [URL], [pool])
    pool.take_out(URL, True, 2.0, "admin:x")
    assert pool.taken_out == (URL,)
    pool.take_out(URL, False, 3.0, "admin:x")
    assert pool.orders()["taken_out"] == []
    with pytest.raises(ValueError, match=URL):
        pool.take_out("http://who", True, 4.0, "admin:x")


@pytest.mark.parametrize(
    ("states", "shown"),
    [(("drained", "drained"), "drained"), (("drained", "draining"), "draining"), (("up", "down"), "down")],
)
def test_it_is_drained_once_every_worker_has_finished(states: tuple[str, str], shown: str) -> None:
    pool = led([])
    queue = {"requests": 0, "items": 0, "tokens": 0.0, "by_class": {}, "oldest_age_s": 0.0, "ages_s": {}}
    for worker, state in enumerate(states):
        stats = {"queue": queue, "inflight": 0, "inflight_calls": 0, "leases": 0, "draining": False,
                 "predictor": {"mode": "off"},
                 "upstreams": [{"url": URL, "state": state, "reported": None}]}  # fmt: skip
        pool.reported(worker, {"load": {}, "own_load": {}, "stats": stats, "arrivals": 0})
    assert pool.stats()["upstreams"][0]["state"] == shown
