"""A pool's length predictor at work: who has one, what it decides, and how operators see it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Protocol

from controller.observation import Observation, Result
from policies.sizes import DEFAULT_OUTPUT_TOKENS
from proxy.config.pool import PoolConfig
from proxy.config.profile import load_profile
from proxy.request import Ticket
from proxy.wire.base import Call

if TYPE_CHECKING:
    from controller.predictor.predictor import LengthPredictor
    from controller.predictor.trainer import Trainer

__all__ = ["Foresight", "Lengths", "Predicting", "kept_predictors", "lengths_for", "mode_of", "usual_work"]

Mode = Literal["off", "history", "learn"]

_REPORT_AGE_S: Final = 0.2

_ASKS_FOR_LENGTHS = frozenset({"sjf", "predicted", "fair"})
"""Policies that are about sizes."""


def mode_of(config: PoolConfig) -> Mode:
    """Return how lengths are predicted in a pool, `auto` resolved."""
    mode = config.predictor.mode
    if mode == "auto":
        return "history" if config.policy in _ASKS_FOR_LENGTHS else "off"
    return mode


def lengths_for(config: PoolConfig, now: Callable[[], float], before: Lengths | None = None) -> Lengths | None:
    """Return the predictor of a pool, None where nothing is predicted. What `before` has learned is not lost."""
    if mode_of(config) == "off":
        if before is not None:
            before.close()
        return None
    if before is None:
        return Lengths(config, now)
    before.follow(config)
    return before


def kept_predictors(pools: Iterable[Predicting]) -> dict[str, Lengths]:
    """Return the predictors among `pools` that are to outlive the process, by pool."""
    return {pool.name: pool.lengths for pool in pools if pool.lengths is not None and pool.config.predictor.persist}


def usual_work(call: Call) -> float:
    """Return the output tokens to expect of `call` while nobody knows better."""
    bound = call.max_tokens
    return float(bound) if bound is not None and bound < DEFAULT_OUTPUT_TOKENS else DEFAULT_OUTPUT_TOKENS


class Predicting(Protocol):
    """A pool, as far as its predictor goes."""

    name: str
    lengths: Lengths | None

    @property
    def config(self) -> PoolConfig:
        """The snapshot it runs on."""
        ...


class Foresight(NamedTuple):
    """What may be decided by, in output tokens. None where nothing has proven itself, or the use is switched off."""

    p50: float | None
    """Median, for the policy and for packing."""
    p90: float | None
    """Ninth decile, for admission."""
    work: float
    """Expected over all sequences of the request, for routing and for limits."""
    hint: int | None
    """Median to tell upstreams that take hints."""


class Lengths:
    """Predicts how long answers will be, as the pool's configuration and its upstreams' profiles have it."""

    __slots__ = (
        "_admit",
        "_hint",
        "_now",
        "_order",
        "_predictor",
        "_report",
        "_report_due",
        "_route",
        "_trainer",
        "mode",
        "uses",
    )

    def __init__(self, config: PoolConfig, now: Callable[[], float]) -> None:
        from controller.predictor.predictor import LengthPredictor

        self._now = now
        self._predictor: LengthPredictor = LengthPredictor(clock=now, learn=False)
        self._trainer: Trainer | None = None
        self._report: dict[str, Any] = {}
        self._report_due = 0.0
        self.mode: Mode = "history"
        self.uses: tuple[str, ...] = ()
        """What predictions are used for: as configured, as far as every upstream's profile agrees."""
        self.follow(config)

    def follow(self, config: PoolConfig) -> None:
        """Take over a configuration without forgetting anything."""
        wanted = config.predictor
        self._report = {}
        profiles = [load_profile(upstream.profile) for upstream in config.upstreams]
        self.uses = tuple(
            use
            for use in wanted.uses
            if (any if use == "hint" else all)(use in profile.predictor for profile in profiles)
        )
        self._order, self._admit, self._route, self._hint = (
            use in self.uses for use in ("order", "admit", "route", "hint")
        )
        self._predictor.limit(min_samples=wanted.min_samples, history_keys=wanted.history_keys)
        before, self.mode = self.mode, mode_of(config)
        if self.mode == "learn":
            self._learn(config)
        elif before == "learn":
            self._trainer = None
            self._predictor.learn_with(None)

    def _learn(self, config: PoolConfig) -> None:
        from controller.predictor.predictor import FEATURES
        from controller.predictor.trainer import Trainer

        if self._trainer is None:
            self._trainer = Trainer(FEATURES, now=self._now())
            self._predictor.learn_with(self._trainer)
        wanted = config.predictor
        self._trainer.pace(
            every_s=wanted.retrain_s,
            rows=wanted.retrain_after,
            min_rows=wanted.min_rows,
            limit_s=wanted.training_limit_s,
            memory_bytes=wanted.training_memory_bytes,
        )

    # -- the request path ----------------------------------------------------------------------------------

    def foresee(self, ticket: Ticket, call: Call) -> Foresight:
        """Predict the answer to `call`, and note in its `ticket` what was said. Never raises."""
        payload = call.payload
        prediction = ticket.prediction = self._predictor.predict(
            model=call.model,
            tenant=ticket.tenant,
            route=call.route.name,
            text=call.text,
            prompt_tokens=call.prompt_tokens,
            max_tokens=call.max_tokens,
            params=payload if isinstance(payload, dict) else None,
        )
        if not prediction.orders:
            return Foresight(None, None, usual_work(call), None)
        p50 = prediction.p50
        return Foresight(
            p50 if self._order else None,
            prediction.p90 if self._admit and prediction.admits else None,
            p50 * call.items if self._route else usual_work(call),
            round(p50) if self._hint else None,
        )

    def finished(self, ticket: Ticket, obs: Observation) -> None:
        """Learn from a request that is over, if it says anything: the answer is whole, or was cut by its bound."""
        prediction, call = ticket.prediction, ticket.call
        if prediction is None or call is None or obs.result is not Result.OK:
            return
        tokens, reason = obs.output_tokens, ticket.finish_reason
        if tokens <= 0 and reason is None:
            return  # nobody counted, or it was an error
        self._predictor.observe(prediction, tokens if call.items == 1 else round(tokens / call.items), reason)

    def tick(self) -> None:
        """Once a second: start a training that is due, take over what came of one, see how good it all is."""
        self._predictor.tick()
        self._predictor.refresh()

    # -- operators and restarts ----------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Return what it does, how good it is and why it is or is not listened to, JSON-ready.

        Whoever asks often is shown the same one for a moment.
        """
        now = self._now()
        if not self._report or now >= self._report_due:
            calibration = self._predictor.calibration()
            in_use = calibration.pop("in_use")
            self._report_due = now + _REPORT_AGE_S
            self._report = {
                "mode": self.mode,
                "uses": list(self.uses),
                "order_by": in_use["order"] if "order" in self.uses else "off",
                "admit_by": in_use["admit"] if "admit" in self.uses else "off",
                **calibration,
            }
        return self._report

    def state(self) -> Iterator[str]:
        """Yield what was learned as lines; each takes well under a millisecond."""
        return self._predictor.state()

    def restore(self, lines: Iterable[str]) -> bool:
        """Take over what `state` yielded; False, and a warning, when it is not sound. Before serving only."""
        return self._predictor.restore(lines)

    def close(self) -> None:
        """Stop a training that is under way."""
        self._predictor.close()
