"""From logits to tokens, for all rows of a step at once, each as if it were alone.

Order: logit_bias, penalties, masks (min_tokens, grammar), then temperature, top_k, top_p, min_p. Log-probabilities
are of the raw logits, before all of that. Nothing a row does depends on the other rows: its noise is a function of
its own seed and position, and every reduction runs along the row.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from backend.engine.penalties import TokenCounts, apply_penalties, has_penalties
from backend.engine.request import SamplingParams, TokenLogprob

__all__ = ["Draw", "Grammar", "Sampled", "Sampler", "SamplingState", "uniform"]

logger = logging.getLogger(__name__)

CANDIDATES = 512
"""How many of a row's most probable tokens are looked at before sorting all of them."""
COLDEST = 1e-6
"""Lower temperatures than this would be 0 in float32; only 0 itself is greedy."""


class Grammar(Protocol):
    """What the next token may be, as a function of those before it. Whatever it raises ends its own choice only."""

    def allowed(self) -> torch.Tensor | None:
        """Return a bool tensor [V] of the tokens that may come next; None when all may."""
        ...

    def accept(self, token: int) -> bool:
        """Advance over a sampled token. False when it was not allowed."""
        ...


class SamplingState:
    """One choice's parameters and what they need to remember; survives preemption with its sequence."""

    __slots__ = ("_banned", "_length", "_until", "counts", "fault", "grammar", "greedy", "params", "seed")

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        seed: int,
        end_token_ids: Iterable[int] = (),
        grammar: Grammar | None = None,
    ) -> None:
        """Start at the end of `prompt`. `end_token_ids` are masked until min_tokens are generated."""
        self.params = params
        self.seed = seed
        self.greedy = params.temperature == 0.0 or params.top_k == 1
        self.counts = TokenCounts(prompt) if has_penalties(params) else None
        self.grammar = grammar
        self.fault: str | None = None
        """Why the grammar can be followed no further, once it cannot."""
        self._length = len(prompt)
        self._until = len(prompt) + params.min_tokens
        self._banned = sorted(set(end_token_ids)) if params.min_tokens else []

    @property
    def position(self) -> int:
        """Position in the sequence of the token that is sampled next."""
        return self._length

    @property
    def banned(self) -> list[int]:
        """Tokens that must not come next because too few were generated."""
        return self._banned if self._length < self._until else []

    def append(self, token: int) -> None:
        """Take note of a sampled token."""
        self._length += 1
        if self.counts is not None:
            self.counts.append(token)
        if self.grammar is not None:
            try:
                if not self.grammar.accept(token):
                    self.fault = "the grammar gave up on this text: it has no end, or is more than can be followed"
            except Exception as error:
                self._fail(error)

    def mask(self, logits: torch.Tensor) -> None:
        """Leave of a row of logits, in place, what may come next: nothing where the grammar fails."""
        if self.banned:
            logits[self.banned] = -torch.inf
        if self.grammar is not None:
            try:
                allowed = self.grammar.allowed()
                if allowed is not None:
                    logits.masked_fill_(~allowed.to(logits.device), -torch.inf)
            except Exception as error:
                self._fail(error)
                logits.fill_(-torch.inf)

    def _fail(self, error: Exception) -> None:
        logger.error("a grammar failed on a text", exc_info=error)
        self.fault = f"the grammar failed on this text: {type(error).__name__}"


