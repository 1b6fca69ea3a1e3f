"""The client and its process, for real: a spawned interpreter with the fake model in it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from backend.engine import client as engine_client
from backend.engine.client import ENGINE_ENVIRONMENT, RED_S, STALL_S, EngineClient
from backend.engine.errors import EngineDied, EngineError, EngineOverloaded, RequestRefused
from backend.engine.request import Delta, FinishReason, GenerationRequest, SamplingParams
from tests.backend.engine.fake import fake_options, greedy
from tests.backend.engine.nursery import Nursery, nursery

GREEDY = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
FAKE = "tests.backend.engine.fake:build"
FOREVER = replace(GREEDY, max_tokens=4000)

pytestmark = pytest.mark.asyncio(loop_scope="module")  # tests that leave the engine as it was share one
own = pytest.mark.usefixtures("many")
"""For a test that starts an engine of its own."""


@asynccontextmanager
async def engine(build: str = FAKE, **options: object) -> AsyncIterator[EngineClient]:
    client = await EngineClient.start(fake_options(**options), build=build)
    try:
        yield client
    finally:
        await client.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def forked() -> AsyncIterator[Nursery | None]:
    """Where engines are forked for tests that end theirs; `client` and the test of its environment spawn one."""
    if not hasattr(os, "pidfd_open"):
        yield None
        return
    async with nursery() as made:
        yield made


@pytest.fixture
def many(forked: Nursery | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if forked is not None:
        monkeypatch.setattr(engine_client, "_spawn", forked.spawn)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[EngineClient]:
    async with engine(num_blocks=2000, max_waiting=400) as shared:
        yield shared


def request(name: str, prompt: list[int], params: SamplingParams = GREEDY, n: int = 1) -> GenerationRequest:
    return GenerationRequest(name, prompt, params, n=n)


async def collect(client: EngineClient, one: GenerationRequest) -> tuple[dict[int, list[int]], Delta]:
    tokens: dict[int, list[int]] = defaultdict(list)
    last = None
    async for delta in client.generate(one):
        tokens[delta.index] += delta.token_ids
        last = delta
    assert last is not None
    return dict(tokens), last


async def until_idle(client: EngineClient) -> None:
    """Wait for the engine's own report that it holds nothing; each probe is a round trip to it."""
    for number in range(1000):
        await collect(client, request(f"probe{number}", [1], replace(GREEDY, max_tokens=1)))
        stats = await client.stats()
        if stats.running == stats.waiting == 0:
            assert stats.free_blocks + stats.cached_blocks == stats.total_blocks
            return
    raise AssertionError("the engine is still busy")


async def within(awaitable: Awaitable[object], seconds: float = 30.0) -> object:
    """Fail rather than hang; how long it takes is not what is tested."""
    return await asyncio.wait_for(awaitable, seconds)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="shows no process's environment")
async def test_the_engine_asks_for_huge_pages_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    monkeypatch.delenv("THP_MEM_ALLOC_ENABLE", raising=False)
    async with engine() as client:
        entries = Path(f"/proc/{client.info.pid}/environ").read_bytes().decode().split("\0")
    assert "GLIBC_TUNABLES=glibc.malloc.hugetlb=0" in entries
    assert f"THP_MEM_ALLOC_ENABLE={ENGINE_ENVIRONMENT['THP_MEM_ALLOC_ENABLE']}" in entries


async def test_concurrent_requests_are_served_and_kept_apart(client: EngineClient) -> None:
    before = await client.stats()
    prompts = [[i, 3 * i, 7] for i in range(12)]
    results = await asyncio.gather(
        *(collect(client, request(f"r{i}", prompt, n=1 + i % 3)) for i, prompt in enumerate(prompts))
    )
    for i, (tokens, last) in enumerate(results):
        assert tokens == {index: greedy(prompts[i], 6) for index in range(1 + i % 3)}
        assert last.usage is not None
        assert last.usage.completion_tokens == 6 * (1 + i % 3)
    after = await client.stats()
    assert (after.running_sum - before.running_sum) / (after.steps - before.steps) > 2


