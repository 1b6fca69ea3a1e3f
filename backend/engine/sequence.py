"""One choice of one request, from its arrival to its last token."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from backend.engine.request import FinishReason, GenerationRequest
from policies import Handle, Job

__all__ = ["Saved", "Sequence", "SequenceState"]


class SequenceState(Enum):
    """Where a sequence is. WAITING -> PREFILLING -> DECODING -> COMPLETED | ABORTED; preemption leads back."""

    WAITING = "waiting"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    COMPLETED = "completed"
    ABORTED = "aborted"

    @property
    def running(self) -> bool:
        """Whether a sequence in this state holds blocks."""
        return self in (SequenceState.PREFILLING, SequenceState.DECODING)

    @property
    def over(self) -> bool:
        """Whether this state is final."""
        return self in (SequenceState.COMPLETED, SequenceState.ABORTED)


@dataclass(slots=True, eq=False)
class Saved:
    """The KV of a preempted sequence, outside of the cache."""

    num_tokens: int
    num_blocks: int
    content: object | None = None
    """What the runner returned; None until it has, and for good if the step in which it should have failed."""


@dataclass(slots=True, eq=False)
class Sequence:
    """Known tokens, computed tokens, and the blocks that hold the latter.

    The two counts are the only ones there are: a sequence whose computed tokens lag behind its known ones catches
    up, and that is a first prefill chunk, a later one, the rest after a prefix hit, a resume after preemption or
    a decode. Its next token can be sampled in the step that computes its last known token.
    """

    request: GenerationRequest
    job: Job
    tokens: list[int]
    """Prompt and output."""
    max_len: int
    """Known tokens at which it ends with finish_reason "length"."""
    eos_token_ids: frozenset[int] = frozenset()
    """Empty when the request ignores them; `stop_token_ids` are kept apart."""
    stop_token_ids: frozenset[int] = frozenset()
    index: int = 0
    forks: int = 1
    """Choices that still live in this one sequence, from `index` on: n until the prompt is computed, 1 afterwards."""
    seats: int = 0
    """How many of them may start when the prompt is computed; 0 while it waits."""
    key: float = 0.0
    """The policy's virtual deadline: smallest goes first, and loses its blocks last."""
    handle: Handle[Sequence] | None = None
    """Its place in the line it waits in."""
    state: SequenceState = SequenceState.WAITING
    num_computed_tokens: int = 0
    """Tokens whose KV is in `blocks`."""
    blocks: list[int] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    """One for each full block of known tokens, as far as they were needed."""
    num_published: int = 0
    """How many of its first blocks were offered to the prefix cache, or came from it."""
    num_cached_tokens: int = 0
    """Prompt tokens that were not computed because the prefix cache had them."""
    saved: Saved | None = None
    """Only while it waits to be resumed."""
    preemptions: int = 0
    passed_over: int = 0
    """How often a later arrival was admitted while this one did not fit."""
    admitted: bool = False
    """Whether it has ever left the waiting line."""
    started: bool = False
    """Whether a step has ever computed any of its request."""
    num_prompt_tokens: int = 0

    @classmethod
    def of(
        cls, request: GenerationRequest, *, arrival: float, max_len: int, eos_token_ids: frozenset[int]
    ) -> Sequence:
        """Return the sequence that stands for `request` until its prompt is computed.

        `max_len` bounds prompt and output of any sequence, `eos_token_ids` end those that do not ignore them.
        """
        prompt, params = request.prompt_token_ids, request.params
        job = Job(
            id=request.id,
            arrival=arrival,
            class_slack=request.class_slack,
            tenant=request.tenant,
            prompt_tokens=len(prompt),
            predicted_tokens=request.predicted_tokens,
            max_tokens=params.max_tokens,
        )
        return cls(
            request=request,
            job=job,
            tokens=list(prompt),
            max_len=min(len(prompt) + params.max_tokens, max_len),
            eos_token_ids=frozenset() if params.ignore_eos else eos_token_ids,
            stop_token_ids=frozenset(params.stop_token_ids),
            forks=request.n,
        )

    def __post_init__(self) -> None:
        self.num_prompt_tokens = len(self.request.prompt_token_ids)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.tokens) - self.num_prompt_tokens

    def finish_after(self, token: int) -> tuple[FinishReason, int | None] | None:
        """Say whether `token`, just appended, ends the sequence: the reason and the stop token, if it was one.

        min_tokens is not looked at: until so many are there, the sampler gives none of the tokens that end it.
        """
        if token in self.stop_token_ids:
            return FinishReason.STOP, token
        if token in self.eos_token_ids:
            return FinishReason.STOP, None
        if len(self.tokens) >= self.max_len:
            return FinishReason.LENGTH, None
        return None

    def fork(self, index: int) -> Sequence:
        """Return choice `index`, equal to this one so far; sharing the blocks is the caller's business."""
        return Sequence(
            request=self.request,
            job=self.job,
            tokens=list(self.tokens),
            max_len=self.max_len,
            eos_token_ids=self.eos_token_ids,
            stop_token_ids=self.stop_token_ids,
            index=index,
            seats=1,
            key=self.key,
            state=self.state,
            num_computed_tokens=self.num_computed_tokens,
            blocks=list(self.blocks),
            digests=list(self.digests),
            num_published=self.num_published,
            preemptions=self.preemptions,
            admitted=True,
            started=True,
        )

    def rest(self, seats: int) -> Sequence:
        """Return what stands for the choices after the first `seats`, before it waits for the first time."""
        return Sequence(
            request=self.request,
            job=self.job,
            tokens=list(self.tokens),
            max_len=self.max_len,
            eos_token_ids=self.eos_token_ids,
            stop_token_ids=self.stop_token_ids,
            index=self.index + seats,
            forks=self.forks - seats,
            key=self.key,
            digests=list(self.digests),
            started=True,
        )
