"""API keys over real sockets: who is let in, as whom, how often, and what the upstream gets to see of it."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

from proxy.access.keys import Keyring, hash_key
from proxy.config.model import Config
from tests.support.mock_upstream import MockUpstream
from tests.support.proxy_stack import Stack
from tests.support.raw_http import Answer, RawClient, request_bytes

CHAT_PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
KEY, OTHER = "sk-the-key-of-alice", "sk-the-key-of-bob"


def key(name: str = "alice", secret: str = KEY, **rest: Any) -> dict[str, Any]:
    return {"name": name, "hash": hash_key(secret), **rest}


class Rig:
    """An upstream, a proxy with keys, and one client connection."""

    def __init__(self, *keys: dict[str, Any], **config: Any) -> None:
        self._keys, self._config = keys, config

    async def __aenter__(self) -> Rig:
        self._exit = AsyncExitStack()
        self.up = await self._exit.enter_async_context(MockUpstream())
        self.stack = await self._exit.enter_async_context(
            Stack(self.up.url, keys=list(self._keys) or [key()], **self._config)
        )
        self.client = await self._exit.enter_async_context(RawClient(self.stack.port))
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.stack.settled()
        await self._exit.aclose()

    async def chat(self, headers: dict[str, str] | None = None, path: str = CHAT_PATH, **body: Any) -> Answer:
        shown = {"Authorization": f"Bearer {KEY}"} if headers is None else headers
        return await self.client.ask("POST", path, shown, body={**CHAT, **body})

    def finished(self) -> list[tuple[str, str]]:
        return [(obs.klass, obs.tenant) for obs, _, _ in self.stack.counts.finished]


@pytest.mark.parametrize(
    "headers",
    [{"Authorization": f"Bearer {KEY}"}, {"authorization": f"bearer {KEY}"}, {"X-Api-Key": KEY}, {"api-key": KEY}],
)
async def test_a_key_lets_in_and_goes_no_further(headers: dict[str, str]) -> None:
    async with Rig() as rig:
        for _ in range(2):
            assert (await rig.chat(headers)).status == 200
            seen = rig.up.seen[-1]
            assert KEY not in str(seen.headers)
            assert seen.header("authorization") is None, "not even an empty one"
        assert rig.finished() == [("default", "alice")] * 2


@pytest.mark.parametrize(
    "headers",
    [{}, {"Authorization": "Bearer sk-wrong"}, {"Authorization": "Bearer "}, {"Authorization": KEY},
     {"X-Api-Key": ""}, {"Cookie": KEY}, {"Authorization": f"Basic {KEY}"},
     {"Authorization": f"Bearer {hash_key(KEY)}"}],
)  # fmt: skip
async def test_without_a_key_that_fits_nobody_enters_and_all_hear_the_same(headers: dict[str, str]) -> None:
    async with Rig() as rig:
        answer = await rig.chat(headers)
        assert answer.status == 401
        assert answer.header("www-authenticate") == "Bearer"
        assert answer.header("x-trimtab-reason") == "invalid_api_key"
        assert answer.header("retry-after") is None
        assert answer.json["error"]["code"] == "invalid_api_key"
        assert answer.json["error"]["message"] == "A valid API key is required, as a bearer token or in x-api-key."
        assert rig.up.seen == []


@pytest.mark.parametrize("path", ["/v1/nothing", "/", "/v1/models"])
async def test_strangers_do_not_learn_what_there_is(path: str) -> None:
    async with Rig() as rig:
        assert (await rig.client.ask("GET", path)).status == 401
        assert rig.up.seen == []


async def test_a_refusal_speaks_the_callers_protocol() -> None:
    async with Rig() as rig:
        answer = await rig.chat({"x-api-key": "wrong"}, "/v1/messages")
        assert answer.status == 401
        assert answer.json["type"] == "error"
        assert answer.json["error"]["type"] == "authentication_error"


async def test_probes_need_no_key() -> None:
    async with Rig() as rig:
        assert (await rig.client.ask("GET", "/-/trimtab/healthz")).status == 200


async def test_a_field_that_is_not_our_key_is_passed_on() -> None:
    async with Rig() as rig:
        await rig.chat({"X-Api-Key": KEY, "Authorization": "Bearer of-the-upstream"})
        assert rig.up.seen[-1].header("authorization") == "Bearer of-the-upstream"
        assert rig.up.seen[-1].header("x-api-key") is None


async def test_a_key_is_passed_on_where_that_is_configured() -> None:
    async with Rig(forward_keys=True) as rig:
        await rig.chat()
        assert rig.up.seen[-1].header("authorization") == f"Bearer {KEY}"


async def test_the_upstreams_own_key_takes_the_place_of_the_callers() -> None:
    async with MockUpstream() as up:
        upstreams = [{"url": up.url, "api_key": "sk-upstream"}]
        async with Stack(upstreams=upstreams, keys=[key()]) as stack, RawClient(stack.port) as client:
            assert (await client.ask("POST", CHAT_PATH, {"X-Api-Key": KEY}, body=CHAT)).status == 200
            assert up.seen[-1].all("authorization") == ["Bearer sk-upstream"]
            assert up.seen[-1].header("x-api-key") is None


@pytest.mark.parametrize(
    ("settings", "headers", "outcome"),
    [
        ({}, {"x-trimtab-class": "interactive", "x-trimtab-tenant": "bob"}, ("default", "alice")),
        ({}, {"x-trimtab-class": "batch"}, ("batch", "alice")),
        ({"tenant": "acme"}, {}, ("default", "acme")),
        ({"ceiling": "interactive"}, {"x-trimtab-class": "interactive"}, ("interactive", "alice")),
        ({"ceiling": "batch"}, {"x-trimtab-class": "interactive"}, ("batch", "alice")),
        ({"default_class": "batch"}, {}, ("batch", "alice")),
        ({"classes": ["batch"]}, {"x-trimtab-class": "default"}, ("batch", "alice")),
        ({"trust_headers": True}, {"x-trimtab-class": "interactive"}, ("interactive", "alice")),
        ({"trust_headers": True}, {"x-trimtab-tenant": "bob"}, ("default", "bob")),
    ],
)  # fmt: skip
async def test_no_header_raises_a_caller_above_its_key(
    settings: dict[str, Any], headers: dict[str, str], outcome: tuple[str, str]
) -> None:
    async with Rig(key(**settings)) as rig:
        assert (await rig.chat({"x-api-key": KEY, **headers})).status == 200
        assert rig.finished() == [outcome]


async def test_a_caller_above_its_requests_hears_when_to_come_back() -> None:
    limits = {"requests_per_minute": 2, "burst": 2}
    async with Rig(key(limits=limits), key("bob", OTHER)) as rig:
        assert [(await rig.chat()).status for _ in range(2)] == [200, 200]
        answer = await rig.chat()
        assert answer.status == 429
        assert answer.header("x-trimtab-reason") == "rate_limited_requests"
        assert 29 <= int(answer.header("retry-after") or 0) <= 30
        assert "2 requests per minute" in answer.json["error"]["message"]
        assert (await rig.chat({"x-api-key": OTHER})).status == 200, "others are not concerned"
        assert rig.stack.counts.sheds == [("default", "rate_limited_requests")]


async def test_requests_that_need_no_turn_are_counted_as_well() -> None:
    async with Rig(key(limits={"requests_per_minute": 1})) as rig:
        shown = {"x-api-key": KEY}
        assert (await rig.client.ask("GET", "/v1/models", shown)).status == 200
        assert (await rig.client.ask("GET", "/v1/models", shown)).status == 429


async def test_tokens_are_charged_as_predicted_and_corrected_when_the_answer_is_over() -> None:
    async with Rig(key(limits={"tokens_per_minute": 60_000, "burst_tokens": 1_000})) as rig:
        # 900 could come, 4 do: ten such requests fit where the predictions alone would admit one.
        assert [(await rig.chat(max_tokens=900)).status for _ in range(10)] == [200] * 10
        (caller,) = rig.stack.handler.service.keyring._callers.values()  # type: ignore[union-attr]
        assert caller.allowance.inflight == 0


async def test_a_caller_above_its_tokens_hears_when_to_come_back() -> None:
    async with Rig(key(limits={"tokens_per_minute": 60, "burst_tokens": 8})) as rig:
        assert (await rig.chat()).status == 200
        answer = await rig.chat()
        assert answer.status == 429
        assert answer.header("x-trimtab-reason") == "rate_limited_tokens"
        assert int(answer.header("retry-after") or 0) >= 1


async def test_a_caller_may_have_only_so_many_under_way() -> None:
    async with Rig(key(limits={"max_inflight": 1})) as rig, RawClient(rig.stack.port) as second:
        body = request_bytes("POST", CHAT_PATH, {"x-api-key": KEY}, CHAT, mock={"gate": "g"})
        second.send(body)
        await rig.up.until(lambda: len(rig.up.seen) == 1)
        answer = await rig.chat()
        assert (answer.status, answer.header("x-trimtab-reason")) == (429, "too_many_inflight")
        second.abort()
        await rig.stack.settled()
        assert (await rig.chat()).status == 200, "whoever leaves makes room"


async def test_merged_requests_are_charged_and_kept_apart_by_tenant() -> None:
    keys = [key(limits={"max_inflight": 1}), key("bob", OTHER)]
    async with Rig(*keys, dispatch="merge") as rig:
        for secret, tenant in ((KEY, "alice"), (OTHER, "bob")):
            body = {"model": "m", "input": "x"}
            for _ in range(2):
                answer = await rig.client.ask("POST", "/v1/embeddings", {"x-api-key": secret}, body=body)
                assert answer.status == 200
            assert rig.finished()[-1] == ("default", tenant)
            assert secret not in str(rig.up.seen[-1].headers)


@pytest.mark.parametrize("dispatch", ["gate", "merge"])
async def test_what_is_charged_is_what_the_answer_says_merged_or_not(dispatch: str) -> None:
    said = {"object": "list", "data": [{"index": 0, "embedding": [0.5]}], "usage": {"prompt_tokens": 77}}
    async with Rig(key(limits={"tokens_per_minute": 100}), dispatch=dispatch) as rig:
        shown, asked = {"x-api-key": KEY}, {"model": "m", "input": "x"}
        statuses = []
        for _ in range(3):
            answer = await rig.client.ask(
                "POST", "/v1/embeddings", shown, body=asked, mock={"body": json.dumps(said)}
            )  # fmt: skip
            statuses.append(answer.status)
        assert [obs.prompt_tokens for obs, _, _ in rig.stack.counts.finished][:1] == [77]
        assert statuses == [200, 200, 429]


@pytest.mark.parametrize("digits", [11, 26, 310])
async def test_an_absurd_count_is_no_count_and_keeps_no_place(digits: int) -> None:
    said = '{"choices":[{"finish_reason":"stop"}],"usage":{"prompt_tokens":7,"completion_tokens":%s}}' % (
        "9" * digits
    )
    async with Rig(key(limits={"max_inflight": 1, "tokens_per_minute": 1000})) as rig:
        for _ in range(3):
            answer = await rig.client.ask("POST", CHAT_PATH, {"x-api-key": KEY}, body=CHAT, mock={"body": said})
            assert (answer.status, answer.body) == (200, said.encode())
        assert [obs.output_tokens for obs, _, _ in rig.stack.counts.finished] == [0] * 3


async def test_a_swap_of_keys_counts_for_open_connections_too() -> None:
    async with Rig() as rig:
        assert (await rig.chat()).status == 200
        keys = Config.model_validate({"upstreams": ["http://a:1"], "keys": [key("bob", OTHER)]}).keys
        before = rig.stack.handler.service.keyring
        rig.stack.handler.service.keyring = Keyring(keys, now=0.0)
        assert (await rig.chat()).status == 401
        rig.stack.handler.service.keyring = before
        assert (await rig.chat()).status == 200
        assert rig.up.seen[-1].header("authorization") is None
        rig.stack.handler.service.keyring = None
        assert (await rig.chat({"x-api-key": "anything"})).status == 200


@pytest.mark.parametrize(
    ("upstream", "expected"),
    [
        ({}, {"authorization": "Bearer own", "x-api-key": "other", "api-key": "third"}),
        ({"client_credentials": "strip"}, {}),
        ({"api_key": "theirs"}, {"authorization": "Bearer theirs"}),
        ({"api_key": "theirs", "profile": "anthropic"}, {"x-api-key": "theirs"}),
        ({"api_key": "theirs", "api_key_header": "api-key"}, {"api-key": "theirs"}),
        ({"api_key": "theirs", "api_key_header": "X-Goog-Api-Key"}, {"x-goog-api-key": "theirs"}),
        (
            {"api_key": "theirs", "api_key_header": "x-api-key", "client_credentials": "pass"},
            {"authorization": "Bearer own", "x-api-key": "theirs", "api-key": "third"},
        ),
        (
            {"api_key": "theirs", "client_credentials": "pass"},
            {"authorization": "Bearer theirs", "x-api-key": "other", "api-key": "third"},
        ),
    ],
)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/elsewhere", "/v1/embeddings"])
async def test_credentials_reach_an_upstream_as_it_is_configured_and_never_twice(
    upstream: dict[str, str], expected: dict[str, str], path: str
) -> None:
    headers = {"Authorization": "Bearer own", "X-Api-Key": "other", "Api-Key": "third"}
    async with MockUpstream() as up, Stack(upstreams=[{"url": up.url, **upstream}]) as stack:
        async with RawClient(stack.port) as client:
            body = {"model": "m", "input": "x", "messages": []}
            assert (await client.ask("POST", path, headers, body=body)).status == 200
        names = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
        assert {name: up.seen[-1].all(name) for name in names if up.seen[-1].all(name)} == {
            name: [value] for name, value in expected.items()
        }


@pytest.mark.parametrize(
    ("upstream", "says"),
    [
        ({"api_key": "two\nlines"}, "printable ASCII on one line"),
        ({"api_key": "  "}, "printable ASCII on one line"),
        ({"api_key": "k", "api_key_header": "Host"}, "frames or routes"),
        ({"api_key_header": "x-api-key"}, "only makes sense beside api_key"),
    ],
)
def test_a_credential_that_could_not_be_sent_is_refused(upstream: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Config.model_validate({"upstreams": [{"url": "http://a", **upstream}]})


async def test_answers_tell_as_what_and_as_whom_a_request_was_served() -> None:
    classes = {"interactive": {"slack_ms": 0}, "default": {"slack_ms": 100}, "batch": {"slack_ms": 5000}}
    async with Rig(key(ceiling="default"), key("bob", OTHER, trust_headers=True), classes=classes) as rig:
        for asked, secret, given in (
            ({"X-Trimtab-Class": "interactive"}, KEY, ("default", "alice")),
            ({"X-Trimtab-Class": "batch", "X-Trimtab-Tenant": "x"}, KEY, ("batch", "alice")),
            ({"X-Trimtab-Tenant": "t\x9b31m"}, OTHER, ("default", "t?31m")),
            ({}, KEY, ("default", "alice")),
        ):
            for stream in (False, True):
                answer = await rig.chat({"Authorization": f"Bearer {secret}", **asked}, stream=stream)
                fields = {name.lower(): value for name, value in answer.headers}
                assert (fields["x-trimtab-class"], fields["x-trimtab-tenant"]) == given
        refused = await rig.chat({"X-Trimtab-Class": "batch"})
        assert "x-trimtab-class" not in {name.lower() for name, _ in refused.headers}


async def left_before_the_answer(rig: Rig, body: dict[str, object]) -> int:
    """Ask, leave once the upstream has the request, and return 0; or the status of a refusal."""
    asked = len(rig.up.seen)
    async with RawClient(rig.stack.port) as client:
        client.send(request_bytes("POST", CHAT_PATH, {"x-api-key": KEY}, body, mock={"hang": True}))
        answer = asyncio.ensure_future(client.answer())
        sent = asyncio.ensure_future(rig.up.until(lambda: len(rig.up.seen) > asked))
        await asyncio.wait((answer, sent), return_when=asyncio.FIRST_COMPLETED)
        sent.cancel()
        status = answer.result().status if answer.done() else 0
        answer.cancel()
    await rig.stack.settled()
    return status


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_before_the_answer_does_not_pay_for_it(stream: bool) -> None:
    async with Rig(key(limits={"tokens_per_minute": 60, "burst_tokens": 2_000})) as rig:
        body = {**CHAT, "max_tokens": 500, "stream": stream}
        statuses = [await left_before_the_answer(rig, body) for _ in range(20)]
        assert statuses.count(429) >= 10, "the predictions stayed charged"


async def test_leaving_is_charged_for_the_time_that_the_upstream_has_had() -> None:
    async with Rig(key(limits={"tokens_per_minute": 60, "burst_tokens": 4_000})) as rig:
        for _ in range(3):
            # Four tokens in a hundredth of a second or more: leaving at once is worth a handful.
            assert (await rig.chat(max_tokens=500)).status == 200
        keyring = rig.stack.handler.service.keyring
        assert keyring is not None
        keyring._paces._s_per_token = {rig.up.url: 1.0}
        body = {**CHAT, "max_tokens": 500}
        assert [await left_before_the_answer(rig, body) for _ in range(20)] == [0] * 20


async def test_what_streamed_before_the_caller_left_is_what_is_charged() -> None:
    async with Rig(key(limits={"tokens_per_minute": 60, "burst_tokens": 1_000})) as rig:
        for _ in range(3):
            async with RawClient(rig.stack.port) as client:
                body = {**CHAT, "max_tokens": 600, "stream": True}
                mock = {"tokens": 20, "stall_at": 900}
                client.send(request_bytes("POST", CHAT_PATH, {"x-api-key": KEY}, body, mock=mock))
                assert (await client.head())[0] == 200
                await client.reader.readuntil(b"t\xc3\xa4g-1")
            await rig.stack.settled()
        assert [code for _, _, code in rig.stack.counts.finished] == [499] * 3