@own
async def test_the_loop_for_asynchronous_devices_tells_everything_too() -> None:
    async with engine("tests.backend.engine.fake:build_overlapping") as client:
        results = await within(asyncio.gather(*(collect(client, request(f"r{i}", [i])) for i in range(9))))
        assert isinstance(results, list)
        for i, (tokens, last) in enumerate(results):
            assert tokens == {0: greedy([i], 6)}
            assert last.usage is not None


@own
async def test_loading_reports_progress_and_the_engine_what_it_is() -> None:
    seen: list[tuple[str, float]] = []
    client = await EngineClient.start(
        fake_options(), build=FAKE, on_progress=lambda stage, fraction: seen.append((stage, fraction))
    )
    try:
        assert seen == [("loading nothing", 0.5)]
        assert client.info.device == "fake"
        assert client.info.num_blocks == 64
        assert client.info.max_model_len == 64 * 4
        assert client.info.pid not in (0, os.getpid())
        assert client.healthy
    finally:
        await client.close()
    assert not client.healthy


async def test_closing_the_iterator_aborts_the_request(client: EngineClient) -> None:
    async with aclosing(client.generate(request("a", [1, 2], FOREVER))) as deltas:
        async for _ in deltas:
            break
    await within(until_idle(client))


async def test_cancelling_the_consumer_aborts_the_request(client: EngineClient) -> None:
    started = asyncio.Event()

    async def consume() -> None:
        async with aclosing(client.generate(request("a", [1, 2], FOREVER))) as deltas:
            async for _ in deltas:
                started.set()

    task = asyncio.create_task(consume())
    await within(started.wait())
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await within(until_idle(client))


async def test_an_abort_from_outside_ends_the_iterator(client: EngineClient) -> None:
    finish = None
    async for delta in client.generate(request("a", [1, 2], FOREVER)):
        finish = delta.finish_reason
        await client.abort("a")
    assert finish is FinishReason.ABORT
    await client.abort("a")
    await client.abort("nobody")


async def test_an_iterator_that_is_never_started_submits_nothing(client: EngineClient) -> None:
    before = await client.stats()
    client.generate(request("a", [1]))
    assert await client.stats() == before


async def test_a_refusal_reaches_its_caller_with_the_parameter(client: EngineClient) -> None:
    with pytest.raises(RequestRefused, match="no tokens") as refusal:
        await collect(client, request("a", []))
    assert refusal.value.param == "prompt"
    with pytest.raises(RequestRefused, match="8000"):
        await collect(client, request("b", [1] * 8000))
    await collect(client, request("a", [1]))


async def test_the_same_id_twice_is_refused_and_does_not_disturb_the_first(client: EngineClient) -> None:
    first = client.generate(request("a", [1, 2]))
    await anext(first)
    with pytest.raises(RequestRefused, match="already running"):
        await collect(client, request("a", [3]))
    assert len([delta async for delta in first]) == 5


async def test_an_id_that_is_used_again_at_once_gets_nothing_of_its_former_owner(client: EngineClient) -> None:
    for i in range(20):
        async with aclosing(client.generate(request("again", [i, 2], FOREVER))) as deltas:
            async for _ in deltas:
                break
        tokens, last = await collect(client, request("again", [i, 3]))
        assert tokens == {0: greedy([i, 3], 6)}
        assert last.request_id == "again"


@own
async def test_more_requests_than_the_engine_takes_are_turned_away_and_none_hangs() -> None:
    """sglang PR#33940: whoever was turned away was never told."""
    async with engine(max_waiting=2, max_num_seqs=2) as client:
        results = await within(
            asyncio.gather(*(collect(client, request(f"r{i}", [i])) for i in range(9)), return_exceptions=True)
        )
        assert isinstance(results, list)
        refused = [result for result in results if isinstance(result, EngineOverloaded)]
        served = [result for result in results if isinstance(result, tuple)]
        assert len(refused) + len(served) == 9
        assert len(refused) >= 5
        assert len(served) >= 2


async def test_requests_on_the_way_count_as_waiting(client: EngineClient) -> None:
    tasks = [asyncio.create_task(collect(client, request(f"r{i}", [i]))) for i in range(5)]
    await asyncio.sleep(0)  # lets the five submit; nothing of the engine can have been read yet
    assert (await client.stats()).waiting == 5
    await asyncio.gather(*tasks)
    assert (await client.stats()).waiting == 0


