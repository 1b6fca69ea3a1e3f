"""What chat and completions requests have in common besides sampling: model, n, streaming, hints."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from backend.api.constraints import Constraint
from backend.api.errors import InvalidRequest
from backend.api.fields import boolean, integer, mapping, read_fields, refuse_fields, string
from backend.api.service import Service
from backend.engine.request import GenerationRequest, SamplingParams

__all__ = ["Envelope", "read_envelope"]

_DECIMAL: Final = re.compile(r"[ \t]*[0-9]{1,15}(?:\.[0-9]{1,30})?[ \t]*")
"""A number as people write it. Python's own reading takes underscores, exponents, names and other scripts' digits."""

REFUSED: Final[Mapping[str, tuple[tuple[Any, ...], str]]] = {
    "use_beam_search": ((False,), "the engine samples, it does not search."),
    "prompt_logprobs": ((0, False), "log-probabilities are computed for output tokens only."),
    "logits_processors": (([],), "code is not taken from requests."),
    "allowed_token_ids": ((), "use 'logit_bias'."),
    "bad_words": (([],), "use 'logit_bias'."),
    "truncate_prompt_tokens": ((), "shorten the prompt before sending it; '/tokenize' counts its tokens."),
    "length_penalty": ((1, 1.0), "it belongs to beam search."),
}


@dataclass(frozen=True, slots=True)
class Envelope:
    """A checked request minus its prompt and sampling."""

    model: str
    n: int
    stream: bool
    include_usage: bool
    cache_salt: str
    tenant: str
    class_slack_s: float
    predicted_tokens: float | None

    def request(
        self, request_id: str, ids: list[int], params: SamplingParams, constraint: Constraint | None
    ) -> GenerationRequest:
        """Return the engine request for one prompt."""
        grammar, param = constraint if constraint is not None else (None, None)
        return GenerationRequest(
            id=request_id,
            prompt_token_ids=ids,
            params=params,
            n=self.n,
            class_slack=self.class_slack_s,
            tenant=self.tenant,
            predicted_tokens=self.predicted_tokens,
            cache_salt=self.cache_salt,
            grammar=grammar,
            grammar_param=param,
        )


def _header_number(headers: Mapping[str, str], name: str, high: float) -> float | None:
    """Read a non-negative number from a header, bounded by `high`."""
    text = headers.get(name)
    if text is None:
        return None
    value = float(text) if _DECIMAL.fullmatch(text) else math.nan
    if not 0 <= value <= high:
        raise InvalidRequest(
            f"The header '{name}' must be a number between 0 and {high:g}, but it is {text[:64]!r}.",
            param=name,
            code="invalid_header",
        )
    return value


def read_envelope(service: Service, body: Mapping[str, Any], headers: Mapping[str, str]) -> Envelope:
    """Read the parameters that both generating endpoints share.

    Headers: `x-trimtab-class-slack-ms` (how long this request may wait behind the most urgent ones),
    `x-trimtab-predicted-tokens` (expected output length), `x-trimtab-tenant`.

    Raises:
        ModelNotFound: another model is asked for.
        InvalidRequest: a parameter or header is wrong, named.
    """
    model = service.check_model(body)
    refuse_fields(body, REFUSED)
    table = (
        boolean("stream"),
        integer("n", 1, service.limits.max_n, 1),
        mapping("stream_options"),
        string("cache_salt", "", max_length=256),
        string("user", "", max_length=1024),
    )
    values = read_fields(body, table)
    options = values["stream_options"]
    if options is not None and not values["stream"]:
        raise InvalidRequest(
            "'stream_options' is only allowed when 'stream' is true.", param="stream_options", code="invalid_value"
        )
    slack_ms = _header_number(headers, "x-trimtab-class-slack-ms", 86_400_000)
    return Envelope(
        model=model,
        n=values["n"],
        stream=values["stream"],
        include_usage=boolean("include_usage").read(options or {}),
        cache_salt=values["cache_salt"],
        tenant=headers.get("x-trimtab-tenant", "")[:256],
        class_slack_s=(slack_ms or 0.0) / 1000,
        predicted_tokens=_header_number(headers, "x-trimtab-predicted-tokens", 1e9),
    )
