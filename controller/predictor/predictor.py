"""The facade: how long will this answer be, in tens of microseconds, and never an exception on the request path."""

from __future__ import annotations

import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from controller.predictor.calibration import Calibration, Outcome
from controller.predictor.conformal import Conformal
from controller.predictor.drift import Watch
from controller.predictor.features import LEXICAL, REQUEST, lexical, request
from controller.predictor.guard import Breaker, Contest
from controller.predictor.history import EXACT, History, localise
from controller.predictor.history import FEATURES as HISTORY
from controller.predictor.keys import any_model_key, prompt_key, size_key, system_prompt, template_keys
from controller.predictor.model import LengthModel, parse_model
from controller.predictor.prediction import Evidence, Prediction, Source
from controller.predictor.scale import PRIOR_P50, PRIOR_P90, Levels, Scale
from controller.predictor.trainer import Trainer, sklearn_installed

__all__ = ["FEATURES", "LengthPredictor"]

K = TypeVar("K")
V = TypeVar("V")

FEATURES: tuple[str, ...] = (*LEXICAL, *REQUEST, *HISTORY)
"""The learned model's inputs, in order."""

STATE_VERSION = 1

WATCHED = 256
"""Models, and (model, route) pairs, that are watched for drift; the least recently used leave."""

log = logging.getLogger("trimtab.predictor")

CUT = frozenset({"length", "max_tokens", "model_length", "token_limit", "limit"})
"""Finish reasons that say the answer was cut by a bound: the true length is at least what came."""

ABORTED = frozenset({"abort", "aborted", "cancel", "cancelled", "error", "failed", "timeout", "disconnect"})
"""Finish reasons that say nothing about length."""

_CARRIERS = {
    "size": Source.TEMPLATE,
    "opening": Source.TEMPLATE,
    "group": Source.TEMPLATE,
    "elsewhere": Source.PROMPT,
    "prompt": Source.PROMPT,
}


