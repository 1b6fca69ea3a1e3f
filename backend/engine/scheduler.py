"""Who computes what in the next step.

There is one mechanism: a sequence has known tokens and computed tokens, and a step lets it catch up. Decodes come
first (one token each), prefill chunks share what is left of the token budget, newcomers are admitted while blocks,
seats and budget last.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from backend.engine.batch import Batch, Plan
from backend.engine.blocks import BlockPool, IntegrityError
from backend.engine.line import WaitingLine
from backend.engine.options import Admission
from backend.engine.sequence import Saved, Sequence, SequenceState
from policies import Policy

__all__ = ["Limits", "Scheduler"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a step and the set of running sequences may not exceed; see EngineOptions for the meanings."""

    max_num_seqs: int
    max_num_batched_tokens: int
    prefill_chunk: int = 512
    mix: bool = True
    watermark_blocks: int = 0
    max_preemptions: int = 4
    admission: Admission = "auto"
    offload_blocks: int = 0


class Scheduler:
    """Owns every sequence that is not over, and the only hand that moves their blocks.

    Use: `add`, then again and again `schedule`, run the plan, `commit` it, append what was sampled. Between
    `schedule` and `commit` nothing may be added or removed.

    The policy decides who is admitted first and, among the running, who is preempted last. A waiting sequence
    never preempts a running one: only growth of the running does.
    """

    def __init__(self, pool: BlockPool, limits: Limits, policy: Policy) -> None:
        self.pool = pool
        self.limits = limits
        self.policy = policy
        max_skip: int = getattr(policy, "max_skip", 0)
        self._admission = limits.admission
        if self._admission == "auto":
            self._admission = "predicted" if max_skip else "optimistic"
        self._waiting = WaitingLine(max_skip)
        self._prefilling: dict[Sequence, None] = {}
        self._decoding: dict[Sequence, None] = {}
        self._seats_taken = 0
        self._offloaded = 0
        self._prefilled_last = False
        self.preemptions = 0
        self.prefix_queries = 0
        """Prompt tokens looked up in the prefix cache, once per request."""
        self.prefix_hits = 0

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def num_waiting(self) -> int:
        """Newcomers and preempted sequences."""
        return len(self._waiting)

    @property
    def head(self) -> Sequence | None:
        """The sequence that is admitted next, or None when nothing waits."""
        return self._waiting.head

    def __iter__(self) -> chain[Sequence]:
        return chain(self._waiting, self._prefilling, self._decoding)

    def add(self, sequence: Sequence) -> None:
        """Queue a newcomer. Its `max_len` must fit into the pool."""
        sequence.key = self.policy.key(sequence.job)
        self._waiting.push(sequence)

    def remove(self, sequence: Sequence, state: SequenceState) -> None:
        """End `sequence` in `state` (COMPLETED or ABORTED) and give its blocks back. Idempotent, legal always."""
        if not sequence.state.over:
            self._leave(sequence)
            self._drop_saved(sequence)
            sequence.state = state

    def schedule(self) -> Plan | None:
        """Return the next step, or None when no sequence can make progress."""
        batch = Batch(self.pool)
        if self.limits.mix:
            preempted = self._add_decodes(batch)
            self._add_prefills(batch, admit=not preempted)
        elif not (self._prefilled_last and self._decoding):
            self._add_prefills(batch, admit=True)
        if not batch.rows and not self.limits.mix:
            self._add_decodes(batch)
            if not batch.rows:  # the last decode gave its blocks up to sequences that are still prefilling
                self._add_prefills(batch, admit=False)
        if not batch.rows:
            return None
        plan = batch.plan()
        self._prefilled_last = plan.num_decodes == 0
        return plan

    def commit(self, plan: Plan) -> None:
        """Take note that `plan` was executed: its tokens are computed, its full blocks can be found by others."""
        size = self.pool.block_size
        rows, num_decodes = plan.rows, plan.num_decodes
        for row in range(num_decodes):
            sequence = rows[row]
            computed = sequence.num_computed_tokens + 1
            sequence.num_computed_tokens = computed
            if computed % size == 0:
                self._publish(sequence)
        for row in range(num_decodes, len(rows)):
            sequence = rows[row]
            sequence.num_computed_tokens += plan.step.query_lens[row]
            self._publish(sequence)
            if sequence.num_computed_tokens == len(sequence.tokens):
                del self._prefilling[sequence]
                self._decoding[sequence] = None
                sequence.state = SequenceState.DECODING

    def fork(self, sequence: Sequence) -> tuple[list[Sequence], Sequence | None]:
        """Split a sequence whose prompt is computed into as many choices as it has seats, itself first.

        They share all blocks. The second is what stands for the choices without a seat, if there are any: it waits
        as a newcomer under the same key, so that no later arrival takes a seat before it that could not before.
        """
        seats = sequence.seats
        rest = sequence.rest(seats) if seats < sequence.forks else None
        if rest is not None:
            self._waiting.push(rest)
        children = [sequence.fork(sequence.index + offset) for offset in range(1, seats)]
        for child in children:
            self.pool.share(child.blocks)
            self._decoding[child] = None
        sequence.forks = sequence.seats = 1
        return [sequence, *children], rest

    def expected_blocks(self, sequence: Sequence, choices: int) -> int:
        """Blocks that `choices` of `sequence` hold at the end, as far as the admission mode looks ahead.

        The prompt's full blocks are shared between the choices; everything after them is each choice's own.
        """
        known = len(sequence.tokens)
        final = known
        if self._admission != "optimistic":
            final = sequence.max_len - 1  # nobody reads the last token's KV
            if self._admission == "predicted":
                final = min(final, sequence.num_prompt_tokens + int(sequence.job.predicted_tokens or 0))
            final = max(known, final)
        size = self.pool.block_size
        shared = sequence.num_prompt_tokens // size if choices > 1 else 0
        return shared + (-(-final // size) - shared) * choices

    def check_integrity(self) -> None:
        """Raise IntegrityError unless blocks, seats and published content are exactly as they should be."""
        running = [*self._prefilling, *self._decoding]
        self.pool.check_integrity(sequence.blocks for sequence in running)
        if any(sequence.blocks or sequence.num_computed_tokens for sequence in self._waiting):
            raise IntegrityError("a waiting sequence holds blocks")
        if self._seats_taken != sum(sequence.seats for sequence in running):
            raise IntegrityError(f"{self._seats_taken} seats are taken by {len(running)} sequences")
        if self._offloaded != sum(s.saved.num_blocks for s in self._waiting if s.saved is not None):
            raise IntegrityError(f"{self._offloaded} blocks are saved, and not for those who wait")
        size = self.pool.block_size
        for sequence in running:
            full = sequence.num_computed_tokens // size
            if any(self.pool.is_published(block) for block in sequence.blocks[full:]):
                raise IntegrityError(f"{sequence.request.id} holds a published block that is not computed")
            if len(sequence.blocks) * size < sequence.num_computed_tokens:
                raise IntegrityError(f"{sequence.request.id} has computed more tokens than it has slots for")

    # -- decodes ---------------------------------------------------------------------------------------------

    def _add_decodes(self, batch: Batch) -> bool:
        """Add every decoding sequence; returns whether sequences had to be preempted to make room."""
        preempted = False
        while len(self._decoding) > self.pool.available and self._growth() > self.pool.available:
            self._preempt(self._victim(), batch)
            preempted = True
        batch.add_decodes(self._decoding)
        return preempted

    def _growth(self) -> int:
        """Blocks that the decoding sequences need for their next tokens.

        Of those that share a last block, all but one need a copy: the last to write has it for itself.
        """
        size, refs = self.pool.block_size, self.pool.refs
        fresh, shared = 0, set()
        for sequence in self._decoding:
            last = sequence.blocks[-1]
            if sequence.num_computed_tokens == len(sequence.blocks) * size:
                fresh += 1
            elif refs[last] > 1:
                shared.add(last)
        return fresh + sum(refs[block] - 1 for block in shared)

    def _victim(self) -> Sequence:
        """Return the running sequence that is last by policy, sparing those that were preempted too often."""
        running = [*self._decoding, *self._prefilling]
        limit = self.limits.max_preemptions
        candidates = [sequence for sequence in running if sequence.preemptions < limit] or running
        victim = candidates[0]
        for sequence in candidates:
            if sequence.key >= victim.key:
                victim = sequence
        return victim

    def _preempt(self, sequence: Sequence, batch: Batch) -> None:
        """Take a sequence's blocks away; its tokens stay, and are computed again when it resumes.

        While the offload budget lasts, what was computed is saved first, and put back instead.
        """
        count = -(-sequence.num_computed_tokens // self.pool.block_size)
        if 0 < count <= self.limits.offload_blocks - self._offloaded:
            sequence.saved = Saved(sequence.num_computed_tokens, count)
            batch.saves.append((sequence.saved, sequence.blocks[:count]))
            self._offloaded += count
        self._leave(sequence)
        sequence.state = SequenceState.WAITING
        sequence.num_computed_tokens = 0
        sequence.preemptions += 1
        self.preemptions += 1
        self._waiting.push(sequence)

    def _leave(self, sequence: Sequence) -> None:
        """Take `sequence` from wherever it is and release its blocks: the only place where that happens."""
        if sequence.state is SequenceState.WAITING:
            self._waiting.remove(sequence)
        else:
            del (self._decoding if sequence.state is SequenceState.DECODING else self._prefilling)[sequence]
            self._seats_taken -= sequence.seats
            sequence.seats = 0
        self.pool.release(sequence.blocks)

    def _drop_saved(self, sequence: Sequence) -> None:
        if sequence.saved is not None:
            self._offloaded -= sequence.saved.num_blocks
            sequence.saved = None

    # -- prefills --------------------------------------------------------------------------------------------

    def _add_prefills(self, batch: Batch, *, admit: bool) -> None:
        budget = self.limits.max_num_batched_tokens - batch.num_tokens
        for sequence in self._prefilling:
            if budget <= 0:
                return
            self._adopt(sequence)
            budget -= self._add_chunk(batch, sequence, budget)
        if not admit or not self._waiting or budget <= 0:
            return
        promised = self._promised()
        while budget > 0:
            admitted = self._admit_next(promised, batch)
            if admitted is None:
                return
            promised += self.expected_blocks(admitted, admitted.seats) - len(admitted.blocks)
            budget -= self._add_chunk(batch, admitted, budget)

    def _add_chunk(self, batch: Batch, sequence: Sequence, budget: int) -> int:
        left = len(sequence.tokens) - sequence.num_computed_tokens
        count = min(left, budget, self.limits.prefill_chunk)
        batch.add_chunk(sequence, count)
        return count

    def _admit_next(self, promised: int, batch: Batch) -> Sequence | None:
        """Admit the first waiting sequence that fits, or none. `promised` blocks are spoken for."""
        passed: list[Sequence] = []
        for sequence in self._waiting.candidates():
            if self._seats_taken < self.limits.max_num_seqs and self._admit(sequence, promised):
                self._restore(sequence, batch)
                for other in passed:
                    other.passed_over += 1
                return sequence
            passed.append(sequence)
        return None

    def _admit(self, sequence: Sequence, promised: int) -> bool:
        """Give `sequence` blocks for all its known tokens if they fit; what the cache has is not computed.

        The last known token is always computed, since its logits are what the step is for. All known tokens must
        fit at once: a prefill that got half its blocks could wait for the other half while blocking everyone. Its
        choices need not: it gets seats for as many as there is room for, one at least.
        """
        pool = self.pool
        hits: list[int] = []
        if pool.prefix_cache:
            digests = pool.digests(sequence.digests, sequence.tokens, sequence.request.cache_salt)
            hits = pool.match(digests[: (len(sequence.tokens) - 1) // pool.block_size])
        fresh = -(-len(sequence.tokens) // pool.block_size) - len(hits)
        room = pool.available - sum(pool.is_cached(block) for block in hits)
        reserve = 0
        if self.num_running:
            room -= promised
            growth = self.expected_blocks(sequence, 1) - len(hits) - fresh
            reserve = max(self.limits.watermark_blocks, growth)
        if fresh + reserve > room:
            return False
        seats = self._seats_for(sequence, len(hits) + room)
        self._waiting.remove(sequence)
        pool.share(hits)
        sequence.blocks = hits + [pool.allocate() for _ in range(fresh)]
        sequence.num_computed_tokens = len(hits) * pool.block_size
        sequence.num_published = len(hits)
        sequence.state = SequenceState.PREFILLING
        if not sequence.admitted:
            sequence.admitted = True
            if sequence.index == 0:  # once per request
                sequence.num_cached_tokens = sequence.num_computed_tokens
                if pool.prefix_cache:
                    self.prefix_queries += sequence.num_prompt_tokens
                    self.prefix_hits += sequence.num_cached_tokens
                self.policy.dispatched(sequence.job)
        sequence.seats = seats
        self._seats_taken += seats
        self._prefilling[sequence] = None
        return True

    def _seats_for(self, sequence: Sequence, blocks: int) -> int:
        """Return how many choices of `sequence` can start: as the free seats and `blocks` allow, one at least."""
        seats = min(sequence.forks, self.limits.max_num_seqs - self._seats_taken)
        if seats > 1:
            one, two = self.expected_blocks(sequence, 1), self.expected_blocks(sequence, 2)
            if two > one:
                seats = min(seats, max(1, 1 + (blocks - one) // (two - one)))
        return seats

    def _restore(self, sequence: Sequence, batch: Batch) -> None:
        """Put saved content back into the blocks of a sequence that was just admitted, where the cache has less."""
        saved = sequence.saved
        if saved is not None and saved.content is not None and saved.num_tokens > sequence.num_computed_tokens:
            first = sequence.num_computed_tokens // self.pool.block_size
            batch.loads.append((saved, first, sequence.blocks[first : saved.num_blocks]))
            sequence.num_computed_tokens = saved.num_tokens
        self._drop_saved(sequence)

    def _adopt(self, sequence: Sequence) -> None:
        """Take over blocks that somebody else has computed since `sequence` was admitted.

        Requests with one long beginning often arrive together: all but the first then wait for budget, and find
        that the first has done their work.
        """
        pool, size = self.pool, self.pool.block_size
        while sequence.num_computed_tokens % size == 0:
            index = sequence.num_computed_tokens // size
            if index >= (len(sequence.tokens) - 1) // size or index >= len(sequence.digests):
                return
            found = pool.match(sequence.digests[index : index + 1])
            if not found:
                return
            pool.share(found)
            pool.release([sequence.blocks[index]])
            sequence.blocks[index] = found[0]
            sequence.num_computed_tokens += size
            sequence.num_published = index + 1
            if sequence.index == 0 and sequence.preemptions == 0:
                sequence.num_cached_tokens += size
                self.prefix_hits += size

    def _promised(self) -> int:
        """Blocks that the running sequences are still expected to take; 0 when admission does not look ahead."""
        if self._admission == "optimistic":
            return 0
        return sum(
            max(0, self.expected_blocks(sequence, sequence.seats) - len(sequence.blocks))
            for sequence in chain(self._prefilling, self._decoding)
        )

    def _publish(self, sequence: Sequence) -> None:
        """Offer the blocks that became full and computed to the prefix cache."""
        pool = self.pool
        full = sequence.num_computed_tokens // pool.block_size
        if not pool.prefix_cache or full <= sequence.num_published:
            return
        digests = pool.digests(sequence.digests, sequence.tokens, sequence.request.cache_salt)
        for index in range(sequence.num_published, full):
            pool.publish(sequence.blocks[index], digests[index])
        sequence.num_published = full
