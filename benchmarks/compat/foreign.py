"""Servers that Trimtab knows nothing about, in front of which it is put without a word of configuration.

Every request is sent alone and in the company of seven others, and every answer is compared byte for byte.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import replace
from typing import Any

from benchmarks.compat import asks
from benchmarks.compat.exchange import VOLATILE, Ask, post
from benchmarks.compat.server import APPS, Place, Server, own

__all__ = ["BENTOML", "GRADIO", "KSERVE", "LITELLM", "LLAMACPP", "MLFLOW", "MLSERVER", "RAY"]

_COMPANY = 8
_VOLATILE = frozenset({"duration", "average_duration", "event_id"})
_TIMES = frozenset(
    {
        "created", "id", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_ms",
        "predicted_per_token_ms", "predicted_per_second", "t_start", "id_slot", "cache_n", "prompt_n",
        "tokens_cached", "tokens_evaluated", "cached_tokens",
    }
)  # fmt: skip
"""What llama.cpp says about a run's time, and about what it still had in its cache."""
_FORM = (("Content-Type", "multipart/form-data; boundary=b"),)


def _form(name: str, path: str, field: str, content: bytes) -> Ask:
    head = f'--b\r\nContent-Disposition: form-data; name="{field}"; filename="x.bin"\r\n'
    body = head.encode() + b"Content-Type: application/octet-stream\r\n\r\n" + content + b"\r\n--b--\r\n"
    return Ask(name, "POST", path, body, _FORM)


def _raw(name: str, path: str, kind: str, body: bytes) -> Ask:
    return Ask(name, "POST", path, body, (("Content-Type", kind),))


def _app(name: str, script: str, ready: str, asked: tuple[Ask, ...], title: str, **more: Any) -> Server:
    def command(place: Place) -> list[str]:
        return [str(own(name).bin / "python"), str(APPS / script), str(place.port), *map(str, place.spare)]

    return Server(
        name, title, command, ready, environment=name, asks=asked, company=_COMPANY, boot_s=180, **more
    )  # fmt: skip


def _bentoml(place: Place) -> list[str]:
    shutil.copy(APPS / "bentoml_app.py", place.folder)
    return [str(own("bentoml").bin / "python"), str(place.folder / "bentoml_app.py"), str(place.port)]


BENTOML = Server(
    "bentoml",
    "BentoML",
    _bentoml,
    "/readyz",
    environment="bentoml",
    asks=(
        *asks.listing("/healthz", "/livez", "/readyz", "/docs.json"),
        _form("classify: a file", "/classify", "image", bytes(range(256)) * 200),
        _form("classify: a large file", "/classify", "image", bytes(range(256)) * 20_000),
        post("score: an array", "/score", [1, 2.50, 3e10]),
        _raw("generate: text", "/generate", "text/plain", b"some text"),
        post("generate: JSON text", "/generate", "some text"),
        *(post(f"embed: {n}", "/embed", {"inputs": "x" * n}) for n in range(1, 9)),
        post("completions: streamed", "/completions", {"prompt": "a", "n": 5}),
        *asks.plain("/embed"),
    ),
    company=_COMPANY,
    boot_s=180,
    env={"BENTOML_DO_NOT_TRACK": "True"},
)

GRADIO = _app(
    "gradio",
    "gradio_app.py",
    "/config",
    (
        *asks.listing("/gradio_api/info", "/theme.css"),
        post("run", "/gradio_api/run/twice", {"data": ["ab"]}, volatile=_VOLATILE),
        *(post(f"run: {n}", "/gradio_api/run/twice", {"data": ["x" * n]}, volatile=_VOLATILE) for n in range(8)),
        post("call", "/gradio_api/call/twice", {"data": ["ab"]}, volatile=_VOLATILE | {"event_id"}),
        _form("upload", "/gradio_api/upload", "files", b"hello" * 1000),
        *asks.plain("/gradio_api/run/twice"),
    ),
    "Gradio",
    env={"GRADIO_ANALYTICS_ENABLED": "False", "HF_HUB_OFFLINE": "1"},
)

KSERVE = _app(
    "kserve",
    "kserve_app.py",
    "/v2/health/ready",
    (
        *asks.listing("/", "/v1/models", "/v1/models/softmax", "/v2/health/live", "/v2", "/v2/models/softmax"),
        *(post(f"v1: {n}", "/v1/models/softmax:predict", {"instances": [0, n / 2]}) for n in range(8)),
        *(
            post(
                f"v2: {n}",
                "/v2/models/softmax/infer",
                {"id": f"i{n}", "inputs": [{"name": "x", "shape": [2], "datatype": "FP64", "data": [0, n / 2]}]},
                volatile=frozenset(),
            )
            for n in range(8)
        ),
        _raw("v1: NaN", "/v1/models/softmax:predict", "application/json", b'{"instances": [NaN, 1]}'),
        _raw("v1: octets", "/v1/models/softmax:predict", "application/octet-stream", b"\x00\x01"),
        *asks.plain("/v1/models/softmax:predict"),
    ),
    "KServe's Python server",
)