class LengthPredictor:
    """Predicts output tokens from keyed history, a learned quantile model and the usual length, in that order.

    All methods are for one thread (the event loop's) and none of them waits. `clock` is monotonic seconds, `hour`
    the local hour of day, `timer` seconds to measure its own cost with. By default a training process is started
    when one is due, provided scikit-learn is installed (extra `predictor`); with `learn` off there is only history,
    and whatever model was restored.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float] = time.monotonic,
        hour: Callable[[], float] = lambda: time.localtime().tm_hour,
        timer: Callable[[], float] = time.perf_counter,
        learn: bool = True,
        trainer: Trainer | None = None,
    ) -> None:
        self._clock = clock
        self._hour = hour
        self._timer = timer
        self._scale = Scale()
        self._levels = Levels()
        self._history = History()
        self._conformal = Conformal()
        self._calibration = Calibration()
        self._watch: OrderedDict[tuple[str, str], Watch] = OrderedDict()
        self._contests: OrderedDict[str, Contest] = OrderedDict()
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
            constants = self._scale.constants(model, tenant)
            evidence = Evidence(model, tenant, route, max_tokens, self._clock(), constants)
            self._recall(evidence, text, params, prompt_tokens, prefix_group)
            self._boost(evidence, text, params, prompt_tokens)
            return self._answer(evidence)
        except Exception as error:
            self._failed("predict", error)
            return _capped(PRIOR_P50, PRIOR_P90, Source.PRIOR, max_tokens, None)

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
            self._contests.clear()
            self._levels.clear()
            self._conformal.restart(float(model.report.get("theta", 0.0)))

    def close(self) -> None:
        """Stop a training that is under way."""
        if self._trainer is not None:
            self._trainer.close()

    def calibration(self) -> dict[str, Any]:
        """Return the live report (tau, pinball ratios, coverage errors; per model and over all) and health."""
        models = {name: self._calibration.report(name) for name in self._calibration.models()}
        return {
            "all": self._calibration.report(),
            "models": models,
            "demoted": [name for name, contest in self._contests.items() if contest.lost],
            "coverage_alarms": ["/".join(key) for key, watch in self._watch.items() if watch.coverage.alarm],
            "drifts": sum(watch.drifts for watch in self._watch.values()),
            "failures": self.failures,
            "trips": self._breaker.trips,
            "history_keys": len(self._history),
            "model": self._model and {**self._model.report, "parity": self._model.parity},
            "trainer": self._trainer and self._trainer.snapshot(),
        }

    def state(self) -> dict[str, Any]:
        """Return what was learned, JSON-ready: scales, the newest history keys, corrections, the model's numbers."""
        return {
            "version": STATE_VERSION,
            "scale": self._scale.state(),
            "levels": self._levels.state(),
            "history": self._history.state(),
            "conformal": self._conformal.state(),
            "model": list(self._model.lines) if self._model else None,
        }

    def restore(self, state: Mapping[str, Any]) -> bool:
        """Take over `state`. False, with a warning and nothing changed, when it is not a sound one. Never raises.

        A stored model is compiled and probed here, which takes some hundred milliseconds: do it before serving.
        """
        scale, levels, history, conformal = Scale(), Levels(), History(), Conformal()
        try:
            if state["version"] != STATE_VERSION:
                raise ValueError(f"version {state['version']}, not {STATE_VERSION}")
            scale.restore(state["scale"])
            levels.restore(state["levels"])
            history.restore(state["history"])
            conformal.restore(state["conformal"])
            model = parse_model(state["model"], names=FEATURES) if state["model"] else None
        except Exception as error:
            log.warning("stored predictor state is not taken over: %s: %s", type(error).__name__, error)
            return False
        self._scale, self._levels, self._history, self._conformal = scale, levels, history, conformal
        self._model = model
        return True

    def _recall(
        self,
        evidence: Evidence,
        text: str,
        params: Mapping[str, Any] | None,
        prompt_tokens: int,
        prefix_group: object,
    ) -> None:
        """Fill in the keys under which history knows requests like this one, widest first."""
        model = evidence.model
        group, opening = template_keys(model, evidence.route, text, system_prompt(params), prefix_group)
        keys = [("size", 0 if text else size_key(model, prompt_tokens)), ("opening", opening), ("group", group)]
        if text:
            keys += [("elsewhere", any_model_key(text)), ("prompt", prompt_key(model, text))]
        evidence.keys = [key for key in keys if key[1]]

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
            features += self._history.features(evidence.keys)
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
        """Blend the steps of the ladder, correct the ninth decile, cap."""
        constants, keys = evidence.constants, evidence.keys
        boosted = evidence.boosted50 is not None and not self._demoted(evidence.model)
        if boosted and evidence.boosted50 is not None and evidence.boosted90 is not None:
            # The model has seen the templates' history as features; only exact repeats know better.
            base = evidence.boosted50, evidence.boosted90
            keys = [key for key in keys if key[0] in EXACT]
        else:
            base = evidence.log_scale, math.log1p(constants.p90)
        blend = self._history.blend(*base, keys, evidence.log_scale)
        evidence.blend = blend
        theta = self._conformal.theta(evidence.model, evidence.route)
        evidence.p90 = math.expm1(max(blend.q50, blend.q90 + theta))
        if blend.carrier:
            source = _CARRIERS[blend.carrier]
        elif boosted:
            source = Source.BOOSTED
        elif constants.n:
            source = Source.TENANT if constants.narrow else Source.MODEL
        else:
            source = Source.PRIOR
        return _capped(math.expm1(blend.q50), evidence.p90, source, evidence.max_tokens, evidence)

    def _learn(self, evidence: Evidence, prediction: Prediction, tokens: int, finish_reason: str | None) -> None:
        model, tenant, route, bound = evidence.model, evidence.tenant, evidence.route, evidence.max_tokens
        assert evidence.blend is not None
        censored = finish_reason in CUT or (finish_reason is None and bound is not None and 0 < bound <= tokens)
        constant50, constant90 = _cap(evidence.constants.p50, bound), _cap(evidence.constants.p90, bound)
        boosted50 = None if evidence.boosted50 is None else _cap(math.expm1(evidence.boosted50), bound)
        outcome = Outcome(prediction.p50, prediction.p90, constant50, constant90, boosted50, tokens)
        self._calibration.observe(model, outcome)
        if boosted50 is not None:
            _recent(self._contests, model, Contest).observe(boosted50, constant50, tokens)
        # A cut answer shorter than what was expected carries no news; a longer one is at least that.
        if not censored or tokens > evidence.p90:
            self._conformal.observe(model, route, tokens > evidence.p90)
        value = math.log1p(tokens)
        if not censored or value >= evidence.blend.q50:
            self._watch_over(evidence, value - evidence.blend.q50, tokens <= evidence.p90)
            self._history.observe(value, evidence.keys, evidence.blend.said, evidence.log_scale)
        if evidence.uncorrected50 is not None and (not censored or value >= evidence.uncorrected50):
            self._levels.observe(model, tenant, value - evidence.uncorrected50)
        if not censored or tokens >= evidence.constants.p50:
            self._scale.observe(model, tenant, tokens)
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

    def _watch_over(self, evidence: Evidence, residual: float, covered: bool) -> None:
        watch = _recent(self._watch, (evidence.model, evidence.route), Watch)
        watch.coverage.observe(covered)
        if watch.test.observe(residual):
            watch.drifts += 1
            log.info("output lengths of %s on %s have changed", evidence.model, evidence.route or "all routes")
            self._scale.forget(evidence.model, evidence.tenant)
            self._levels.forget(evidence.model, evidence.tenant)
            self._conformal.widen(evidence.model, evidence.route)
            if self._trainer is not None:
                self._trainer.force(evidence.model)

    def _demoted(self, model: str) -> bool:
        contest = self._contests.get(model)
        return contest is not None and contest.lost

    def _scales(self, model: str, tenant: str) -> tuple[float, float]:
        """Return the learned model's scale for (model, tenant), as trained and as corrected since, in tokens."""
        if self._model is None:
            usual = self._scale.constants(model, tenant).p50
            return usual, usual
        base, known = self._model.scale(model, tenant)
        return base, base * math.exp(self._levels.level(model, tenant, known))

    def _job_scales(self, model: str, tenant: str) -> tuple[float, float]:
        return self._scale.constants(model, tenant).p50, self._scales(model, tenant)[1]

    def _failed(self, where: str, error: Exception) -> None:
        self.failures += 1
        if self.failures & (self.failures - 1) == 0:  # the 1st, 2nd, 4th, 8th ... so that the log stays short
            log.warning("%s failed (%d so far): %s: %s", where, self.failures, type(error).__name__, error)


def _recent(table: OrderedDict[K, V], key: K, make: Callable[[], V]) -> V:
    """Return `table[key]`, made if missing; the least recently used leaves beyond WATCHED."""
    value = table.get(key)
    if value is None:
        value = table[key] = make()
        if len(table) > WATCHED:
            table.popitem(last=False)
    else:
        table.move_to_end(key)
    return value


def _cap(tokens: float, max_tokens: int | None) -> float:
    return tokens if max_tokens is None or max_tokens <= 0 or tokens < max_tokens else float(max_tokens)


def _capped(p50: float, p90: float, source: Source, max_tokens: int | None, evidence: Evidence | None) -> Prediction:
    """Make a prediction of finite numbers with 0 <= p50 <= p90 <= max_tokens, whatever came in."""
    if not math.isfinite(p50) or p50 < 0:
        p50, source = PRIOR_P50, Source.PRIOR
    if not math.isfinite(p90) or p90 < p50:
        p90 = max(p50, PRIOR_P90)
    try:
        return Prediction(_cap(p50, max_tokens), _cap(p90, max_tokens), source, evidence)
    except TypeError:  # max_tokens that is no number bounds nothing
        return Prediction(p50, p90, source, evidence)
