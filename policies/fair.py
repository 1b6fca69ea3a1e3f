"""Start-time fair queueing over tenants."""

from __future__ import annotations

import math
from collections import OrderedDict

from policies.base import Job
from policies.sizes import DEFAULT_OUTPUT_TOKENS, expected_output, finite

__all__ = ["Fair"]

MIN_WEIGHT, MAX_WEIGHT = 1e-3, 1e6
"""Shares outside count as these: nothing would never be served, infinity would be charged nothing."""


class _Tenant:
    """One tenant's account. All amounts are tokens divided by the tenant's weight."""

    __slots__ = ("correction", "finish", "name", "outstanding", "queued")

    def __init__(self, name: str) -> None:
        self.name = name
        self.finish = 0.0
        """Virtual time up to which the tenant's work so far has been charged."""
        self.correction = 0.0
        """Charges (positive) and refunds (negative) that the next job's tag will carry."""
        self.queued: OrderedDict[int, _Charge] = OrderedDict()
        """What waits, in order of arrival and so of start tags."""
        self.outstanding = 0
        """Jobs waiting or being served."""

    def newest_start(self) -> float:
        """Return the start tag of the newest waiting job: later ones must not get ahead of it."""
        return next(reversed(self.queued.values())).start


class _Charge:
    """What one job was charged. Holds the job, so that its identity stays taken while it is outstanding."""

    __slots__ = ("cost", "job", "output", "start", "tenant", "weight")

    def __init__(self, job: Job, tenant: _Tenant, *, start: float, cost: float, output: float, weight: float) -> None:
        self.job = job
        self.tenant = tenant
        self.start = start
        self.cost = cost
        """Tokens over weight."""
        self.output = output
        """Output tokens that the cost was computed from."""
        self.weight = weight


class Fair:
    """Share the capacity between tenants by weight, in tokens.

    - What: start-time fair queueing (Goyal, Vin and Cheng 1996). A job's key is its start tag
      `S = max(v, F_prev)`, its finish tag `F = S + cost / weight` is where the tenant's next job starts, and the
      virtual time `v` is the start tag of the job dispatched last. A tenant that had nothing waiting starts at
      `v`: idling earns no credit. The cost is predicted; the difference to the real count is charged or refunded
      to the tenant's next job when the answer is complete, and a job that was never served is refunded in full.
      A tenant with work waiting keeps its refunds even where they take it back behind `v`, which exact costs
      never would.
    - Inputs: tenant, weight, prompt tokens, predicted output (unknown: the mean of what completed lately, which
      starts at `default_tokens`), the caller's max_tokens.
    - Knobs: `input_weight` (default 1) and `output_weight` (1): the price of a prompt and an output token
      (1 and 2 are common where decode dominates); `default_tokens` (256); `max_tenants` (10000): accounts kept
      for tenants with nothing outstanding.
    - Bound: over any interval in which two tenants both have work waiting, what they were charged, over their
      weights, differs by at most the sum of their largest jobs; corrections add the prediction error of what is
      queued or in flight. There is no bound in seconds (`max_slack` is infinite): a tenant waits for one job of
      every other active tenant, so for their number times the largest job over the service rate.
    - Trade-offs: works at any and at varying service rates and costs O(log n); a tenant with long prompts cannot
      crowd out others, as it does when requests are counted. Says nothing about deadlines or classes.
    """

    name = "fair"

    def __init__(
        self,
        *,
        input_weight: float = 1.0,
        output_weight: float = 1.0,
        default_tokens: float = DEFAULT_OUTPUT_TOKENS,
        max_tenants: int = 10_000,
    ) -> None:
        if isinstance(max_tenants, bool) or not isinstance(max_tenants, int) or max_tenants < 1:
            raise ValueError(f"max_tenants must be a whole number >= 1, not {max_tenants!r}")
        self._input_weight = finite("input_weight", input_weight, inclusive=True)
        self._output_weight = finite("output_weight", output_weight, inclusive=True)
        self._unknown = finite("default_tokens", default_tokens, inclusive=True)
        self._max_tenants = max_tenants
        self._virtual = 0.0
        self._busy: dict[str, _Tenant] = {}
        self._idle: OrderedDict[str, _Tenant] = OrderedDict()
        self._charges: dict[int, _Charge] = {}

    @property
    def max_slack(self) -> float:
        """Infinite: the bound of this policy is in tokens, not in seconds."""
        return math.inf

    def key(self, job: Job) -> float:
        """Return the start tag of `job` and charge its predicted cost to its tenant."""
        previous = self._charges.get(id(job))
        if previous is not None:
            return previous.start
        tenant = self._activate(job.tenant)
        weight = min(job.weight if job.weight > MIN_WEIGHT else MIN_WEIGHT, MAX_WEIGHT)
        output = expected_output(job, self._unknown)
        cost = (self._input_weight * max(job.prompt_tokens, 0) + self._output_weight * output) / weight
        due = tenant.finish + tenant.correction
        if tenant.queued:
            # Served in its own order; a refund which that does not let us use yet is kept for the job after.
            start = max(tenant.newest_start(), due)
            tenant.correction = due - start
        else:
            start = max(self._virtual, due)
            tenant.correction = 0.0
        tenant.finish = start + cost
        tenant.outstanding += 1
        charge = _Charge(job, tenant, start=start, cost=cost, output=output, weight=weight)
        tenant.queued[id(job)] = self._charges[id(job)] = charge
        return start

    def dispatched(self, job: Job) -> None:
        """Advance the virtual time to the start tag of `job`."""
        charge = self._charges.get(id(job))
        if charge is None:
            return
        charge.tenant.queued.pop(id(job), None)
        self._virtual = max(self._virtual, charge.start)

    def completed(self, job: Job, output_tokens: int) -> None:
        """Charge or refund the difference between the predicted and the real output."""
        charge = self._charges.pop(id(job), None)
        if charge is None:
            return
        charge.tenant.queued.pop(id(job), None)
        error = (max(output_tokens, 0) - charge.output) * self._output_weight / charge.weight
        charge.tenant.correction += error
        self._unknown += 0.05 * (max(output_tokens, 0) - self._unknown)
        self._release(charge.tenant)

    def removed(self, job: Job) -> None:
        """Refund the whole charge: `job` was never served."""
        charge = self._charges.pop(id(job), None)
        if charge is None:
            return
        charge.tenant.queued.pop(id(job), None)
        charge.tenant.correction -= charge.cost
        self._release(charge.tenant)

    def _activate(self, name: str) -> _Tenant:
        tenant = self._busy.get(name)
        if tenant is None:
            tenant = self._idle.pop(name, None) or _Tenant(name)
            self._busy[name] = tenant
        return tenant

    def _release(self, tenant: _Tenant) -> None:
        """One job of `tenant` is gone. Forget accounts that say nothing any more, so that their number is bounded."""
        tenant.outstanding -= 1
        if tenant.outstanding:
            return
        del self._busy[tenant.name]
        if not self._busy:
            # A busy period ended: whoever comes next starts level.
            self._idle.clear()
            self._virtual = 0.0
            return
        self._idle[tenant.name] = tenant
        for _ in range(2):
            if not self._idle:
                break
            name, oldest = next(iter(self._idle.items()))
            if oldest.finish + oldest.correction <= self._virtual or len(self._idle) > self._max_tenants:
                del self._idle[name]
            else:
                self._idle.move_to_end(name)
