"""Protocols whose servers no registry here has: a stand-in of ours speaks them, and real clients talk to it."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.compat import asks
from benchmarks.compat.exchange import Ask, post
from benchmarks.compat.server import APPS, Place, Probe, Server

__all__ = ["OLLAMA", "TEI", "TGI"]

_ONLY_TGI = frozenset({"chat", "chat, streamed", "feature extraction", "no such model"})
_ONLY_TEI = frozenset({"chat", "chat, streamed", "text generation", "text generation, streamed", "no such model"})


def _stand_in(
    name: str, asked: tuple[Ask, ...], probe: Probe, pool: Mapping[str, Any], *together: tuple[Ask, ...]
) -> Server:
    def command(place: Place) -> list[str]:
        return [sys.executable, str(APPS / "stand_in.py"), str(place.port)]

    return Server(
        name, f"{name} (stand-in)", command, "/health", profile=name, pool=pool, asks=asked, together=together,
        probes=(probe,), real=False,
    )  # fmt: skip


OLLAMA = _stand_in("ollama", asks.ollama("demo"), Probe("with_ollama", "demo"), {})
TGI = _stand_in("tgi", asks.tgi(), Probe("with_huggingface_hub", "demo", _ONLY_TGI), {"wire": "tgi"})
TEI = _stand_in(
    "tei",
    (
        post("embed: one", "/embed", {"inputs": "a boat"}),
        post("embed: list", "/embed", {"inputs": ["a boat", "a mountain"], "truncate": True}),
        post("rerank", "/rerank", {"query": "boat", "texts": ["a ship", "a mountain", "tax law"]}),
    ),
    Probe("with_huggingface_hub", "demo", _ONLY_TEI),
    {},
    tuple(post(f"embed: {n} of 16 at once", "/embed", {"inputs": "x" * (n + 1)}) for n in range(16)),
)
