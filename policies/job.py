"""A waiting request, as a policy sees it."""

from __future__ import annotations

from dataclasses import dataclass

from mypy_extensions import mypyc_attr

__all__ = ["Job"]


@mypyc_attr(allow_interpreted_subclasses=True)
@dataclass(slots=True, init=False)
class Job:
    """One waiting request, reduced to what an ordering may depend on.

    Times are seconds of one monotonic clock; sizes are tokens (for requests without tokens, items).
    """

    id: str
    arrival: float
    """When the request came in."""
    class_slack: float
    """Seconds by which the request's priority class defers to the most urgent one."""
    tenant: str
    weight: float
    """The tenant's share relative to the other tenants."""
    prompt_tokens: int
    predicted_tokens: float | None
    """Median of the predicted output length; None when nothing is known."""
    predicted_tokens_p90: float | None
    """Ninth decile of the predicted output length; None when nothing is known."""
    deadline: float | None
    """When the answer is worthless, as a point on the same clock."""
    max_tokens: int | None
    """The caller's own bound on the output length."""
    klass: str
    """The request's priority class, by name."""
    items: int
    """How many items of an upstream call it takes up; 1 for a sequence."""
    express: bool
    """Whether its class takes the express lane."""

    def __init__(
        self,
        id: str,
        arrival: float,
        class_slack: float = 0.0,
        tenant: str = "",
        weight: float = 1.0,
        prompt_tokens: int = 0,
        predicted_tokens: float | None = None,
        predicted_tokens_p90: float | None = None,
        deadline: float | None = None,
        max_tokens: int | None = None,
        klass: str = "default",
        items: int = 1,
        express: bool = False,
    ) -> None:
        # Written out: compiled, it is many times as quick as the one that dataclasses make.
        self.id = id
        self.arrival = arrival
        self.class_slack = class_slack
        self.tenant = tenant
        self.weight = weight
        self.prompt_tokens = prompt_tokens
        self.predicted_tokens = predicted_tokens
        self.predicted_tokens_p90 = predicted_tokens_p90
        self.deadline = deadline
        self.max_tokens = max_tokens
        self.klass = klass
        self.items = items
        self.express = express
