"""Every server of the compatibility run, by name."""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.compat import foreign, generative, numeric, stacks, stand_ins
from benchmarks.compat.server import Server

__all__ = ["SERVERS"]


SERVERS: Mapping[str, Server] = {
    server.name: server
    for server in (
        generative.WORKER,
        generative.VLLM,
        generative.TRANSFORMERS,
        generative.LLM_KATAN,
        numeric.INFINITY,
        numeric.PYTRITON,
        numeric.MOSEC,
        numeric.LITSERVE,
        numeric.TORCHSERVE,
        foreign.BENTOML,
        foreign.GRADIO,
        foreign.KSERVE,
        foreign.LITELLM,
        foreign.LLAMACPP,
        foreign.MLFLOW,
        foreign.MLSERVER,
        foreign.RAY,
        *stacks.STACKS,
        stand_ins.OLLAMA,
        stand_ins.TGI,
        stand_ins.TEI,
    )
}
