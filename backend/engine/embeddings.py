"""Embedding requests beside generation: a slice at a time, so that running streams wait for one slice at most."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Literal

from backend.engine.step import EmbeddingRunner, Runner

__all__ = ["EmbeddingQueue", "Finished"]

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class _Job:
    token_ids: list[list[int]]
    pooling: Literal["mean", "last"]
    vectors: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Finished:
    """A job that is over: one vector per text, or what went wrong."""

    job: int
    vectors: list[list[float]] | None
    error: str | None = None


class EmbeddingQueue:
    """Jobs in the order of arrival, served in slices of at most `budget` tokens (a longer text is a slice itself)."""

    def __init__(self, runner: Runner, budget: int) -> None:
        self._runner = runner
        self._budget = budget
        self._jobs: dict[int, _Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: int, token_ids: list[list[int]], pooling: Literal["mean", "last"]) -> None:
        """Queue a job."""
        self._jobs[job] = _Job(token_ids, pooling)

    def drop(self, job: int) -> None:
        """Forget a job; nothing happens when it is over or unknown."""
        self._jobs.pop(job, None)

    def step(self) -> Finished | None:
        """Compute one slice of the first job; returns the job when that was its last."""
        if not self._jobs:
            return None
        number, job = next(iter(self._jobs.items()))
        runner = self._runner
        if not isinstance(runner, EmbeddingRunner):
            del self._jobs[number]
            return Finished(number, None, "this model gives no embeddings")
        texts = job.token_ids[len(job.vectors) :]
        try:
            if texts:
                job.vectors += runner.embed(texts[: self._slice(texts)], job.pooling).tolist()
        except Exception as error:
            logger.exception("embedding failed")
            del self._jobs[number]
            return Finished(number, None, f"embedding failed: {type(error).__name__}: {error}")
        if len(job.vectors) < len(job.token_ids):
            return None
        del self._jobs[number]
        return Finished(number, job.vectors)

    def _slice(self, texts: list[list[int]]) -> int:
        count, tokens = 1, len(texts[0])
        while count < len(texts) and tokens + len(texts[count]) <= self._budget:
            tokens += len(texts[count])
            count += 1
        return count
