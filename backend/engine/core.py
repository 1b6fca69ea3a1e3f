"""The engine without its process: requests in, one step at a time, deltas out.

Synchronous and, but for the runner, pure: the clock and the randomness are passed in. Every accepted request ends
with exactly one finish per choice, whatever happens.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable
from concurrent.futures import Future

from backend.engine.account import Account
from backend.engine.batch import Plan
from backend.engine.blocks import BlockPool, IntegrityError
from backend.engine.choice import Output
from backend.engine.detokenizer import Decoder
from backend.engine.errors import EngineError, EngineOverloaded, RequestRefused
from backend.engine.executor import Executor, StepInFlight
from backend.engine.held import GrammarFactory, Held, HeldRequests, MakeGrammar
from backend.engine.open_requests import OpenRequests
from backend.engine.options import EngineInfo, EngineOptions
from backend.engine.request import Delta, FinishReason, GenerationRequest, Usage
from backend.engine.sampler import Sampled
from backend.engine.scheduler import Limits, Scheduler
from backend.engine.sequence import Sequence, SequenceState
from backend.engine.stats import EngineStats
from backend.engine.step import OffloadRunner, Runner
from backend.engine.validation import check_request
from policies import Policy

__all__ = ["EngineCore", "EngineFault"]

logger = logging.getLogger(__name__)

MAX_FAILURES = 3


class EngineFault(EngineError):
    """Step after step failed: the engine cannot go on."""


class EngineCore:
    """Continuous batching over a runner.

    Use: `add` and `abort` whenever no step is under way, `step` while `has_work`, all from one thread. `step` is
    `launch`, `collect` and `drain` in one; apart, the first returns while an asynchronous runner is still at work,
    and the texts of the step before can be made and sent meanwhile.
    """

    def __init__(
        self,
        runner: Runner,
        decoder: Decoder,
        options: EngineOptions,
        policy: Policy,
        *,
        eos_token_ids: Iterable[int],
        max_model_len: int,
        clock: Callable[[], float],
        seeds: random.Random,
        root: bytes,
        grammars: GrammarFactory | None = None,
        overlap: bool = False,
    ) -> None:
        """Serve `runner`.

        `eos_token_ids` is the union of all sources; `max_model_len` the model's own limit; `clock` is monotonic
        seconds; `seeds` gives a seed to requests without one; `root` keys the prefix cache (16 to 64 random bytes);
        `grammars` compiles what constrains a text; `overlap` says that the runner returns while its device is still
        at work.
        """
        if options.max_num_batched_tokens is None or options.prefill_chunk is None:
            raise ValueError("the options must be resolved for a device first")
        if options.offload_blocks and not isinstance(runner, OffloadRunner):
            raise EngineError("offload_blocks must be 0: this runner keeps nothing outside of the KV cache")
        self._runner = runner
        self._options = options
        self._eos = frozenset(eos_token_ids)
        self._clock = clock
        self._seeds = seeds
        self._grammars = grammars
        self.overlap = overlap
        """Whether there is something to do between `launch` and `collect`."""
        self._pool = BlockPool(runner.num_blocks, runner.block_size, root=root, prefix_cache=options.prefix_cache)
        limits = Limits(
            max_num_seqs=options.max_num_seqs,
            max_num_batched_tokens=options.max_num_batched_tokens,
            prefill_chunk=options.prefill_chunk,
            mix=options.mix,
            watermark_blocks=int(options.watermark * runner.num_blocks),
            max_preemptions=options.max_preemptions,
            admission=options.admission,
            offload_blocks=options.offload_blocks,
        )
        self.scheduler = Scheduler(self._pool, limits, policy)
        capacity = runner.num_blocks * runner.block_size
        self._max_len = min(max_model_len, options.max_model_len or max_model_len, capacity)
        self._open = OpenRequests(decoder, runner.vocab_size)
        self._held = HeldRequests()
        """Accepted, and not open until their grammar is compiled."""
        self._executor = Executor(runner, self.scheduler, self._open)
        self._outbox: list[Output | Delta] = []
        self._flight: StepInFlight | None = None
        self._account = Account()

    @property
    def has_work(self) -> bool:
        """Whether a request is open, or one that was held no longer needs to be, so that `step` should be called."""
        return bool(self._open) or self._held.any_ready

    @property
    def info(self) -> EngineInfo:
        """What this engine is; the device, the type and the load time are for whoever built it to add."""
        return EngineInfo(
            vocab_size=self._runner.vocab_size,
            max_model_len=self._max_len,
            num_blocks=self._runner.num_blocks,
            block_size=self._runner.block_size,
            max_num_seqs=self._options.max_num_seqs,
            eos_token_ids=self._eos,
            policy=self.scheduler.policy.name,
        )

    @property
    def runner(self) -> Runner:
        """What executes the steps."""
        return self._runner

    @property
    def step_budget(self) -> int:
        """Most tokens that one step computes."""
        return self.scheduler.limits.max_num_batched_tokens

    @property
    def num_waiting(self) -> int:
        """Sequences in the waiting line, and requests that are held."""
        return self.scheduler.num_waiting + len(self._held)

    # -- requests --------------------------------------------------------------------------------------------

    def add(self, request: GenerationRequest, ready: Callable[[], None] | None = None) -> None:
        """Accept `request`. Raises RequestRefused when it can never be served, EngineOverloaded when not now.

        One with a grammar is held until that is compiled; the first step afterwards takes it in, or ends it where the
        grammar cannot be enforced. `ready` is called when it is compiled, in the thread that did it.
        """
        self._account.received += 1
        if request.id in self._open or request.id in self._held:
            raise RequestRefused(f"a request with the id {request.id!r} is already running")
        check_request(
            request,
            vocab_size=self._runner.vocab_size,
            max_num_seqs=self._options.max_num_seqs,
            max_len=self._max_len,
            capacity=self._pool.num_blocks * self._pool.block_size,
        )
        if self.num_waiting >= self._options.max_waiting:
            raise EngineOverloaded(f"{self.num_waiting} requests are waiting already")
        params = request.params
        sequence = Sequence.of(request, arrival=self._clock(), max_len=self._max_len, eos_token_ids=self._eos)
        self._check_blocks(sequence)
        grammar = self._compile(request)
        seed = params.seed if params.seed is not None else self._seeds.getrandbits(63)
        if grammar is None:
            self._enter(sequence, seed, None)
            return
        self._held.hold(Held(sequence, seed, grammar), ready)

    def abort(self, request_id: str) -> list[Delta]:
        """End a request in whatever state it is, and return what there is to tell, its last deltas included.

        Unknown and finished ids are fine.
        """
        self._end(request_id, FinishReason.ABORT, None)
        return self.drain()

    def fail_all(self, error: str) -> list[Delta]:
        """End every open request with an error."""
        self._flight = None
        for request_id in [*self._open, *self._held]:
            self._end(request_id, FinishReason.ERROR, error)
        return self.drain()

    def _compile(self, request: GenerationRequest) -> Future[MakeGrammar] | None:
        if request.grammar is None:
            return None
        if self._grammars is None:
            raise RequestRefused("this engine was built without grammars", request.grammar_param)
        return self._grammars(request.grammar)

    def _enter(self, sequence: Sequence, seed: int, make_grammar: MakeGrammar | None) -> None:
        self._open.enter(sequence, seed, make_grammar)
        self.scheduler.add(sequence)

    def _release_held(self) -> None:
        """Let in, in the order of arrival, those whose grammar is compiled; end those whose grammar failed."""
        for held in self._held.ready():
            request = held.sequence.request
            error = held.grammar.exception()
            if error is None:
                self._held.take(request.id)
                self._enter(held.sequence, held.seed, held.grammar.result())
            else:
                self._end(request.id, FinishReason.ERROR, str(error), request.grammar_param)

    def _check_blocks(self, sequence: Sequence) -> None:
        needed = self.scheduler.expected_blocks(sequence, sequence.forks)
        if self._options.admission == "guaranteed" and needed > self._pool.num_blocks:
            raise RequestRefused(
                f"the request may need {needed} KV blocks and there are {self._pool.num_blocks}; "
                f"lower max_tokens or n",
                "max_tokens",
            )

    # -- steps -----------------------------------------------------------------------------------------------

    def step(self) -> list[Delta]:
        """Run one step and return what it produced. Raises EngineFault when steps fail again and again."""
        self.launch()
        self.collect()
        return self.drain()

    def launch(self) -> None:
        """Decide what the next step computes and start it; nothing happens when there is no work."""
        self._release_held()
        if not self._open:
            return
        started = self._clock()
        plan = self.scheduler.schedule()
        if plan is None:
            self._stalled()
            return
        for sequence in plan.rows[plan.num_decodes :]:
            if not sequence.started:
                sequence.started = True
                self._account.queue.observe(started - sequence.job.arrival)
        try:
            self._flight = self._executor.start(plan, started)
        except Exception as error:
            self._failed(plan, error)

    def collect(self) -> None:
        """Wait for the step under way, if there is one, and see what came of it."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        try:
            sampled = flight.result()
        except Exception as error:
            self._failed(flight.plan, error)
            return
        for sequence, result in sampled:
            self._advance(sequence, result)
        plan = flight.plan
        self._account.step(len(plan.rows), len(plan.step.token_ids), self._clock() - flight.started)

    def drain(self) -> list[Delta]:
        """Return what came since the last call. This is where text is made that did not have to be made before."""
        outbox, self._outbox = self._outbox, []
        return [entry.delta() if isinstance(entry, Output) else entry for entry in outbox]

    def _advance(self, sequence: Sequence, sampled: Sampled) -> None:
        """Add one sampled token to a sequence and see whether it goes on."""
        token, logprob = sampled
        choice = self._open.choice(sequence)
        if token >= 0:
            self._count_token(sequence)
            sequence.tokens.append(token)
            choice.sampling.append(token)
        if choice.sampling.fault is not None:
            self._break_off(sequence, choice.sampling.fault, param=sequence.request.grammar_param)
            return
        if token < 0:
            # Whatever made these numbers may be in any block it has read or written: nobody else is to find them.
            self._pool.unpublish(sequence.blocks)
            self._break_off(sequence, "the model gave no valid probabilities for the next token")
            return
        reason, stop = sequence.finish_after(token) or (None, None)
        output = Output(choice, token, logprob, reason, stop)
        if choice.stops_on_text:
            output.text, matched = choice.read(token, reason)
            if matched is not None:
                output.reason, output.stop = FinishReason.STOP, matched
        self._outbox.append(output)
        if output.reason is not None:
            output.usage = self._retire(sequence, completed=True)

    def _count_token(self, sequence: Sequence) -> None:
        if sequence.index == 0 and sequence.num_output_tokens == 0:
            self._account.prompt_tokens += sequence.num_prompt_tokens
        self._account.generation_tokens += 1
        self._open.of(sequence).completion_tokens += 1

    # -- ends ------------------------------------------------------------------------------------------------

    def _retire(self, sequence: Sequence, *, completed: bool) -> Usage | None:
        """Forget a sequence: the only way out, for every reason there is. Returns the usage after the last one."""
        self.scheduler.remove(sequence, SequenceState.COMPLETED if completed else SequenceState.ABORTED)
        opened = self._open.leave(sequence)
        if opened.sequences:
            return None
        if opened.first.admitted:
            self.scheduler.policy.completed(sequence.job, opened.completion_tokens)
        else:
            self.scheduler.policy.removed(sequence.job)
        return Usage(sequence.num_prompt_tokens, opened.completion_tokens, opened.first.num_cached_tokens)

    def _break_off(
        self,
        sequence: Sequence,
        error: str | None,
        reason: FinishReason = FinishReason.ERROR,
        param: str | None = None,
    ) -> None:
        """End a sequence without a token; one that stands for several choices ends all of them."""
        first, count = sequence.index, sequence.forks
        usage = self._retire(sequence, completed=False)
        self._tell_ends(sequence, range(first, first + count), usage, reason, error, param)

    def _tell_ends(
        self,
        sequence: Sequence,
        choices: range,
        usage: Usage | None,
        reason: FinishReason,
        error: str | None,
        param: str | None,
    ) -> None:
        request_id = sequence.request.id
        for index in choices:
            last = usage if index == choices[-1] else None
            delta = Delta(request_id, index, "", finish_reason=reason, usage=last, error=error, error_param=param)
            self._outbox.append(delta)

    def _end(self, request_id: str, reason: FinishReason, error: str | None, param: str | None = None) -> None:
        """End a request that is held, or what is left of one that is open."""
        held = self._held.take(request_id)
        if held is not None:
            usage = Usage(held.sequence.num_prompt_tokens, 0)
            self._tell_ends(held.sequence, range(held.sequence.forks), usage, reason, error, param)
        for sequence in self._open.sequences_of(request_id):
            self._break_off(sequence, error, reason, param)

    def _failed(self, plan: Plan, error: Exception) -> None:
        """End the requests whose step failed. What it may have left in the prefix cache is forgotten."""
        logger.error("a step of %d sequences failed", len(plan.rows), exc_info=error)
        self._account.failures += 1
        self._pool.clear_cache()
        if self._account.failures >= MAX_FAILURES:
            raise EngineFault(
                f"{self._account.failures} steps in a row failed, the last with: {_one_line(error)}"
            ) from error
        requests = dict.fromkeys(sequence.request.id for sequence in plan.rows)
        text = f"the step that computed this request failed: {_one_line(error)}"
        for request_id in requests:
            self._end(request_id, FinishReason.ERROR, text)

    def _stalled(self) -> None:
        """Nothing could be scheduled although requests are open: fail one, so that the others may move.

        This cannot happen unless the engine has a bug, hence the log entry with everything there is to know.
        """
        self._account.stalls += 1
        self._account.stuck = True
        scheduler, pool = self.scheduler, self._pool
        head = scheduler.head or next(iter(scheduler))
        state = (
            f"{scheduler.num_running} running, {scheduler.num_waiting} waiting, "
            f"{pool.num_free} free, {pool.num_cached} cached and {pool.num_owned} owned blocks"
        )
        logger.error("nothing can be scheduled: %s; failing request %s", state, head.request.id)
        self._end(head.request.id, FinishReason.ERROR, f"the engine could not schedule this request ({state})")

    # -- account ---------------------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """Return gauges as of now and counters since the start."""
        return self._account.stats(self.scheduler, waiting=self.num_waiting)

    def check_integrity(self) -> None:
        """Raise IntegrityError unless every block, seat and open request is accounted for."""
        self.scheduler.check_integrity()
        self._open.check_integrity()
        if self._open.sequences != set(self.scheduler):
            raise IntegrityError("the engine and its scheduler disagree about which sequences there are")
        if any(request_id in self._open for request_id in self._held):
            raise IntegrityError("a request is held and open at once")


def _one_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
