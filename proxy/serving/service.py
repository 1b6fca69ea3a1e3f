"""What every request shares: the routes in force, the limits, and the stage of life."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from proxy.access.keys import Keyring
from proxy.dispatch.pool import Pool
from proxy.http.cors import Cors
from proxy.http.held import Held
from proxy.http.incoming import Incoming, Limits
from proxy.now import monotonic
from proxy.observe.access_log import AccessLog
from proxy.observe.hooks import Hooks, NullHooks
from proxy.request import Ticket
from proxy.serving.lifecycle import Lifecycle
from proxy.serving.routes import RouteTable

if TYPE_CHECKING:
    from proxy.observe.tracing import Tracing

__all__ = ["OWN_PREFIX", "PROBES", "Service"]

OWN_PREFIX = "/-/trimtab"
"""What our own answers on the clients' port begin with; everything else is the upstreams'."""

PROBES: Final = frozenset({"healthz", "readyz"})
"""The routes of probes, which nobody counts."""
_PROBES = frozenset({f"{OWN_PREFIX}/healthz", f"{OWN_PREFIX}/readyz"})
_PLAIN_PROBES = frozenset({"/healthz", "/readyz"})


class Service:
    """Requests take `table` when they arrive and keep what they took, so it may be swapped at any time."""

    __slots__ = (
        "access_log",
        "any_origin",
        "cors",
        "held",
        "hooks",
        "joining",
        "keyring",
        "lifecycle",
        "limits",
        "loop",
        "probes",
        "ready",
        "skimming",
        "table",
        "tracing",
        "trust_headers",
    )

    def __init__(
        self, table: RouteTable, *, limits: Limits, lifecycle: Lifecycle, trust_headers: bool = True
    ) -> None:
        self.table = table
        self.limits = limits
        self.lifecycle = lifecycle
        self.held = Held(limits.max_held_bytes)
        """The bytes of all bodies that are in memory."""
        self.joining = asyncio.Lock()
        """Taken while the pieces of a large body are put together, which takes its memory twice."""
        self.skimming = asyncio.Lock()
        """Taken for each step through a large body, so that there is one of them between two turns of the loop."""
        self.trust_headers = trust_headers
        """Whether callers may choose class and tenant by header."""
        self.access_log: AccessLog | None = None
        """Where requests are written down; None where they are not."""
        self.cors: Cors | None = None
        """Which web pages may ask and read; None where the upstreams say so."""
        self.any_origin = False
        """Whether an upstream has let pages of any origin read an answer."""
        self.tracing: Tracing | None = None
        """Who follows requests; None where nobody does."""
        self.hooks: Hooks = NullHooks()
        """Who counts requests that no pool took."""
        self.keyring: Keyring | None = None
        """Who may call; None where everybody may."""
        self.ready: Callable[[], bool] = lambda: lifecycle.ready
        """Whether balancers should send traffic here."""
        self.probes = _PROBES
        """Paths on which whoever runs us asks how we are."""
        self.loop = asyncio.get_running_loop()

    def sum_up(self, ticket: Ticket, incoming: Incoming, pool: Pool | None) -> None:
        """Tell whoever counts, learns, traces and logs what became of a request; `pool` has taken it, if any has."""
        obs = None if pool is None else pool.finished(ticket)
        if obs is None and ticket.route not in PROBES:
            obs = ticket.observation("", monotonic())
            self.hooks.request_finished(obs, ticket.route, ticket.code)
        if ticket.trace is not None and self.tracing is not None and obs is not None:
            provider = "" if ticket.wire is None else ticket.wire.name
            self.tracing.finish(ticket.trace, ticket, obs, incoming, provider)
            self.hooks.traced(obs, ticket.trace.hex)
        if self.access_log is not None:
            self.access_log.note(ticket, incoming.fields, obs, monotonic())

    def answer_plain_probes(self) -> None:
        """Answer `/healthz` and `/readyz` here too, in the place of the upstreams that have them."""
        self.probes = _PROBES | _PLAIN_PROBES
