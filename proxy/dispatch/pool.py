"""One pool: its queue, batchers, upstreams and controller, and who is under way in it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from functools import partial
from typing import Any, Final, cast

from controller.base import Controller
from controller.by_mode import ControllersByMode
from controller.decision import Decision
from controller.load import Load
from controller.observation import Observation
from controller.slo import SLO
from policies.registry import create_policy
from proxy.clock import Clock
from proxy.config.certificates import fingerprint
from proxy.config.model import PoolConfig
from proxy.config.rules import ClassRules, controller_for
from proxy.config.share import WHOLE, Share
from proxy.config.terms import Merging, Terms
from proxy.dispatch.admission import Admission
from proxy.dispatch.gate import GATE, GateBatcher, Plain
from proxy.dispatch.holding import Holding
from proxy.dispatch.lengths import Lengths, lengths_for
from proxy.dispatch.merge import Batch, MergeBatcher
from proxy.dispatch.merge_launch import MergeRuns
from proxy.dispatch.queue import Drop, Lane, Waiting, WaitQueue
from proxy.dispatch.trust import MergeTrust
from proxy.dispatch.turn import MergeTurn, Turn
from proxy.observe.hooks import ClosedBy, Hooks, NullHooks
from proxy.outcome import DeadlinePassed, Draining, NoUpstream, Outcome, Refused, Shed
from proxy.request import Ticket
from proxy.upstream.affinity import affinity_of
from proxy.upstream.build import build_group, build_poller
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.exchange import Exchange
from proxy.upstream.group import Group
from proxy.upstream.keepers import Keepers
from proxy.upstream.lease import GATED, Lease, Ledger
from proxy.upstream.leaving import Leaving, note_drain
from proxy.upstream.outgoing import Outgoing
from proxy.upstream.probe import Prober
from proxy.upstream.slots import MergeSlots
from proxy.wire.base import Call, WireFormat

__all__ = ["ClassRules", "Pool", "controller_for"]

log = logging.getLogger("trimtab.proxy")

Said = tuple[float, str, dict[str, Any], dict[str, Any], str]
_KEPT_NOTES: Final = 32
_NEVER: Final = Merging.NEVER
_RECOGNISED: Final = Merging.RECOGNISED
_VOUCHED: Final = Merging.VOUCHED


class Pool:
    """Upstreams that serve the same requests, with one queue and one promise.

    `admit` and `enter` (gate) give a lease, `join` (merge) a part of an answer. Whoever got one gives it back, by
    `Lease.release` or `leave`. Create it inside a running event loop.
    """

    def __init__(
        self,
        config: PoolConfig,
        *,
        clock: Clock,
        controller: Controller | None = None,
        group: Group | None = None,
        hooks: Hooks | None = None,
        lengths: Lengths | None = None,
        share: Share = WHOLE,
    ) -> None:
        now = clock.now()
        self.name = config.name
        self._share = share
        self._clock = clock
        self.lengths = lengths
        """Predicts how long answers will be; None where nothing depends on that."""
        self.config = config
        self.controller: Controller = controller or controller_for(config, now)
        """The one that operators see; the main one of `controllers`."""
        self.controllers = ControllersByMode(self.controller)
        """Who is asked about requests of which mode."""
        self.hooks: Hooks = hooks or NullHooks()
        self._loop = asyncio.get_running_loop()
        self.tls_files = fingerprint(config)
        """What the files behind its connections held."""
        self.group = group or build_group(
            config,
            on_retry=partial(self.hooks.retried, config.name),
            on_vain=partial(self.hooks.asked_in_vain, config.name),
        )
        self.ledger = Ledger()
        """What is at its upstreams."""
        self.ledger.on_free = self._freed
        self.queue = WaitQueue(
            create_policy(config.policy, config.policy_options),
            clock,
            max_requests=share.part(config.queue.max_requests),
            class_limits={
                name: share.part(klass.max_queued)
                for name, klass in config.classes.items()
                if klass.max_queued is not None
            },
            on_left=self._left,
        )
        depth = share.part(config.depth)
        slots = MergeSlots(self.group.endpoints, depth, self.ledger)
        plain = Plain(self.controller)
        self.gate = GateBatcher(
            self.queue, self.controllers.own("gate") or plain, clock,
            book=self.ledger.gate, load=self.gate_load, grant=self._grant,
        )  # fmt: skip
        self.merge = MergeBatcher(
            self.queue,
            self.controllers.own("merge") or plain,
            clock,
            slots=slots,
            load=self.merge_load,
            dispatch=self._send,
            max_tokens=config.max_batch_tokens,
        )
        self.said: deque[Said] = deque(maxlen=_KEPT_NOTES)
        """What was decided here about merging, for whoever keeps the decisions of several processes to take."""
        self.trust = MergeTrust([endpoint.name for endpoint in self.group.endpoints], self._note)
        """Which operations share calls where nobody said so."""
        self.runs = MergeRuns(
            self.name, self.group, slots, self.ledger, self.trust,
            hooks=self.hooks, clock=clock,
        )  # fmt: skip
        """The merged calls that are under way."""
        self.holding = Holding(
            self.group.endpoints, clock, queue=self.queue, gate=self.gate, slots=slots,
            limit=share.part(config.queue.max_requests), patience_s=lambda: self.terms.upstream_wait_s,
            poke=self.knobs_changed,
        )  # fmt: skip
        """What becomes of requests while no upstream is there."""
        self.group.on_trouble = self._upstream_changed
        self.admission = Admission(self.queue, self.controllers.asked("gate"))
        self.merge_admission = Admission(self.queue, self.controllers.asked("merge"))
        self._gated = self.controller.mode == "gate"
        self._slot_count = max(1, len(self.group.endpoints) * depth)
        self.draining = False
        self._prober = Prober(
            self.group.endpoints,
            interval_s=config.health.interval_ms / 1000.0,
            timeout_s=config.health.timeout_ms / 1000.0,
            on_change=self._health_changed,
            urgent=lambda: self.holding.on,
        )
        self.affinity = affinity_of(config)
        """Reads what ties a request to one upstream; None where nothing does."""
        self.keepers = Keepers([each.name for each in self.group.endpoints]) if config.routing.follow_ids else None
        """Which upstream keeps what; None where all of them know everything."""
        self.signals = build_poller(config, self.group.endpoints)
        self._leaving = Leaving(self.group.endpoints, self._emptied)

    @property
    def config(self) -> PoolConfig:
        """The snapshot it runs on. May be replaced by one that needs no new upstreams, queue or policy."""
        return self._config

    @config.setter
    def config(self, config: PoolConfig) -> None:
        self._config = config
        self.terms = Terms(config)
        self.lengths = lengths_for(config, self._clock.now, self.lengths)

    # -- what is going on ----------------------------------------------------------------------------------

    def load(self, now: float) -> Load:
        """Return what waits and what is in flight at `now`, whichever way it goes."""
        gate, merge, queue = self.ledger.gate, self.ledger.merge, self.queue
        times, sizes = merge.oldest()
        return Load(
            queued=queue.items,
            queued_tokens=queue.tokens,
            inflight=gate.items + merge.items,
            inflight_tokens=gate.tokens + merge.tokens,
            inflight_calls=len(gate) + len(merge),
            running=times,
            running_batches=sizes,
            slots=self._slot_count,
            inflight_express=gate.express,
            app_limited=not (self.gate.held_back or self.merge.held_back),
        )

    def gate_load(self, now: float) -> Load:
        """Return what is in front of a sequence that comes at `now`: other sequences, and no merged call."""
        book, lane = self.ledger.gate, self.queue.lane(GATE) if self.queue.items else None
        return Load(
            queued=0 if lane is None else lane.items,
            queued_tokens=0.0 if lane is None else lane.tokens,
            inflight=book.items,
            inflight_tokens=book.tokens,
            inflight_calls=len(book),
            slots=self._slot_count,
            inflight_express=book.express,
            app_limited=not self.gate.held_back,
        )

    def merge_load(self, now: float) -> Load:
        """Return what is in front of an item that comes at `now`: other items, and no gated sequence."""
        book, queue, lane = self.ledger.merge, self.queue, self.queue.lane(GATE)
        times, sizes = book.oldest()
        return Load(
            queued=queue.items if lane is None else queue.items - lane.items,
            queued_tokens=queue.tokens if lane is None else max(0.0, queue.tokens - lane.tokens),
            inflight=book.items,
            inflight_tokens=book.tokens,
            inflight_calls=len(book),
            running=times,
            running_batches=sizes,
            slots=self._slot_count,
            app_limited=not self.merge.held_back,
        )

    def own_load(self, now: float) -> Load:
        """Return what is in front of the kind of work that the controller is about."""
        return self.gate_load(now) if self._gated else self.merge_load(now)

    def tick(self, now: float) -> list[Decision]:
        """Let each controller retune the knobs, and act on what they decided. Returns the decisions."""
        before = [controller.setpoints for controller in self.controllers]
        decisions = self.controllers.tick(
            now, lambda mode: self.gate_load(now) if mode == "gate" else self.merge_load(now)
        )
        self.gate.held_back = self.merge.held_back = False
        self._leaving.look()
        if self.lengths is not None:
            self.lengths.tick()
        if [controller.setpoints for controller in self.controllers] != before:
            self.knobs_changed()
        return decisions

    def knobs_changed(self) -> None:
        """Setpoints or upstreams changed: let through whoever can go now."""
        self.gate.poke()
        self.merge.refresh()

    def promise(self) -> SLO:
        """Return the promise in force."""
        return self.controller.slo

    @property
    def bounds_unknown(self) -> bool:
        """Whether POSTs that no format claims take a place as work does: something is promised, or bounded."""
        return self.terms.bounds_unknown or any(True for _ in self.controller.slo.targets())

    def stats(self) -> dict[str, Any]:
        """Return the state, JSON-ready."""
        now = self._clock.now()
        oldest = self.queue.oldest
        return {
            "queue": {
                "requests": len(self.queue),
                "items": self.queue.items,
                "tokens": round(self.queue.tokens, 1),
                "by_class": {name: self.queue.by_class.get(name, 0) for name in self.config.classes},
                "oldest_age_s": 0.0 if oldest is None else max(0.0, now - oldest),
                "ages_s": {name: max(0.0, now - came) for name, came in self.queue.oldest_by_class().items()},
                "max_requests": self._share.part(self.config.queue.max_requests),
            },
            "inflight": self.ledger.gate.items + self.ledger.merge.items,
            "inflight_calls": len(self.ledger.gate) + len(self.ledger.merge),
            "leases": self.ledger.leases,
            "draining": self.draining,
            "predictor": {"mode": "off"} if self.lengths is None else self.lengths.report(),
            "upstreams": self.group.stats(),
        }

    # -- what a request asks for -----------------------------------------------------------------------------

    def unqueued(self, ticket: Ticket | None = None, outgoing: Outgoing | None = None) -> Lease:
        """Return a lease for a request that does not wait for a slot. Raises Refused."""
        return self.ledger.open(self._pick(0.0, ticket, outgoing))

    def admit(self, ticket: Ticket, outgoing: Outgoing, tokens: float, *, express: bool) -> Lease | None:
        """Let a newcomer in. Raises Refused.

        Returns the lease on a slot where there is nothing to wait for; otherwise it must be waited for in `enter`.
        The caller must release the lease.
        """
        job = ticket.job
        assert job is not None
        now = self._clock.now()
        load = self.gate_load(now)
        refusal = self.admission.refusal(job, ticket.klass, now, load, lenient=self.holding.on)
        if refusal is not None:
            raise Refused(refusal)
        if not self.gate.try_enter(job, express, now, load):
            return None
        self.hooks.batch_dispatched(self.name, 1, ClosedBy.EXPRESS if express else ClosedBy.IDLE)
        return self._lease_gated(ticket, outgoing, tokens, now)

    async def enter(
        self, ticket: Ticket, outgoing: Outgoing, tokens: float, *, express: bool, deadline: float
    ) -> Lease:
        """Wait for a slot and return the lease on it. Raises Refused. The caller must release the lease."""
        job, gate = ticket.job, self.gate
        assert job is not None
        turn = Turn(self._loop, ticket, outgoing, job, tokens=tokens, express=express, deadline=deadline)
        try:
            gate.offer(turn)
            await turn.future
        except BaseException:
            if turn.lease is not None:
                turn.lease.release()
            else:
                self.queue.cancel(turn)
            raise
        if turn.lease is None:
            raise Refused(self._refusal(turn.why))
        return turn.lease

    def merges(self, call: Call, target: str) -> bool:
        """Whether `call` to `target` is to share an upstream call with others."""
        merging = self.terms.merging(call.route)
        if merging is _VOUCHED and not self.trust.doubting:
            return True
        return merging is not _NEVER and self.trust.merges(
            call.route.name, target, self._clock.now(), vouched=merging is _VOUCHED
        )

    def answered_alone(
        self, endpoint: Endpoint, target: str, wire: WireFormat, call: Call, body: bytes, exchange: Exchange
    ) -> None:
        """Take the answer to a call that could have been merged, had its upstream been recognised."""
        if exchange.status == 200 and self.terms.merging(call.route) is _RECOGNISED:
            fields, now = exchange.fields.fields, self._clock.now()
            self.trust.looked_at(endpoint.name, target, wire, call, body, fields, now)

    def join(self, turn: MergeTurn, key: Hashable) -> None:
        """Let a newcomer wait for its part of a merged call; it is told when that is there. Raises Refused."""
        now = self._clock.now()
        waiting = self.queue.jobs(besides=GATE) if self.controllers.asked("merge").weighs_waiting else ()
        load, lenient = self.merge_load(now), self.holding.on
        refusal = self.merge_admission.refusal(turn.job, turn.klass, now, load, waiting=waiting, lenient=lenient)
        if refusal is not None:
            turn.gone = True
            raise Refused(refusal)
        self.merge.offer(turn, key)

    def leave(self, turn: MergeTurn) -> None:
        """Whoever waited with `turn` is gone: it leaves the queue, or its part of the answer is for nobody."""
        turn.gone = True
        if not self.queue.cancel(turn) and turn.run is not None:
            turn.run.member_gone()

    def refusal(self, turn: MergeTurn) -> Outcome:
        """Return what it means for the client that `turn` got no answer."""
        return turn.outcome if turn.outcome is not None else self._refusal(turn.why)

    def put_back(self, ticket: Ticket) -> None:
        """Forget a request that found nobody to ask: it comes again, here or elsewhere."""
        if ticket.job is not None and ticket.dispatched is not None:
            self.queue.completed(ticket.job, 0)
            self.controller.gone(ticket.upstream, ticket.dispatched)
        ticket.start_again()

    def passed_on(self, ticket: Ticket, to: str, cause: str) -> None:
        """Forget a request that another pool takes after this one could not: it is observed there."""
        self.put_back(ticket)
        self.hooks.fell_back(self.name, to, cause)

    def finished(self, ticket: Ticket) -> Observation:
        """Make the one observation of a request that is over, tell everybody, and return it."""
        obs = ticket.observation(self.name, self._clock.now())
        if ticket.job is not None and ticket.dispatched is not None:
            self.queue.completed(ticket.job, obs.output_tokens)
        if ticket.prediction is not None and self.lengths is not None:
            self.lengths.finished(ticket, obs)
        if ticket.queued:
            self.controller.observe(obs)
        self.hooks.request_finished(obs, ticket.route, ticket.code)
        return obs

    # -- life ----------------------------------------------------------------------------------------------

    def expect_upstreams(self) -> None:
        """Find out at once which upstreams are there, and soon which come."""
        self.holding.look()
        self._prober.hurry()

    @property
    def taken_out(self) -> tuple[str, ...]:
        """URLs of upstreams that an operator has taken out."""
        return self._leaving.names

    def succeed(self, before: Pool) -> None:
        """Take over what is known of upstreams that were in a pool of the same name before a reload."""
        if self.keepers is not None and before.keepers is not None:
            self.keepers = before.keepers
            self.keepers.retain([endpoint.name for endpoint in self.group.endpoints])

    def take_out(self, url: str, out: bool, now: float, actor: str) -> Decision:
        """Let an upstream have nothing new and finish what it has, or take it back in. Raises ValueError."""
        endpoint = self._leaving.find(url)
        decision = note_drain(self.controller, endpoint.name, endpoint.draining, out, now, actor)
        self._leaving.set(endpoint, out, decision.id)
        self.holding.look()
        return decision

    def keep_out(self, urls: Iterable[str]) -> None:
        """Take exactly these upstreams out, as somebody else has decided."""
        self._leaving.keep_out(urls)
        self.holding.look()

    def _emptied(self, endpoint: Endpoint, decision: int) -> None:
        self.controller.decisions.resolve(decision, "it is empty")
        log.info("pool %s: upstream %s is drained", self.name, endpoint.name)

    def drain(self) -> None:
        """Hold nobody back for company any more."""
        self.draining = True
        self.gate.draining = self.merge.draining = True
        self.knobs_changed()

    def close(self) -> None:
        """Turn away whoever still waits and close what is idle."""
        self._prober.stop()
        self.signals.stop()
        self.holding.stop()
        self.queue.drop_all(Drop.CLOSED)
        self.group.close()

    def abort(self) -> None:
        """Close everything now."""
        self._prober.stop()
        self.signals.stop()
        self.holding.stop()
        self.queue.drop_all(Drop.CLOSED)
        self.runs.cancel()
        self.group.abort()

    @property
    def busy(self) -> bool:
        """Whether anybody waits or is being served."""
        return bool(len(self.queue) or self.ledger.leases)

    def _health_changed(self, endpoint: Endpoint) -> None:
        log.warning("pool %s: upstream %s is %s", self.name, endpoint.name, endpoint.state(self._clock.now()).value)
        self.holding.look()
        self.knobs_changed()

    def _upstream_changed(self) -> None:
        """An upstream is ejected, accepts no connection, or does again."""
        self.holding.look()
        self._prober.hurry()

    # -- inside --------------------------------------------------------------------------------------------

    def _pick(self, tokens: float, ticket: Ticket | None, outgoing: Outgoing | None) -> Endpoint:
        endpoint = self.group.pick(tokens, (), None if ticket is None else ticket.affinity, outgoing)
        if endpoint is None:
            raise Refused(NoUpstream(after_s=self.group.retry_after_s()))
        return endpoint

    def _lease_gated(self, ticket: Ticket, outgoing: Outgoing, tokens: float, now: float) -> Lease:
        """Take a place at the gate. Raises Refused where there is no upstream."""
        endpoint, job, call = self._pick(tokens, ticket, outgoing), ticket.job, ticket.call
        if job is not None:
            streamed = call is not None and call.stream
            self.controller.sent(job, endpoint.name, now, self.ledger.gate.tokens, streamed=streamed)
        lease = self.ledger.open(endpoint, tokens, GATED, 1, now, job is not None and job.express)
        ticket.dispatched = now
        ticket.generation = self.controller.setpoints.generation
        ticket.batch = len(self.ledger.gate)
        return lease

    def _grant(self, waiting: Waiting, closed_by: ClosedBy) -> None:
        """The gate let somebody through."""
        turn = cast(Turn, waiting)
        now = self._clock.now()
        try:
            turn.lease = self._lease_gated(turn.ticket, turn.outgoing, turn.tokens, now)
        except Refused:
            turn.dropped(Drop.NO_UPSTREAM)
            return
        self.hooks.batch_dispatched(self.name, 1, closed_by)
        held_since = self.gate.held_since
        if held_since is not None:
            self.hooks.window_waited(self.name, max(0.0, now - max(held_since, turn.job.arrival)))
        if turn.ticket.trace is not None:
            turn.ticket.trace.let_go(held_since, closed_by)
        turn.wake()

    def _freed(self) -> None:
        """A place is free again. Whoever waits for one may wait for either kind."""
        if self.queue.items:
            if self.queue.lane(GATE) is not None:
                self.gate.poke()
            self.merge.poke()

    def _send(self, batch: Batch) -> None:
        """The merger closed a batch."""
        terms, members = self.terms, batch.members
        route = cast(MergeTurn, members[0]).call.route
        vouched = terms.merging(route) is _VOUCHED
        self.runs.send(batch, pads=terms.pads, check_every=terms.check_merged_every, vouched=vouched)

    def _note(self, rule: str, before: Mapping[str, Any], after: Mapping[str, Any], text: str) -> None:
        """Keep a decision about merging."""
        now = self._clock.now()
        self.controller.note(now, "controller", rule, before, after, text)
        self.said.append((now, rule, dict(before), dict(after), text))

    def _left(self, lane: Lane) -> None:
        if lane.place is not None:
            self.merge.left(lane)

    def _refusal(self, why: Drop | None) -> Outcome:
        """Return what being dropped means for the client."""
        now = self._clock.now()
        after = self.controller.retry_after_s(now, self.own_load(now))
        if why is Drop.EXPIRED and not self.holding.on:
            return DeadlinePassed(after_s=after)
        if why is Drop.SHED:
            return Shed(after_s=after)
        if why is Drop.CLOSED:
            return Draining()
        return NoUpstream(after_s=self.group.retry_after_s())
