"""The facade: how long will this answer be, in tens of microseconds, and never an exception on the request path."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from controller.predictor.calibration import Calibration, Outcome
from controller.predictor.drift import Watches
from controller.predictor.features import LEXICAL, REQUEST, lexical, request
from controller.predictor.guard import Breaker
from controller.predictor.history import EXACT, localise, mix
from controller.predictor.history import FEATURES as HISTORY
from controller.predictor.keys import all_keys
from controller.predictor.ladder import Ladder, Rung, holdout_of
from controller.predictor.memory import Memory
from controller.predictor.model import LengthModel, parse_model
from controller.predictor.prediction import Evidence, Prediction, Source, Step, cap, capped
from controller.predictor.scale import PRIOR_P50, PRIOR_P90
from controller.predictor.state import MODEL, read, write
from controller.predictor.trainer import Trainer, sklearn_installed

__all__ = ["FEATURES", "LengthPredictor"]

FEATURES: tuple[str, ...] = (*LEXICAL, *REQUEST, *HISTORY)
"""The learned model's inputs, in order."""

log = logging.getLogger("trimtab.predictor")

CUT = frozenset({"length", "max_tokens", "model_length", "token_limit", "limit"})
"""Finish reasons that say the answer was cut by a bound: the true length is at least what came."""

ABORTED = frozenset({"abort", "aborted", "cancel", "cancelled", "error", "failed", "timeout", "disconnect"})
"""Finish reasons that say nothing about length."""

NEAR = 1.02
"""A token or 2 % more than the ninth decile is no miss that matters: lengths that never vary sit right on it."""

_CARRIERS = {
    "size": Source.TEMPLATE,
    "opening": Source.TEMPLATE,
    "group": Source.TEMPLATE,
    "elsewhere": Source.PROMPT,
    "prompt": Source.PROMPT,
}


