"""What the admin API needs of the running proxy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from controller.decision import Decision
from controller.load import Load
from controller.loop import PoolController
from controller.observation import Observation
from proxy.clock import Clock
from proxy.config.model import Config, PoolConfig
from proxy.metrics import Metrics

if TYPE_CHECKING:
    from proxy.admin.agenda import Agenda
    from proxy.admin.expiry import Expiry
    from proxy.admin.history import History

__all__ = ["Operator", "PoolView", "Reloaded"]


class Reloaded(NamedTuple):
    """The outcome of a successful reload."""

    generation: int
    changed: tuple[str, ...]
    restart_required: tuple[str, ...]


class PoolView(Protocol):
    """A pool as operators see it."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        ...

    @property
    def config(self) -> PoolConfig:
        """The snapshot it runs on."""
        ...

    @property
    def controller(self) -> PoolController:
        """What turns its knobs."""
        ...

    def load(self, now: float) -> Load:
        """Return its queue and calls in flight."""
        ...

    def stats(self) -> dict[str, Any]:
        """Return its state in detail, JSON-ready."""
        ...

    def knobs_changed(self) -> None:
        """Act on knobs that were turned from outside."""
        ...

    @property
    def taken_out(self) -> tuple[str, ...]:
        """URLs of upstreams that an operator has taken out."""
        ...

    def take_out(self, url: str, out: bool, now: float, actor: str) -> Decision:
        """Let an upstream have nothing new and finish what it has, or take it back in. Raises ValueError."""
        ...


class Operator(Protocol):
    """The running proxy, as far as it can be looked at and steered."""

    @property
    def pools(self) -> Mapping[str, PoolView]:
        """Pools by name."""
        ...

    @property
    def config(self) -> Config:
        """The configuration in force."""
        ...

    @property
    def generation(self) -> int:
        """How many configurations have been in force so far."""
        ...

    @property
    def metrics(self) -> Metrics:
        """The instruments."""
        ...

    @property
    def clock(self) -> Clock:
        """The clock of observations and decisions."""
        ...

    @property
    def agenda(self) -> Agenda:
        """The changes to come."""
        ...

    @property
    def expiry(self) -> Expiry:
        """The changes that will be taken back."""
        ...

    @property
    def history(self) -> History:
        """The last minutes of every pool."""
        ...

    def decided(self, pool: PoolView, decision: Decision) -> None:
        """Act on a decision somebody made about `pool`: count it, and let through whoever can go now."""
        ...

    def recent(self, pool: str) -> Sequence[Observation]:
        """Return the last finished requests of a pool, oldest first."""
        ...

    async def exposition(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in the form that an Accept header asks for, and its content type."""
        ...

    async def audit(self, limit: int) -> list[dict[str, Any]]:
        """Return the newest decisions of operators, newest first, as dictionaries."""
        ...

    def unready(self) -> list[str]:
        """Return why traffic should not be sent here; empty when it should."""
        ...

    async def reload(self) -> Reloaded:
        """Read the configuration again. Raises ConfigError and keeps the old one when it is not valid."""
        ...
