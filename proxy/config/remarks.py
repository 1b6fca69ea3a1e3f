"""What a valid configuration means and may not have been meant to: said by `trimtab config check`, and no error."""

from __future__ import annotations

import re
from collections.abc import Iterator

from proxy.config.pool import PoolConfig
from proxy.config.upstream import UpstreamConfig

__all__ = ["remarks"]

_VERSION = re.compile(r"(.*://[^/]+(?:/.*)?)(/v[0-9]+(?:beta)?)")
_ASKED_FOR = frozenset({"dispatch", "law", "setpoints", "slo"})


def remarks(pool: PoolConfig) -> Iterator[str]:
    """Yield a sentence for everything about `pool` that is worth knowing before it serves."""
    yield from _coverage(pool)
    for upstream in pool.upstreams:
        yield from _version(upstream)


def _coverage(pool: PoolConfig) -> Iterator[str]:
    promises = [f"{name.removesuffix('_s')} {target * 1000.0:g} ms" for name, target in _targets(pool)]
    promised = f"its SLO ({', '.join(promises)})" if promises else "its bounds"
    if not promises and _ASKED_FOR.isdisjoint(pool.model_fields_set) and pool.wire != "opaque":
        return
    if pool.wire == "passthrough":
        yield f"wire is passthrough, so no request waits, takes a place or counts against {promised}"
        return
    streamed = [text for text in promises if text.startswith(("ttft", "tpot"))]
    also = f", {' and '.join(streamed)} where the answer is an event stream" if streamed else ""
    known = "every POST" if pool.wire == "opaque" else "POSTs of known protocols and every other POST"
    yield (
        f"covered by {promised}: {known}, from arrival to end{also}; not covered: other methods, WebSockets, "
        "and POSTs known to be no work (tokenizing, files, model management)"
    )


def _targets(pool: PoolConfig) -> list[tuple[str, float]]:
    found = dict(pool.to_slo().targets())
    for slo in pool.to_class_slos().values():
        for name, target in slo.targets():
            found[name] = min(target, found.get(name, target))
    return list(found.items())


def _version(upstream: UpstreamConfig) -> Iterator[str]:
    found = _VERSION.fullmatch(upstream.url)
    if found is not None:
        base, version = found.groups()
        yield (
            f"{upstream.url} ends in {version}: requests for {version}/... go to {base}{version}/..., with one "
            f"{version}, others behind it; {base} is what most servers need"
        )
