"""Token counts of one sequence, and the penalties they cause, for all rows of a batch at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import torch

from backend.engine.request import SamplingParams

__all__ = ["TokenCounts", "apply_penalties", "has_penalties"]


def has_penalties(params: SamplingParams) -> bool:
    """Whether `params` make any token less likely for having occurred."""
    return bool(params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1.0)


class TokenCounts:
    """The distinct tokens of prompt and output, and how often each occurs in the output.

    Kept as growing arrays, so that a step costs what the batch's distinct tokens cost and nothing per vocabulary
    entry; there is no padding that could be penalised by mistake.
    """

    __slots__ = ("_counts", "_ids", "_places", "_used")

    def __init__(self, prompt: Iterable[int]) -> None:
        self._places = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        self._used = len(self._places)
        self._ids = np.fromiter(self._places, np.int64, self._used)
        self._counts = np.zeros(self._used, np.float32)

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """[U] distinct token ids."""
        return self._ids[: self._used]

    @property
    def counts(self) -> npt.NDArray[np.float32]:
        """[U] how often each of `ids` occurs in the output; 0 for those that only the prompt has."""
        return self._counts[: self._used]

    def append(self, token: int) -> None:
        """Count one output token."""
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = self._used
            if place == len(self._ids):
                room = np.zeros(max(16, place), np.int64)
                self._ids = np.concatenate((self._ids, room))
                self._counts = np.concatenate((self._counts, room.astype(np.float32)))
            self._ids[place] = token
            self._used += 1
        self._counts[place] += 1


def apply_penalties(logits: torch.Tensor, rows: Sequence[tuple[int, SamplingParams, TokenCounts]]) -> None:
    """Penalise, in place, the `rows` of `logits` ([R, V], contiguous): (row, parameters, counts) each.

    The repetition penalty (Keskar et al. 2019) divides positive and multiplies negative logits of every distinct
    token of prompt and output, once however often it occurs. Presence and frequency penalties are OpenAI's: over
    the output only, `presence * [count > 0] + frequency * count` is subtracted.
    """
    sizes = [len(counts.ids) for _, _, counts in rows]
    if not sum(sizes):
        return
    parameters = [(p.repetition_penalty, p.presence_penalty, p.frequency_penalty) for _, p, _ in rows]
    spread = np.repeat(np.asarray(parameters, np.float32), sizes, axis=0)
    starts = np.repeat(np.asarray([row * logits.shape[1] for row, _, _ in rows], np.int64), sizes)
    places = torch.from_numpy(starts + np.concatenate([counts.ids for _, _, counts in rows])).to(logits.device)
    counts = torch.from_numpy(np.concatenate([counts.counts for _, _, counts in rows])).to(logits.device)
    repetition, presence, frequency = torch.from_numpy(spread).to(logits.device).unbind(1)
    flat = logits.view(-1)
    values = flat[places]
    values = torch.where(values > 0, values / repetition, values * repetition)
    flat[places] = values - presence * (counts > 0) - frequency * counts
