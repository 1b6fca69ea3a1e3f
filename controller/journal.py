"""Everything a controller was told, and what it answered: written down live, played again later.

A controller reads no clock and does no I/O, so the same calls give the same answers, on any machine. A journal of a
live pool is therefore a complete account of why it did what it did: `trimtab simulate --replay FILE` asks a fresh
controller the same questions and compares every verdict, batch and decision.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

from controller.decision import Decision
from controller.load import Load
from controller.loop import PoolController
from controller.observation import Observation, Result
from controller.setpoints import Bounds, Setpoints
from controller.slo import SLO
from controller.tune.experiment import Arm
from controller.verdict import Choice, Verdict
from policies.base import Job

__all__ = ["JournalError", "JournaledController", "Replayed", "replay"]

_T = TypeVar("_T")
_TYPES: Mapping[str, type] = {
    kind.__name__: kind for kind in (Arm, Bounds, Choice, Job, Load, Observation, Setpoints, SLO, Verdict)
}
_NAMES: Mapping[str, tuple[str, ...]] = {
    name: tuple(f.name for f in fields(kind)) if is_dataclass(kind) else () for name, kind in _TYPES.items()
}
_ANONYMOUS = {"Job": {"id": ""}}
"""What no decision depends on and a file should not carry."""


class JournalError(ValueError):
    """A line of a journal cannot be understood. The text names it."""


def _name(kind: type) -> str | None:
    """Return which of ours `kind` is, or is built on."""
    return next((base.__name__ for base in kind.__mro__ if _TYPES.get(base.__name__) is base), None)


def _encode(value: Any) -> Any:
    """Return `value` JSON-ready: what is one of ours becomes {"$": its type, "v": its fields}."""
    name = _name(type(value))
    if name is not None:
        names, hidden = _NAMES[name], _ANONYMOUS.get(name, {})
        own = [hidden.get(key, getattr(value, key)) for key in names] if names else list(value)
        return {"$": name, "v": [_encode(part) for part in own]}
    if isinstance(value, Mapping):
        return {key: _encode(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_encode(part) for part in value]
    return value


def _decode(value: Any) -> Any:
    """Return what `_encode` was given; sequences come back as tuples."""
    if isinstance(value, dict):
        if "$" not in value:
            return {key: _decode(part) for key, part in value.items()}
        kind, parts = _TYPES[value["$"]], [_decode(part) for part in value["v"]]
        if kind is Observation:
            parts[_NAMES["Observation"].index("result")] = Result(parts[_NAMES["Observation"].index("result")])
        return kind(*parts)
    return tuple(_decode(part) for part in value) if isinstance(value, list) else value


def _answer(result: Any) -> Any:
    """Return what a replay must give again; the wall clock and what came of a decision later are left out."""
    if isinstance(result, Decision):
        shown = result.as_dict()
        return _encode(
            {key: shown[key] for key in ("id", "at", "rule", "law", "actor", "seen", "old", "new", "text")}
        )
    return _encode(result)


class JournaledController(PoolController):
    """A controller that writes down its inputs and answers, one JSON line a call, through `write`."""

    def __init__(self, pool: str, *, write: Callable[[str], object], **settings: Any) -> None:
        self._write = write
        wall = {key: settings.pop(key) for key in ("wall",) if key in settings}
        self._line({"pool": pool, "call": "begin", "args": _encode(settings)})
        super().__init__(pool, **settings, **wall)

    def observe(self, obs: Observation) -> None:
        """Take in one finished request."""
        self._wrote("observe", (obs,), super().observe(obs))

    def sent(
        self, job: Job, upstream: str, now: float, inflight_tokens: float = 0.0, *, streamed: bool = True
    ) -> None:
        """Take note of a request that was sent."""
        result = super().sent(job, upstream, now, inflight_tokens, streamed=streamed)
        self._wrote("sent", (job, upstream, now, inflight_tokens), result, streamed=streamed)

    def first_token(self, upstream: str, dispatched: float, now: float) -> None:
        """Take in a first token."""
        self._wrote("first_token", (upstream, dispatched, now), super().first_token(upstream, dispatched, now))

    def gone(self, upstream: str, dispatched: float) -> None:
        """Forget a request that is answered from elsewhere."""
        self._wrote("gone", (upstream, dispatched), super().gone(upstream, dispatched))

    def token(self, gap_s: float) -> None:
        """Take in one gap between two tokens."""
        self._wrote("token", (gap_s,), super().token(gap_s))

    def admit(self, job: Job, now: float, load: Load) -> Verdict:
        """Say whether `job` may queue."""
        return self._wrote("admit", (job, now, load), super().admit(job, now, load))

    def choose(self, candidates: Sequence[Job], now: float, load: Load) -> Choice:
        """Say whom to send now."""
        return self._wrote("choose", (candidates, now, load), super().choose(candidates, now, load))

    def tick(self, now: float, load: Load) -> Decision | None:
        """Retune the knobs."""
        return self._wrote("tick", (now, load), super().tick(now, load))

    def set_slo(self, slo: SLO | None, now: float, actor: str, klass: str | None = None) -> Decision:
        """Change the promise."""
        return self._wrote("set_slo", (slo, now, actor, klass), super().set_slo(slo, now, actor, klass))

    def note(
        self, now: float, actor: str, rule: str, old: Mapping[str, Any], new: Mapping[str, Any], text: str
    ) -> Decision:
        """Keep a decision that is not its own."""
        return self._wrote("note", (now, actor, rule, old, new, text), super().note(now, actor, rule, old, new, text))

    def pin(self, values: Mapping[str, float], now: float, actor: str) -> Decision:
        """Hold knobs."""
        return self._wrote("pin", (values, now, actor), super().pin(values, now, actor))

    def unpin(self, names: Iterable[str] | None, now: float, actor: str) -> Decision:
        """Give knobs back."""
        wanted = None if names is None else list(names)
        return self._wrote("unpin", (wanted, now, actor), super().unpin(wanted, now, actor))

    def set_law(self, law: str, options: Mapping[str, Any], now: float, actor: str) -> Decision:
        """Hand the knobs to another law."""
        return self._wrote("set_law", (law, options, now, actor), super().set_law(law, options, now, actor))

    def set_shadow(self, law: str | None, options: Mapping[str, Any], now: float, actor: str) -> Decision:
        """Let another law advise."""
        return self._wrote("set_shadow", (law, options, now, actor), super().set_shadow(law, options, now, actor))

    def start_experiment(self, a: Arm, b: Arm, now: float, actor: str, *, seed: int = 0, **options: Any) -> Decision:
        """Let two laws take turns."""
        decision = super().start_experiment(a, b, now, actor, seed=seed, **options)
        return self._wrote("start_experiment", (a, b, now, actor), decision, seed=seed, **options)

    def stop_experiment(self, now: float, actor: str) -> Decision:
        """End a running experiment."""
        return self._wrote("stop_experiment", (now, actor), super().stop_experiment(now, actor))

    def freeze(self, frozen: bool, now: float, actor: str) -> Decision:
        """Stop the law from turning knobs, or let it go on."""
        return self._wrote("freeze", (frozen, now, actor), super().freeze(frozen, now, actor))

    def roll_back(self, decision_id: int, now: float, actor: str) -> Decision:
        """Put the knobs back."""
        return self._wrote("roll_back", (decision_id, now, actor), super().roll_back(decision_id, now, actor))

    def corrupt_estimates(self, factor: float) -> None:
        """Multiply everything the models believe."""
        self._wrote("corrupt_estimates", (factor,), super().corrupt_estimates(factor))

    def _wrote(self, call: str, args: tuple[Any, ...], result: _T, /, **named: Any) -> _T:
        line = {"pool": self.pool, "call": call, "args": _encode(args)}
        if named:
            line["named"] = named
        if result is not None:
            line["answer"] = _answer(result)
        self._line(line)
        return result

    def _line(self, entry: Mapping[str, Any]) -> None:
        self._write(json.dumps(entry, separators=(",", ":")) + "\n")


_CALLS = frozenset(name for name in vars(JournaledController) if not name.startswith("_"))


@dataclass
class Replayed:
    """What became of one pool's journal."""

    controller: PoolController
    calls: Counter[str] = field(default_factory=Counter)
    different: list[tuple[int, str, Any, Any]] = field(default_factory=list)
    """(line, call, answer then, answer now) of every answer that was another one; empty when all agree."""

    @property
    def decisions(self) -> Sequence[Decision]:
        """The decisions that are still kept."""
        return self.controller.decisions.since(0)