class Sampled(NamedTuple):
    """What one row gave."""

    token: int
    """-1 when the row's logits allow no token at all (NaN, or everything masked)."""
    logprob: TokenLogprob | None


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which rows need what; valid as long as the same states come in the same order."""

    states: list[SamplingState]
    greedy: list[int]
    random: list[int]
    temperature: torch.Tensor
    """[len(random), 1]"""
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    filtered: bool
    seeds: npt.NDArray[np.uint64]
    biased: tuple[torch.Tensor, torch.Tensor] | None
    """Places in the flattened logits, and what is added there."""
    penalised: list[int]
    limited: list[int]
    """Rows with min_tokens or a grammar."""
    logprobs: list[int]


class Sampler:
    """Samples from logits [R, vocab_size] on their device; one device-to-host copy per step in the common case."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._layout: _Layout | None = None

    @torch.inference_mode()
    def launch(self, logits: torch.Tensor, states: list[SamplingState]) -> Draw:
        """Draw one token for each row, without waiting for the device.

        `logits` (float32 [R, V]) may be overwritten, and must stay as they are until the result. The states are not
        advanced: `SamplingState.append` does that.
        """
        layout = self._layout
        if layout is None or layout.states != states or layout.temperature.device != logits.device:
            layout = self._layout = self._make_layout(states, logits.device)
        logits = logits.float().contiguous()
        raw = torch.log_softmax(logits[layout.logprobs], dim=-1) if layout.logprobs else None
        self._modify(logits, layout)
        best, tokens = _best(logits)
        tokens = torch.where(best.isfinite(), tokens, -1)
        if not layout.random:
            return Draw(layout, logits, raw, None, tokens)
        noise = _noise(layout, logits.device)
        every = not layout.greedy
        drawn, sure = _draw(logits if every else logits[layout.random], noise, layout, CANDIDATES)
        if every:
            tokens = torch.where(tokens >= 0, drawn, -1)
        else:
            tokens[layout.random] = torch.where(tokens[layout.random] >= 0, drawn, -1)
        return Draw(layout, logits, raw, noise, tokens if sure is None else torch.cat((tokens, sure.long())))

    def _make_layout(self, states: list[SamplingState], device: torch.device) -> _Layout:
        random = [row for row, state in enumerate(states) if not state.greedy]
        params = [states[row].params for row in random]

        def column(values: list[float], dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.tensor(values, dtype=dtype, device=device).unsqueeze(1)

        places = [
            row * self._vocab_size + token for row, state in enumerate(states) for token in state.params.logit_bias
        ]
        biases = [bias for state in states for bias in state.params.logit_bias.values()]
        return _Layout(
            states=list(states),
            greedy=[row for row, state in enumerate(states) if state.greedy],
            random=random,
            temperature=column([max(p.temperature, COLDEST) for p in params]),
            top_k=column([min(p.top_k, self._vocab_size) for p in params], torch.int64),
            top_p=column([p.top_p for p in params]),
            min_p=column([p.min_p for p in params]),
            filtered=any(p.top_k > 0 or p.top_p < 1 or p.min_p > 0 for p in params),
            seeds=np.asarray([states[row].seed & (2**64 - 1) for row in random], np.uint64),
            biased=(torch.tensor(places, device=device), torch.tensor(biases, dtype=torch.float32, device=device))
            if places
            else None,
            penalised=[row for row, state in enumerate(states) if state.counts is not None],
            limited=[row for row, state in enumerate(states) if state.params.min_tokens or state.grammar],
            logprobs=[row for row, state in enumerate(states) if state.params.logprobs is not None],
        )

    def _modify(self, logits: torch.Tensor, layout: _Layout) -> None:
        """Apply, in place, everything that comes before temperature."""
        states = layout.states
        if layout.biased is not None:
            places, biases = layout.biased
            logits.view(-1)[places] += biases
        if layout.penalised:
            rows = [(row, states[row].params, states[row].counts) for row in layout.penalised]
            apply_penalties(logits, [(row, params, counts) for row, params, counts in rows if counts is not None])
        for row in layout.limited:
            states[row].mask(logits[row])


class Draw:
    """Tokens that were drawn and perhaps not computed yet."""

    __slots__ = ("_layout", "_logits", "_noise", "_packed", "_raw")

    def __init__(
        self,
        layout: _Layout,
        logits: torch.Tensor,
        raw: torch.Tensor | None,
        noise: torch.Tensor | None,
        packed: torch.Tensor,
    ) -> None:
        """Hold what the result needs; `packed` is tokens [R], then whether each of the filtered rows is exact [M]."""
        self._layout = layout
        self._logits = logits
        self._raw = raw
        self._noise = noise
        self._packed = packed

    @torch.inference_mode()
    def result(self) -> list[Sampled]:
        """Wait for the device and return one token for each row: one copy to the host, where none needs a sort."""
        layout, states = self._layout, self._layout.states
        values: list[int] = self._packed.tolist()
        tokens, flags = values[: len(states)], values[len(states) :]
        unsure = [place for place, flag in enumerate(flags) if not flag]
        if unsure and self._noise is not None:
            rows = [layout.random[place] for place in unsure]
            logits = self._logits[rows]
            again, _ = _draw(logits, self._noise[unsure], _only(layout, unsure), logits.shape[1])
            for row, token in zip(rows, again.tolist(), strict=True):
                if tokens[row] >= 0:
                    tokens[row] = token
        if self._raw is None:
            return [Sampled(token, None) for token in tokens]
        rows = layout.logprobs
        reports = _report(self._raw, [tokens[row] for row in rows], [states[row] for row in rows])
        by_row = dict(zip(rows, reports, strict=True))
        return [Sampled(token, by_row.get(row)) for row, token in enumerate(tokens)]


def _best(logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The highest of each row of logits [R, V] and the token it belongs to, both [R]; NaN is above everything."""
    if logits.device.type != "cpu":
        best, tokens = logits.max(dim=-1)
        return best, tokens
    # numpy compares many at once, torch one after another: 0.2 ms instead of 0.5 for 20 rows of 49,152.
    tokens = torch.from_numpy(logits.numpy().argmax(axis=-1))
    return logits.gather(1, tokens.unsqueeze(1)).squeeze(1), tokens


def _noise(layout: _Layout, device: torch.device) -> torch.Tensor:
    """Return [M, 1] numbers in [0, 1), one for each random row."""
    positions = np.asarray([layout.states[row].position for row in layout.random], np.uint64)
    return torch.from_numpy(uniform(layout.seeds, positions)).to(device).unsqueeze(1)


def uniform(seeds: npt.NDArray[np.uint64], positions: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    """Return a number in [0, 1) for each (seed, position), always the same one.

    Two rounds of the SplitMix64 finaliser (Steele, Lea, Flood 2014), keyed by the seed and counting by position.
    """

    def mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))

    gamma = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        bits = mix(mix(seeds + gamma) + (positions + np.uint64(1)) * gamma)
    return (bits >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def _only(layout: _Layout, places: list[int]) -> _Layout:
    """Return the layout of some of the random rows, as far as `_draw` reads it."""
    return _Layout(
        layout.states,
        layout.greedy,
        [layout.random[place] for place in places],
        layout.temperature[places],
        layout.top_k[places],
        layout.top_p[places],
        layout.min_p[places],
        layout.filtered,
        layout.seeds[places],
        None,
        [],
        [],
        [],
    )


def _draw(
    logits: torch.Tensor, noise: torch.Tensor, layout: _Layout, candidates: int
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Draw one token per row by inverting the cumulative distribution in vocabulary order.

    Returns tokens [M] and, when rows are filtered, whether `candidates` were enough to know each row's threshold.
    """
    scaled = (logits - logits.amax(dim=-1, keepdim=True)) / layout.temperature
    probs = torch.softmax(scaled, dim=-1)
    sure = None
    if layout.filtered:
        threshold, sure = _threshold(probs, layout, candidates)
        probs.masked_fill_(probs < threshold, 0.0)
    cumulative = probs.cumsum(dim=-1)
    total = cumulative[:, -1:]
    target = torch.minimum(noise * total, torch.nextafter(total, torch.zeros_like(total)))
    tokens = torch.searchsorted(cumulative, target.contiguous(), right=True)
    return tokens.squeeze(1).clamp_(max=logits.shape[1] - 1), sure


def _threshold(probs: torch.Tensor, layout: _Layout, candidates: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the smallest probability that survives top_k, top_p and min_p, [M, 1], and whether it is exact, [M].

    A threshold, unlike a set of sorted positions, does not depend on how ties were ordered: equal tokens stay or
    go together. top_p counts within what top_k left, min_p is relative to the most probable token.
    """
    size = probs.shape[1]
    values = probs.topk(min(candidates, size), dim=-1).values
    cumulative = values.cumsum(dim=-1)
    width = values.shape[1]
    limited = (layout.top_k > 0) & (layout.top_k < size)
    last = torch.where(limited, layout.top_k, size).clamp(max=width) - 1
    mass = torch.where(limited, cumulative.gather(1, last), 1.0)
    needed = (cumulative < layout.top_p * mass).sum(dim=-1, keepdim=True)
    threshold = values.gather(1, torch.minimum(needed, last))
    nucleus = layout.top_p < 1
    threshold = torch.where(limited | nucleus, threshold, 0.0)
    threshold = torch.maximum(threshold, layout.min_p * values[:, :1])
    if width == size:
        return threshold, torch.ones_like(limited).squeeze(1)
    sure = torch.where(limited, layout.top_k <= width, ~nucleus | (needed < width))
    return threshold, sure.squeeze(1)


def _report(raw: torch.Tensor, tokens: list[int], states: list[SamplingState]) -> list[TokenLogprob | None]:
    """Turn raw log-probabilities [K, V] into one report for each of K rows; None for rows without a token."""
    chosen = torch.tensor(tokens, device=raw.device).clamp(min=0).unsqueeze(1)
    own = raw.gather(1, chosen).squeeze(1).tolist()
    num_top = max(state.params.logprobs or 0 for state in states)
    values, ids = raw.topk(min(num_top, raw.shape[1]), dim=-1)
    tops = [list(zip(*row, strict=True)) for row in zip(ids.tolist(), values.tolist(), strict=True)]
    return [
        TokenLogprob(token, logprob, tuple(top[: state.params.logprobs])) if token >= 0 else None
        for token, logprob, top, state in zip(tokens, own, tops, states, strict=True)
    ]
