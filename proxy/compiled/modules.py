"""Which modules are compiled: what a request passes through, and nothing that runs once in a while.

What inherits from an interpreted class, like `proxy.protocol`, stays out: a compiled one cannot. A class that others,
outside of these modules, build on says so: `@mypyc_attr(allow_interpreted_subclasses=True)`. What is made by
reflection stays out too: policies, whose options are read from their signatures. And `data[start:end]` of bytes,
empty where `end` lies before `start`, is a SystemError when compiled: find out first which one lies before.
"""

from __future__ import annotations

__all__ = ["MODULES", "PACKAGES"]

PACKAGES = ("policies", "controller", "proxy")
"""The packages whose source a build is made of."""

_POLICIES = ("heap", "job", "ranks", "sizes")
_CONTROLLER = (
    "admission",
    "batch_model",
    "concurrency_model",
    "error_budget",
    "evidence",
    "express",
    "former",
    "gate_upstream",
    "latency",
    "lengths",
    "load",
    "loop",
    "merge_upstream",
    "observation",
    "promises",
    "residuals",
    "samples",
    "service_model",
    "shift",
    "sketch",
    "stats",
    "steered",
    "upstream",
    "verdict",
)
_PROXY = (
    "admission",
    "answering",
    "asking",
    "batcher",
    "flight",
    "handler",
    "headers",
    "held",
    "hooks",
    "incoming",
    "instruments",
    "lease",
    "lifecycle",
    "matching",
    "merge_runs",
    "merger",
    "merging",
    "metrics",
    "parts",
    "pool",
    "pool_metrics",
    "prediction",
    "queue",
    "relay",
    "repeat",
    "reply",
    "rules",
    "shared_head",
    "slots",
    "terms",
    "ticket",
    "traffic",
    "trust",
    "turn",
    "underway",
)
_UPSTREAM = (
    "chunked",
    "chunks",
    "connection",
    "connections",
    "endpoint",
    "exchange",
    "group",
    "head",
    "known_head",
    "lazy_timer",
    "outgoing",
    "retry",
    "routing",
    "standing",
)
_WIRE = (
    "alike",
    "anthropic",
    "anyusage",
    "base",
    "embeddings",
    "envelope",
    "items",
    "jsonbody",
    "kserve",
    "lines",
    "ollama",
    "openai",
    "openai_stream",
    "outline",
    "passthrough",
    "prompt",
    "ranking",
    "registry",
    "rerank",
    "sse",
    "tail",
    "tei",
    "tensors",
    "tfserving",
    "tgi",
    "usage",
    "vectors",
)

MODULES: tuple[str, ...] = (
    *(f"policies.{name}" for name in _POLICIES),
    *(f"controller.{name}" for name in _CONTROLLER),
    *(f"proxy.{name}" for name in _PROXY),
    *(f"proxy.upstream.{name}" for name in _UPSTREAM),
    *(f"proxy.wire.{name}" for name in _WIRE),
)
"""Dotted names, each in one of `PACKAGES`."""