async def test_two_hundred_requests_that_are_dropped_at_random_leave_nothing_behind(client: EngineClient) -> None:

    async def drop(number: int) -> None:
        taken = 0
        async with aclosing(
            client.generate(request(f"r{number}", [number % 60] * (number % 9 + 1), FOREVER))
        ) as deltas:
            async for _ in deltas:
                taken += 1
                if taken > number % 5:
                    return

    tasks = [asyncio.create_task(drop(number)) for number in range(200)]
    for number, task in enumerate(tasks):
        if number % 3 == 0:
            task.cancel()
    await within(asyncio.gather(*tasks, return_exceptions=True), 60.0)
    await within(until_idle(client), 60.0)
    tokens, _ = await collect(client, request("after", [5, 6]))
    assert tokens[0] == greedy([5, 6], 6)


async def test_signals_to_the_whole_group_leave_draining_to_the_parent(client: EngineClient) -> None:
    running = asyncio.create_task(collect(client, request("a", [1, 2], replace(GREEDY, max_tokens=300))))
    await collect(client, request("b", [3]))
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(client.info.pid, number)
    tokens, last = await running
    assert last.finish_reason is FinishReason.LENGTH
    assert len(tokens[0]) == 300


# -- ends ----------------------------------------------------------------------------------------------------


@own
async def test_the_engines_death_fails_every_open_request_at_once() -> None:
    client = await EngineClient.start(fake_options(num_blocks=2000, max_num_seqs=3), build=FAKE)
    deltas = [client.generate(request(f"r{i}", [i], FOREVER)) for i in range(2)]
    for one in deltas:
        await anext(one)
    waiting = asyncio.create_task(collect(client, request("waiting", [1], FOREVER)))
    os.kill(client.info.pid, signal.SIGKILL)
    for one in deltas:
        with pytest.raises(EngineDied, match="ended"):
            await within(anext_until_error(one))
    with pytest.raises(EngineDied):
        await within(waiting)
    await within(client.wait_closed())
    assert not client.healthy
    assert "signal 9" in str(client.death)
    with pytest.raises(EngineDied, match="signal 9"):
        await collect(client, request("late", [1]))
    with pytest.raises(EngineDied):
        await client.embed([[1]], "mean")
    await client.close()


async def anext_until_error(deltas: AsyncIterator[Delta]) -> None:
    async for _ in deltas:
        pass


@own
async def test_closing_ends_open_requests_with_an_error_and_is_idempotent() -> None:
    client = await EngineClient.start(fake_options(num_blocks=2000), build=FAKE)
    open_request = asyncio.create_task(collect(client, request("a", [1], FOREVER)))
    await collect(client, request("b", [2]))
    await client.close()
    _, last = await open_request  # type: ignore[misc]
    assert last.finish_reason is FinishReason.ERROR
    assert last.error == "the engine is shutting down"
    await client.close()
    with pytest.raises(EngineDied):
        await collect(client, request("c", [1]))


@own
async def test_the_engine_ends_when_its_parent_does() -> None:
    client = await EngineClient.start(fake_options(num_blocks=2000), build=FAKE)
    running = asyncio.create_task(collect(client, request("a", [1], FOREVER)))
    await collect(client, request("b", [2]))
    client._writer.transport.abort()  # what the kernel does for a parent that is killed
    with pytest.raises(EngineDied):
        await within(running)
    await within(client.wait_closed())
    assert client._process.returncode == 0


@own
async def test_an_engine_that_cannot_start_says_why_in_one_line() -> None:
    with pytest.raises(EngineError, match=r"^the disk is on fire$"):
        await EngineClient.start(fake_options(), build="tests.backend.engine.faulty:unloadable")
    with pytest.raises(EngineError, match=r"^the engine could not start: ValueError: surprise$"):
        await EngineClient.start(fake_options(), build="tests.backend.engine.faulty:broken")
    with pytest.raises(EngineDied, match=r"ended while it was starting \(exit code 7\)"):
        await EngineClient.start(fake_options(), build="tests.backend.engine.faulty:vanishing")


