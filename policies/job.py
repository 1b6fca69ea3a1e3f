"""A waiting request, as a policy sees it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Job"]


@dataclass(slots=True)
class Job:
    """One waiting request, reduced to what an ordering may depend on.

    Times are seconds of one monotonic clock; sizes are tokens (for requests without tokens, items).
    """

    id: str
    arrival: float
    """When the request came in."""
    class_slack: float = 0.0
    """Seconds by which the request's priority class defers to the most urgent one."""
    tenant: str = ""
    weight: float = 1.0
    """The tenant's share relative to the other tenants."""
    prompt_tokens: int = 0
    predicted_tokens: float | None = None
    """Median of the predicted output length; None when nothing is known."""
    predicted_tokens_p90: float | None = None
    """Ninth decile of the predicted output length; None when nothing is known."""
    deadline: float | None = None
    """When the answer is worthless, as a point on the same clock."""
    max_tokens: int | None = None
    """The caller's own bound on the output length."""
    klass: str = "default"
    """The request's priority class, by name."""
    items: int = 1
    """How many items of an upstream call it takes up; 1 for a sequence."""
    express: bool = False
    """Whether its class takes the express lane."""
