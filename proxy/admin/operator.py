"""What the admin API needs of the running proxy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from controller.decision import Decision
from controller.observation import Observation
from proxy.clock import Clock
from proxy.config.model import Config
from proxy.observe.metrics import Metrics
from proxy.pool_view import PoolView

if TYPE_CHECKING:
    from proxy.admin.history import History
    from proxy.admin.scheduled import ScheduledChanges
    from proxy.admin.temporary import TemporaryChanges

__all__ = ["Operator", "Reloaded"]


class Reloaded(NamedTuple):
    """The outcome of a successful reload."""

    generation: int
    changed: tuple[str, ...]
    restart_required: tuple[str, ...]


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
    def scheduled(self) -> ScheduledChanges:
        """The changes to come."""
        ...

    @property
    def temporary(self) -> TemporaryChanges:
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