LLAMACPP = _app(
    "llamacpp",
    "llamacpp_app.py",
    "/health",
    (
        *asks.listing("/health", "/v1/models", "/props"),
        post("completion", "/completion", {"prompt": "Once", "n_predict": 6, "temperature": 0}, volatile=_TIMES),
        post(
            "completion: streamed",
            "/completion",
            {"prompt": "Once", "n_predict": 6, "temperature": 0, "stream": True},
            volatile=_TIMES,
        ),
        post(
            "infill", "/infill", {"input_prefix": "def f(", "input_suffix": "return", "n_predict": 4}, volatile=_TIMES
        ),
        post("tokenize", "/tokenize", {"content": "Hello there"}),
        post("detokenize", "/detokenize", {"tokens": [1, 2, 3]}),
        post("template", "/apply-template", {"messages": [{"role": "user", "content": "hi"}]}),
        post(
            "chat: no model named",
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0},
            volatile=_TIMES,
        ),
        post(
            "chat: a model that is no text",
            "/v1/chat/completions",
            {"model": 7, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4, "temperature": 0},
            volatile=_TIMES,
        ),
        *asks.plain("/completion"),
    ),
    "llama.cpp's server (xllamacpp)",
)


def _mlserver(place: Place) -> list[str]:
    shutil.copy(APPS / "mlserver_app.py", place.folder / "mlserver_app.py")
    model = {"name": "twice", "implementation": "mlserver_app.Twice"}
    (place.folder / "model-settings.json").write_text(json.dumps(model))
    grpc, metrics, *_ = place.spare
    settings = {
        "host": "127.0.0.1", "http_port": place.port, "grpc_port": grpc, "metrics_port": metrics,
        "parallel_workers": 0, "debug": False,
    }  # fmt: skip
    (place.folder / "settings.json").write_text(json.dumps(settings))
    return [str(own("mlserver").bin / "mlserver"), "start", str(place.folder)]


MLSERVER = Server(
    "mlserver",
    "MLServer",
    _mlserver,
    "/v2/models/twice/ready",
    environment="mlserver",
    asks=(*asks.infer("twice"), *asks.plain("/v2/models/twice/infer")),
    company=_COMPANY,
    boot_s=120,
)


def _mlflow(place: Place) -> list[str]:
    bin_, model = own("mlflow").bin, place.folder / "model"
    environment = {**os.environ, "PYTHONPATH": ""}
    save = [str(bin_ / "python"), str(APPS / "mlflow_app.py"), str(model)]
    subprocess.run(save, check=True, capture_output=True, env=environment, cwd=place.folder)
    serve = [str(bin_ / "mlflow"), "models", "serve", "-m", str(model), "-h", "127.0.0.1", "-p", str(place.port)]
    return [*serve, "--env-manager", "local", "--workers", "1"]


def _table(number: int) -> dict[str, Any]:
    return {"dataframe_split": {"columns": ["a", "b"], "data": [[number, 1.5]]}}


MLFLOW = Server(
    "mlflow",
    "MLflow",
    _mlflow,
    "/ping",
    environment="mlflow",
    asks=(
        *asks.listing("/ping", "/health", "/version"),
        *(post(f"invocations: {n}", "/invocations", _table(n)) for n in range(8)),
        _raw("invocations: CSV", "/invocations", "text/csv", b"a,b\n1,2\n3,4\n"),
        post("invocations: inputs", "/invocations", {"inputs": {"a": [1, 2], "b": [3, 4]}}),
        post("invocations: NaN", "/invocations", b'{"dataframe_records": [{"a": NaN, "b": 1}]}'),
        *asks.plain("/invocations"),
    ),
    company=_COMPANY,
    boot_s=180,
    env={"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"},
)

RAY = _app(
    "ray",
    "ray_app.py",
    "/-/healthz",
    (
        *asks.listing("/-/healthz", "/-/routes", "/any/page"),
        *(post(f"twice: {n}", "/predict", {"input": n}) for n in range(8)),
        post("twice: at a chat's path", "/v1/chat/completions", {"input": "ab"}),
        post("twice: at the root", "/", {"input": [1]}),
        post("an array at /score", "/score", [1, 2]),
        _raw("octets at /embeddings", "/embeddings", "application/octet-stream", bytes(5000)),
        post("streamed", "/generate/stream", {}),
        *asks.plain("/classify"),
    ),
    "Ray Serve",
    env={"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"},
)


def _hello(number: int) -> dict[str, Any]:
    return {"model": "demo", "messages": [{"role": "user", "content": "x" * number}], "stream": number % 2 == 0}


_MODELS = """\
model_list:
  - model_name: demo
    litellm_params: {model: openai/demo, api_key: none, mock_response: "Paris is the capital of France."}
litellm_settings: {num_retries: 0, telemetry: false}
"""


def _litellm(place: Place) -> list[str]:
    (place.folder / "models.yaml").write_text(_MODELS)
    where = ["--host", "127.0.0.1", "--port", str(place.port)]
    return [str(own("litellm").bin / "litellm"), "--config", "models.yaml", *where]


# What it is told as X-Request-Id it says again inside Anthropic's errors, so these requests bring one.
_SPENT = VOLATILE | {"x-litellm-call-id", "litellm_call_id", "completion_id"}

LITELLM = Server(
    "litellm",
    "LiteLLM's proxy (mocked answers)",
    _litellm,
    "/health/readiness",
    environment="litellm",
    asks=tuple(
        replace(question, volatile=_SPENT)
        for question in (
            *asks.listing("/v1/models", "/health/liveliness", "/model/info"),
            *asks.chat("demo"),
            *asks.completions("demo"),
            *(replace(ask, headers=(*ask.headers, ("X-Request-Id", "own"))) for ask in asks.anthropic("demo")),
            *(post(f"chat: {n} of 8", "/v1/chat/completions", _hello(n)) for n in range(8)),
            *asks.plain("/v1/chat/completions"),
        )
    ),
    company=_COMPANY,
    boot_s=180,
    env={
        "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_LOG": "ERROR", "LITELLM_MODE": "PRODUCTION",
        "LITELLM_TELEMETRY": "False", "DISABLE_SCHEMA_UPDATE": "True",
        "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
    },
)  # fmt: skip
