"""The facade: how long will this answer be, in tens of microseconds, and never an exception on the request path."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from controller.predictor.calibration import Calibration, Outcome
from controller.predictor.conformal import Conformal
from controller.predictor.history import Blend, History
from controller.predictor.keys import any_model_key, prompt_key, system_prompt, template_keys
from controller.predictor.prediction import Evidence, Prediction, Source
from controller.predictor.scale import PRIOR_P50, PRIOR_P90, Constants, Scale

__all__ = ["LengthPredictor"]

log = logging.getLogger("trimtab.predictor")

CUT = frozenset({"length", "max_tokens", "model_length", "token_limit", "limit"})
"""Finish reasons that say the answer was cut by a bound: the true length is at least what came."""

ABORTED = frozenset({"abort", "aborted", "cancel", "cancelled", "error", "failed", "timeout", "disconnect"})
"""Finish reasons that say nothing about length."""

_CARRIERS = {
    "opening": Source.TEMPLATE,
    "group": Source.TEMPLATE,
    "elsewhere": Source.PROMPT,
    "prompt": Source.PROMPT,
}


class LengthPredictor:
    """Predicts output tokens from keyed history, a learned quantile model and the usual length, in that order.

    All methods are for one thread (the event loop's). `clock` is monotonic seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._scale = Scale()
        self._history = History()
        self._conformal = Conformal()
        self._calibration = Calibration()
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
            return self._predict(model, tenant, route, text, prompt_tokens, max_tokens, params, prefix_group)
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
            self._observe(evidence, prediction, max(0, int(output_tokens)), finish_reason)
        except Exception as error:
            self._failed("observe", error)

    def calibration(self) -> dict[str, Any]:
        """Return the live report: per model and over all, tau, pinball ratios, coverage and errors."""
        models = {name: self._calibration.report(name) for name in self._calibration.models()}
        return {"all": self._calibration.report(), "models": models, "failures": self.failures}

    def _predict(
        self,
        model: str,
        tenant: str,
        route: str,
        text: str,
        prompt_tokens: int,
        max_tokens: int | None,
        params: Mapping[str, Any] | None,
        prefix_group: object,
    ) -> Prediction:
        constants = self._scale.constants(model, tenant)
        group, opening = template_keys(model, route, text, system_prompt(params), prefix_group)
        levels = [("opening", opening), ("group", group)]
        if text:
            levels += [("elsewhere", any_model_key(text)), ("prompt", prompt_key(model, text))]
        levels = [level for level in levels if level[1]]
        scale = math.log1p(constants.p50)
        blend = self._history.blend(scale, math.log1p(constants.p90), levels, scale)
        theta = self._conformal.theta(model, route)
        p90 = math.expm1(max(blend.q50, blend.q90 + theta))
        evidence = Evidence(
            model=model,
            tenant=tenant,
            route=route,
            max_tokens=max_tokens,
            at=self._clock(),
            scale=constants.p50,
            constant50=constants.p50,
            constant90=constants.p90,
            q50=blend.q50,
            q90=blend.q90,
            p90=p90,
            levels=levels,
            level_q50=blend.said,
        )
        return _capped(math.expm1(blend.q50), p90, _source(blend, constants), max_tokens, evidence)

    def _observe(self, evidence: Evidence, prediction: Prediction, tokens: int, finish_reason: str | None) -> None:
        bound = evidence.max_tokens
        censored = finish_reason in CUT or (finish_reason is None and bound is not None and tokens >= bound)
        missed = tokens > evidence.p90
        if missed or not censored:
            self._conformal.observe(evidence.model, evidence.route, missed)
        outcome = Outcome(
            prediction.p50,
            prediction.p90,
            _cap(evidence.constant50, bound),
            _cap(evidence.constant90, bound),
            None,
            tokens,
        )
        self._calibration.observe(evidence.model, outcome)
        # A cut answer shorter than what was expected carries no news; a longer one is at least that.
        if not censored or tokens >= evidence.constant50:
            self._scale.observe(evidence.model, evidence.tenant, tokens)
        value = math.log1p(tokens)
        if not censored or value >= evidence.q50:
            self._history.observe(value, evidence.levels, evidence.level_q50, math.log1p(evidence.scale))

    def _failed(self, where: str, error: Exception) -> None:
        self.failures += 1
        if self.failures & (self.failures - 1) == 0:  # the 1st, 2nd, 4th, 8th ... so that the log stays short
            log.warning("%s failed (%d so far): %s: %s", where, self.failures, type(error).__name__, error)


def _source(blend: Blend, constants: Constants) -> Source:
    if blend.carrier:
        return _CARRIERS[blend.carrier]
    if constants.n == 0:
        return Source.PRIOR
    return Source.TENANT if constants.narrow else Source.MODEL


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
