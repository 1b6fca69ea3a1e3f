"""What web pages may do: those of allowed origins call and read, and none gets in under a name of its own."""

from __future__ import annotations

import json

import pytest

from backend.browsers import Browsers, is_local
from tests.backend.api.conftest import StartWorker, Worker
from tests.backend.api.test_connections import client_of
from tests.support.raw_http import request_bytes

PAGE = "https://app.example"
QUESTION = {
    "Origin": PAGE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization",
}
CHAT = "/v1/chat/completions"


def open_to(*origins: str) -> Browsers:
    return Browsers.of("127.0.0.1", "secret", origins, ())


async def test_a_preflight_of_an_allowed_origin_needs_no_key(start_worker: StartWorker) -> None:
    worker = await start_worker(api_key="secret", browsers=open_to(PAGE))
    async with worker.client.options(CHAT, headers=QUESTION) as answer:
        assert answer.status == 204
        assert answer.headers["Access-Control-Allow-Origin"] == PAGE
        assert answer.headers["Access-Control-Allow-Methods"] == "GET, HEAD, POST"
        assert answer.headers["Access-Control-Allow-Headers"] == "authorization"
        assert answer.headers["Access-Control-Max-Age"] == "600"
        assert answer.headers["Vary"] == "Origin"


async def test_a_preflight_of_another_origin_is_told_nothing(start_worker: StartWorker) -> None:
    worker = await start_worker(browsers=open_to("https://other.example"))
    async with worker.client.options(CHAT, headers=QUESTION) as answer:
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]
        assert answer.headers["Vary"] == "Origin"


async def test_any_origin(start_worker: StartWorker) -> None:
    worker = await start_worker(browsers=open_to("*"))
    async with worker.client.options(CHAT, headers=QUESTION) as answer:
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (204, "*")


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", {"prompt": "a"}, 200),
        ("/v1/completions", {"prompt": "a", "stream": True}, 200),
        ("/v1/completions", {}, 400),
        ("/nowhere", {}, 404),
    ],
    ids=["answer", "stream", "refusal", "nothing"],
)
async def test_answers_may_be_read(
    start_worker: StartWorker, path: str, body: dict[str, object], status: int
) -> None:
    worker = await start_worker(browsers=open_to(PAGE.upper()))
    async with worker.client.post(path, json=body, headers={"Origin": PAGE}) as answer:
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (status, PAGE)
        assert "X-Request-Id" in answer.headers["Access-Control-Expose-Headers"]


async def test_the_refusal_of_a_key_may_be_read(start_worker: StartWorker) -> None:
    worker = await start_worker(api_key="secret", browsers=open_to(PAGE))
    async with worker.client.post(CHAT, json={}, headers={"Origin": PAGE}) as answer:
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (401, PAGE)


async def test_without_origins_nothing_is_said(worker: Worker) -> None:
    async with worker.client.options(CHAT, headers=QUESTION) as answer:
        assert answer.status == 405
    async with worker.client.get("/v1/models", headers={"Origin": PAGE}) as answer:
        assert answer.status == 200
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


@pytest.mark.parametrize(
    "lines",
    [b"", b"Host: [::1\r\n", b"Host: a b\r\n", b"Host: a/b\r\n", b"Host: a@b\r\n", b"Host: a\r\nHost: b\r\n",
     b"Host: a:99999\r\n", b"Host: [x]\r\n"],
)  # fmt: skip
async def test_a_host_that_is_none_is_refused(worker: Worker, lines: bytes) -> None:
    async with client_of(worker) as client:
        client.send(b"GET /v1/models HTTP/1.1\r\n" + lines + b"\r\n")
        answer = await client.answer()
        assert (answer.status, json.loads(answer.body)["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost:8000", "[::1]:8000", "10.1.2.3", "box.local", "host.docker.internal:8000", "LOCALHOST",
     "known.example", ""],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/models", "/health", "/metrics"])
async def test_names_of_this_machine_are_answered_to(start_worker: StartWorker, host: str, path: str) -> None:
    worker = await start_worker(browsers=Browsers.of("127.0.0.1", None, (), ("Known.example",)))
    async with client_of(worker) as client:
        assert (await client.ask("GET", path, {"Host": host})).status == 200


@pytest.mark.parametrize("path", ["/v1/models", "/metrics", "/nowhere"])
async def test_a_name_that_a_page_brought_along_is_not(start_worker: StartWorker, path: str) -> None:
    worker = await start_worker(browsers=Browsers.of("127.0.0.1", None, (PAGE,), ()))
    async with client_of(worker) as client:
        answer = await client.ask("GET", path, {"Host": "evil.example:8000"})
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (403, "host_not_allowed")
    async with client_of(worker) as client:
        client.send(request_bytes("POST", "/v1/completions", {"Host": "evil.example"}, {"prompt": "a"}))
        assert (await client.answer()).status == 403


@pytest.mark.parametrize(
    ("listens", "key", "names"),
    [("0.0.0.0", None, ()), ("::", None, ()), ("10.0.0.1", None, ()), ("127.0.0.1", "k", ()),
     ("127.0.0.1", None, ("*",))],
    ids=["all addresses", "all of IPv6", "a network", "a key", "any name"],
)  # fmt: skip
async def test_elsewhere_any_name_is_answered_to(listens: str, key: str | None, names: tuple[str, ...]) -> None:
    assert not Browsers.of(listens, key, (), names).names_checked


def test_loopback_is_what_only_this_machine_reaches() -> None:
    assert [is_local(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "0.0.0.0", "worker")] == [
        True, True, True, True, False, False
    ]  # fmt: skip