def replay(lines: Iterable[str]) -> dict[str, Replayed]:
    """Ask fresh controllers everything that the journal's were asked, by pool.

    A pool that begins again (the proxy was restarted) goes on with a new controller; its counts go on. Raises
    JournalError for a line that is none of a journal; a last line that was cut off is left out.
    """
    found: dict[str, Replayed] = {}
    broken: str | None = None
    for number, line in enumerate(lines, start=1):
        if broken is not None:
            raise JournalError(broken)
        try:
            entry = json.loads(line)
            _again(found, entry["pool"], entry, number)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            broken = f"line {number} is not of a journal: {error!r}"
    if broken is not None and not found:
        raise JournalError(broken)
    return found


def _again(found: dict[str, Replayed], pool: str, entry: Mapping[str, Any], number: int) -> None:
    call, args = entry["call"], _decode(entry["args"])
    if call == "begin":
        controller = PoolController(pool, wall=lambda: 0.0, **args)
        if pool in found:
            found[pool].controller = controller
        else:
            found[pool] = Replayed(controller)
        return
    if call not in _CALLS:
        raise ValueError(f"no controller is asked for {call!r}")
    replayed = found[pool]
    result = getattr(replayed.controller, call)(*args, **entry.get("named", {}))
    replayed.calls[call] += 1
    then, now = entry.get("answer"), None if result is None else json.loads(json.dumps(_answer(result)))
    if then != now:
        replayed.different.append((number, call, then, now))