class LengthPredictor:
    """Predicts output tokens from a learned quantile model, keyed history and the usual length, in that order.

    A step is used while its live record is no worse than saying the usual length (`controller.predictor.ladder`).
    All methods are for one thread (the event loop's) and none of them waits. `clock` is monotonic seconds, `hour`
    the local hour of day, `timer` CPU seconds to measure its own cost with. By default a training process is
    started when one is due, provided scikit-learn is installed (extra `predictor`); with `learn` off there is only
    history, and whatever model was restored.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        hour: Callable[[], float] = lambda: time.localtime().tm_hour,
        timer: Callable[[], float] = time.thread_time,
        learn: bool = True,
        trainer: Trainer | None = None,
        min_samples: int = 50,
        history_keys: int = 20_000,
    ) -> None:
        self._clock = clock
        self._hour = hour
        self._timer = timer
        self._memory = Memory(history_keys=history_keys, min_samples=min_samples)
        self._history_keys = history_keys
        self._calibration = Calibration()
        self._watches = Watches()
        self._breaker = Breaker()
        self._model: LengthModel | None = None
        self._trainer = trainer
        if trainer is None and learn:
            if sklearn_installed():
                self._trainer = Trainer(FEATURES, now=clock())
            else:
                log.info("length predictor keeps to history: the extra `predictor` (scikit-learn) is not installed")
        self.failures = 0
        """Predictions and outcomes that raised inside and were answered by a weaker step."""
        self.sources = dict.fromkeys(Source, 0)
        """Predictions so far, by what carried them."""
        self.model_since: float | None = None
        """When the model in service was taken over; None without one."""

    @property
    def ladder(self) -> Ladder:
        """Which step is relied on, and why."""
        return self._memory.ladder

    def predict(
        self,
        *,
        model: str,
        tenant: str = "",
        route: str = "",
        text: str = "",
        prompt_tokens: int = 0,
        max_tokens: int | None = None,
        params: Mapping[str, Any] | None = None,
        prefix_group: object = None,
    ) -> Prediction:
        """Return the predicted output length of a request. Never raises.

        `text` is the prompt (the caller may bound it), `params` the decoded body or any part of it, and
        `prefix_group` whatever names the requests that share a long prefix with this one, if the caller knows.
        """
        try:
            constants = self._memory.scale.constants(model, tenant)
            log_scale = math.log1p(constants.p50)
            evidence = Evidence(model, tenant, route, max_tokens, self._clock(), constants, log_scale)
            evidence.keys = all_keys(model, route, text, params, prompt_tokens, prefix_group)
            evidence.said = self._memory.history.hear(evidence.keys, log_scale)
            self._boost(evidence, text, params, prompt_tokens)
            prediction = self._answer(evidence)
        except Exception as error:
            self._failed("predict", error)
            prediction = capped(PRIOR_P50, PRIOR_P90, Source.PRIOR, max_tokens, None, False, False)
        self.sources[prediction.source] += 1
        return prediction

    def observe(self, prediction: Prediction, output_tokens: int, finish_reason: str | None = None) -> None:
        """Learn from the outcome of `prediction`. Never raises; each prediction counts once.

        An answer cut by its bound (`length`) is known only to be at least that long; an aborted one says nothing.
        """
        evidence = prediction.evidence
        if evidence is None or evidence.observed or finish_reason in ABORTED:
            return
        evidence.observed = True
        try:
            self._learn(evidence, prediction, max(0, int(output_tokens)), finish_reason)
            self.tick()
        except Exception as error:
            self._failed("observe", error)

    def tick(self) -> None:
        """Start a training that is due, take over one that is done. `observe` does it too."""
        if self._trainer is None:
            return
        model = self._trainer.poll(self._clock(), self._job_scales, self._model)
        if model is not None:
            self._model = model
            self.model_since = self._clock()
            self._memory.levels.clear()
            self._memory.conformal[Rung.LEARNED].restart(float(model.report.get("theta", 0.0)))
            self.ladder.promoted(holdout_of(model.report))

    def refresh(self) -> None:
        """Once a second or so: bring what takes a while to compute up to date, a little at a time."""
        self._calibration.refresh()

    def learn_with(self, trainer: Trainer | None) -> None:
        """Train by `trainer` from now on, or not at all; a model in service stays only in the first case."""
        self.close()
        self._trainer = trainer
        if trainer is None:
            self._model, self.model_since = None, None
        elif self._model is not None:
            trainer.resume(self._model)

    def limit(self, *, min_samples: int, history_keys: int) -> None:
        """Change how much proof is asked for, and how much history is kept."""
        self.ladder.min_samples = min_samples
        self._history_keys = history_keys
        self._memory.history.resize(history_keys)

    def close(self) -> None:
        """Stop a training that is under way."""
        if self._trainer is not None:
            self._trainer.close()

    def calibration(self, models: int = 16) -> dict[str, Any]:
        """Return the live report (tau, pinball ratios, coverage errors; over all and for the newest models)."""
        newest = self._calibration.models()[-models:]
        return {
            "all": self._calibration.report(),
            "models": {
                name: self._calibration.report(name) | {"in_use": self.ladder.in_use(name)} for name in newest
            },
            "in_use": self.ladder.in_use(),
            "steps": self.ladder.report(),
            "demoted": self.ladder.lost(),
            "coverage_alarms": ["/".join(key) for key in self._watches.alarms()],
            "drifts": self._watches.drifts,
            "failures": self.failures,
            "trips": self._breaker.trips,
            "history_keys": len(self._memory.history),
            "sources": {source.value: count for source, count in self.sources.items()},
            "model": self._model and {**self._model.report, "parity": self._model.parity},
            "model_age_s": None if self.model_since is None else self._clock() - self.model_since,
            "trainer": self._trainer and self._trainer.snapshot(),
        }

    def state(self) -> Iterator[str]:
        """Yield what was learned, line by line: scales, newest history, corrections, standings, the model's numbers.

        A line takes well under a millisecond, so whoever asks may do something else between two of them.
        """
        model = self._model.lines if self._model is not None else ()
        return write(chain(self._memory.sections(), ((MODEL, line) for line in model)))

    def restore(self, lines: Iterable[str]) -> bool:
        """Take over what `state` yielded; False, with a warning and nothing changed, when that is not sound.

        A stored model is compiled and probed here, which takes some hundred milliseconds: do it before serving.
        """
        memory = Memory(history_keys=self._history_keys, min_samples=self.ladder.min_samples)
        try:
            pages = read(lines)
            memory.restore(pages)
            model = parse_model(pages[MODEL], names=FEATURES) if pages[MODEL] else None
        except Exception as error:
            log.warning("stored predictor state is not taken over: %s: %s", type(error).__name__, error)
            return False
        self._memory = memory
        self._model = model
        if model is not None:
            self.model_since = self._clock()
            if self._trainer is not None:
                self._trainer.resume(model)
        return True

    def _boost(self, evidence: Evidence, text: str, params: Mapping[str, Any] | None, prompt_tokens: int) -> None:
        """Fill in the features and what the learned model says of them; nothing, when it fails or is late."""
        if self._trainer is None and self._model is None:
            return
        if not self._breaker.allow():
            return
        started = self._timer()
        try:
            features = lexical(text)
            features += request(params, prompt_tokens, evidence.max_tokens, self._hour())
            features += self._memory.history.features(evidence.keys)
            evidence.features = features
            if self._model is not None:
                base, scale = self._scales(evidence.model, evidence.tenant)
                local = localise(features, math.log1p(scale))
                low, high = self._model.p50(local), self._model.p90(local)
                if not (math.isfinite(low) and math.isfinite(high) and low < 16 and high < 16):
                    raise ValueError(f"the learned model answered {low}, {high}")
                low = max(0.0, low)
                evidence.boosted50 = math.log1p(scale * math.expm1(low))
                evidence.boosted90 = math.log1p(scale * math.expm1(max(low, high)))
                evidence.uncorrected50 = math.log1p(base * math.expm1(low))
        except Exception as error:
            self._breaker.failed()
            self._failed("the learned model", error)
        else:
            self._breaker.took(self._timer() - started)

    def _answer(self, evidence: Evidence) -> Prediction:
        """Let every step of the ladder answer, take the strongest that has proven itself, cap."""
        constants, said, steps = evidence.constants, evidence.said, []
        usual = evidence.log_scale, math.log1p(constants.p90)
        if evidence.boosted50 is not None and evidence.boosted90 is not None:
            # The model has seen the templates' history as features; only exact repeats know better.
            learned = mix(evidence.boosted50, evidence.boosted90, said, EXACT)
            steps.append(self._step(Rung.LEARNED, evidence, *learned))
        if said:
            steps.append(self._step(Rung.HISTORY, evidence, *mix(*usual, said)))
        last = self._step(Rung.USUAL, evidence, *usual, "")
        steps.append(last)
        evidence.steps = steps
        model, ladder = evidence.model, self.ladder
        middle = top = last
        for step in steps:
            if step is last or ladder.orders(step.rung, model):
                middle = step
                break
        admits = False
        for step in steps:
            if ladder.admits(step.rung, model):
                top, admits = step, True
                break
        evidence.p90 = max(middle.p50, top.p90)
        if middle.carrier:
            source = _CARRIERS[middle.carrier]
        elif middle.rung is Rung.LEARNED:
            source = Source.BOOSTED
        elif constants.n:
            source = Source.TENANT if constants.narrow else Source.MODEL
        else:
            source = Source.PRIOR
        orders = middle is not last or constants.n > 0
        return capped(middle.p50, evidence.p90, source, evidence.max_tokens, evidence, orders, admits)

    def _step(self, rung: Rung, evidence: Evidence, q50: float, q90: float, carrier: str) -> Step:
        corrected = max(q50, q90 + self._memory.conformal[rung].theta(evidence.model, evidence.route))
        return Step(rung, q50, math.expm1(q50), math.expm1(corrected), carrier)

    def _learn(self, evidence: Evidence, prediction: Prediction, tokens: int, finish_reason: str | None) -> None:
        model, tenant, bound, constants = evidence.model, evidence.tenant, evidence.max_tokens, evidence.constants
        censored = finish_reason in CUT or (finish_reason is None and bound is not None and 0 < bound <= tokens)
        self._judge(evidence, prediction, tokens, censored)
        value, expected = math.log1p(tokens), evidence.steps[0].log50
        if not censored or value >= expected:
            self._watch_over(evidence, value - expected, tokens <= evidence.p90)
            self._memory.history.observe(value, evidence.keys, evidence.said, evidence.log_scale)
        if evidence.uncorrected50 is not None and (not censored or value >= evidence.uncorrected50):
            self._memory.levels.observe(model, tenant, value - evidence.uncorrected50)
        if not censored or tokens >= constants.p50:
            self._memory.scale.observe(model, tenant, tokens)
        if self._trainer is not None and evidence.features is not None:
            self._trainer.observe(
                evidence.features,
                tokens,
                censored=censored,
                model=model,
                tenant=tenant,
                at=evidence.at,
                duration_s=max(0.0, self._clock() - evidence.at),
            )

    def _judge(self, evidence: Evidence, prediction: Prediction, tokens: int, censored: bool) -> None:
        """Compare what every step answered with the outcome."""
        model, route, bound, constants = evidence.model, evidence.route, evidence.max_tokens, evidence.constants
        usual = cap(constants.p50, bound), cap(constants.p90, bound)
        boosted50 = None
        for rung, _, p50, p90, _ in evidence.steps:
            missed = tokens > p90
            # A cut answer shorter than what was expected carries no news; a longer one is at least that.
            told = not censored or missed
            if told:
                self._memory.conformal[rung].observe(model, route, missed)
            capped50 = cap(p50, bound)
            self.ladder.observe(
                rung, model, capped50, cap(p90, bound), usual, tokens,
                scale=constants.p50, covered=tokens <= NEAR * p90 + 1.0 if told else None,
            )  # fmt: skip
            if rung is Rung.LEARNED:
                boosted50 = capped50
        self._calibration.observe(model, Outcome(prediction.p50, prediction.p90, *usual, boosted50, tokens))

    def _watch_over(self, evidence: Evidence, residual: float, covered: bool) -> None:
        if self._watches.observe(evidence.model, evidence.route, residual, covered):
            log.info("output lengths of %s on %s have changed", evidence.model, evidence.route or "all routes")
            self._memory.drifted(evidence.model, evidence.tenant, evidence.route)
            if self._trainer is not None:
                self._trainer.force(evidence.model)

    def _scales(self, model: str, tenant: str) -> tuple[float, float]:
        """Return the learned model's scale for (model, tenant), as trained and as corrected since, in tokens."""
        if self._model is None:
            usual = self._memory.scale.constants(model, tenant).p50
            return usual, usual
        base, known = self._model.scale(model, tenant)
        return base, base * math.exp(self._memory.levels.level(model, tenant, known))

    def _job_scales(self, model: str, tenant: str) -> tuple[float, float]:
        return self._memory.scale.constants(model, tenant).p50, self._scales(model, tenant)[1]

    def _failed(self, where: str, error: Exception) -> None:
        self.failures += 1
        if self.failures & (self.failures - 1) == 0:  # the 1st, 2nd, 4th, 8th ... so that the log stays short
            log.warning("%s failed (%d so far): %s: %s", where, self.failures, type(error).__name__, error)