@own
async def test_reports_of_failing_steps_keep_health_red_for_a_while_and_not_for_ever() -> None:
    """Without traffic no later step could turn it green: whoever asks before sending would never send again."""
    client = await EngineClient.start(fake_options(), build="tests.backend.engine.faulty:failing")
    now = 1000.0
    client._clock = lambda: now
    for i in range(2):
        await collect(client, request(f"r{i}", [1]))
    assert not client.healthy
    now += RED_S
    assert client.healthy
    await client.close()


@own
async def test_a_step_that_hangs_turns_health_red() -> None:
    """vllm#45414: no progress for minutes, and /health says 200."""
    client = await EngineClient.start(fake_options(), build="tests.backend.engine.faulty:hanging")
    now = 1000.0
    client._clock = lambda: now
    now += 2 * STALL_S
    assert client.healthy, "at rest nothing has to happen"
    waiting = asyncio.create_task(collect(client, request("stuck", [1])))
    await asyncio.sleep(0)
    assert client._streams
    now += STALL_S
    assert client.healthy
    now += 1.0
    assert not client.healthy
    await client.close(grace_s=0.0)
    with pytest.raises(EngineDied):
        await within(waiting)


@own
async def test_an_engine_whose_steps_keep_failing_ends_and_says_why() -> None:
    client = await EngineClient.start(fake_options(), build="tests.backend.engine.faulty:failing")
    for i in range(2):
        _, last = await collect(client, request(f"r{i}", [1]))
        assert last.finish_reason is FinishReason.ERROR
        assert client.healthy == (i == 0)
    with pytest.raises(EngineDied, match="3 steps in a row failed, the last with: RuntimeError: no more"):
        await within(collect(client, request("last", [1])))
    await within(client.wait_closed())
    await client.close()


@own
async def test_a_grammar_that_is_being_compiled_holds_up_its_own_request_only(tmp_path: Path) -> None:
    """Streams go on, aborting is possible, and an engine that has nothing else to do wakes up for it."""
    pipes = {name: tmp_path / name for name in ("good", "bad", "never")}
    for pipe in pipes.values():
        os.mkfifo(pipe)

    def constrained(name: str) -> GenerationRequest:
        return GenerationRequest(name, [7, 8], GREEDY, n=2, grammar=str(pipes[name]), grammar_param="guided_regex")

    async with engine("tests.backend.engine.faulty:compiling") as client:
        held = {name: asyncio.create_task(collect(client, constrained(name))) for name in pipes}
        free = request("free", [1], replace(GREEDY, max_tokens=50))
        tokens, _ = await within(collect(client, free))  # type: ignore[misc]
        assert tokens == {0: greedy([1], 50)}
        assert not any(task.done() for task in held.values())
        assert (await client.stats()).waiting == 3
        await client.abort("never")
        _, last = await within(held["never"])  # type: ignore[misc]
        assert last.finish_reason is FinishReason.ABORT
        await within(asyncio.to_thread(pipes["bad"].write_text, "fails"))
        _, last = await within(held["bad"])  # type: ignore[misc]
        assert (last.error, last.error_param) == ("no text satisfies it", "guided_regex")
        await within(asyncio.to_thread(pipes["good"].write_text, "works"))
        tokens, _ = await within(held["good"])  # type: ignore[misc]
        assert tokens == {index: greedy([7, 8], 6) for index in range(2)}
        await within(until_idle(client))


@own
async def test_embeddings_come_back_in_order_and_errors_by_name(client: EngineClient) -> None:
    async with engine("tests.backend.engine.faulty:embedding") as able:
        vectors = await asyncio.gather(*(able.embed([[i], [i, i]], "mean") for i in range(1, 5)))
        assert vectors == [[[float(i), 1.0], [float(i), 2.0]] for i in range(1, 5)]
        with pytest.raises(EngineError, match="embedding failed: ValueError: empty"):
            await able.embed([[]], "last")
    with pytest.raises(EngineError, match="no embeddings"):
        await client.embed([[1]], "mean")
