"""API keys: who is calling, as what, and within which limits.

Keys are known by their SHA-256 alone. With none configured there is no `Keyring` and nothing here runs.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator, Sequence
from hashlib import sha256

from controller.observation import Result
from proxy.access.limits import Allowance, Bucket
from proxy.access.paces import Paces
from proxy.config.access import KeyConfig, KeyLimitsConfig
from proxy.config.pool import ClassConfig
from proxy.config.share import WHOLE, Share
from proxy.config.terms import Terms
from proxy.http.incoming import Incoming
from proxy.http.request_fields import RequestFields
from proxy.outcome import CallerLimited, Refused, Unauthorized
from proxy.request import Ticket

__all__ = ["Caller", "Keyring", "Visit", "hash_key"]

_BEARER = b"bearer "
_PROTOCOLS = b"sec-websocket-protocol"
_IN_PROTOCOLS = b"openai-insecure-api-key."
"""What pages put in front of a key among the protocols of a WebSocket, since browsers let them set no other field."""
_NAMES = frozenset({b"authorization", b"x-api-key", b"api-key", _PROTOCOLS})


def hash_key(key: str) -> str:
    """Return what stands for `key` in a configuration."""
    return f"sha256:{sha256(key.encode()).hexdigest()}"


def credentials(fields: RequestFields) -> Iterator[tuple[bytes, bytes]]:
    """Yield (lower-case field name, key) for every key that a request shows."""
    for field, value in fields.raw:
        name = field.lower()
        if name not in _NAMES:
            continue
        text = value.strip()
        if name == _PROTOCOLS:
            for protocol in text.split(b","):
                offered = protocol.strip()
                if offered.startswith(_IN_PROTOCOLS):
                    yield name, offered[len(_IN_PROTOCOLS) :]
        elif name != b"authorization":
            yield name, text
        elif text[: len(_BEARER)].lower() == _BEARER:
            yield name, text[len(_BEARER) :].strip()


class Caller:
    """Whoever holds one key."""

    __slots__ = ("_ladders", "allowance", "config", "digest", "tenant", "trusted", "weight")

    def __init__(self, config: KeyConfig, allowance: Allowance) -> None:
        self.config = config
        self.digest = config.digest
        self.tenant = config.tenant or config.name
        self.weight = config.weight
        self.trusted = config.trust_headers
        self.allowance = allowance
        self._ladders: dict[str, tuple[Terms, str, dict[str, str]]] = {}

    def class_in(self, terms: Terms, asked: str | None) -> str:
        """Return the class of a request that asks for class `asked`, or for none, in the pool of these terms."""
        known = self._ladders.get(terms.pool)
        if known is None or known[0] is not terms:
            default, ladder = class_ladder(self.config, terms.classes, terms.default_class)
            known = self._ladders[terms.pool] = (terms, default, ladder)
        return known[1] if asked is None else known[2].get(asked, known[1])


def class_ladder(key: KeyConfig, classes: dict[str, ClassConfig], default_class: str) -> tuple[str, dict[str, str]]:
    """Return the class of requests that name none, and for each class that can be named the one that is given.

    That is the named one if the key may, else the most urgent one it may have that is no more urgent; where there
    is none, the default. A class is no more urgent than another if it defers at least as long and does not skip
    the queue where the other waits.
    """
    default = key.default_class if key.default_class in classes else default_class
    ceiling = key.ceiling if key.ceiling in classes else None
    if ceiling is None and (key.ceiling is not None or not (key.classes or key.trust_headers)):
        ceiling = default

    def within(name: str, other: str) -> bool:
        mine, its = classes[name], classes[other]
        return name == other or (mine.slack_ms >= its.slack_ms and its.express >= mine.express)

    allowed = [
        name
        for name in classes
        if (not key.classes or name in key.classes) and (ceiling is None or within(name, ceiling))
    ]
    if key.default_class is None and default not in allowed:
        default = _highest([name for name in allowed if within(name, default)], classes) or default
    return default, {
        name: name if name in allowed else _highest([low for low in allowed if within(low, name)], classes) or default
        for name in classes
    }


def _highest(names: Sequence[str], classes: dict[str, ClassConfig]) -> str | None:
    return min(names, key=lambda name: (classes[name].slack_ms, not classes[name].express), default=None)


_WORKED_ON = frozenset({Result.OK, Result.CANCELLED, Result.TIMEOUT})
"""Ends after which an upstream may have brought forth what nobody counted."""


class Visit:
    """One request of a caller. Charged by `admit`; `leave` gives back what was not used."""

    __slots__ = ("_charged", "_output", "_paces", "caller")

    def __init__(self, caller: Caller, paces: Paces) -> None:
        self.caller = caller
        self._paces = paces
        self._charged: float | None = None
        self._output = 0.0
        """The part of it that the answer is expected to be."""

    def classify(self, ticket: Ticket, fields: RequestFields, terms: Terms) -> str:
        """Fill in the tenant and return the class."""
        caller = self.caller
        ticket.tenant = fields.tenant or caller.tenant if caller.trusted else caller.tenant
        return caller.class_in(terms, fields.klass)

    def admit(self, tokens: float, now: float, *, output: float = 0.0) -> None:
        """Charge a request of `tokens` predicted tokens, `output` of them its answer's, once.

        Raises Refused when a limit is used up.
        """
        if self._charged is not None:
            return
        refusal = self.caller.allowance.admit(tokens, now)
        if refusal is not None:
            raise Refused(CallerLimited(refusal.limit, refusal.after_s, refusal.reason))
        self._charged, self._output = tokens, output

    def leave(self, ticket: Ticket, now: float) -> None:
        """Correct the charge: by what was really used, or all of it when no upstream was ever asked.

        Where no count came, as when the caller left before the answer, the prediction stays charged for the share
        that the upstream has had the time for.
        """
        charged, self._charged = self._charged, None
        if charged is not None:
            used = ticket.prompt_tokens + self._used(ticket, now) if ticket.dispatched is not None else 0.0
            self.caller.allowance.settle(charged, used, now)

    def _used(self, ticket: Ticket, now: float) -> float:
        """Return the output tokens of a request that was sent to an upstream."""
        assert ticket.dispatched is not None
        tokens, spent_s = ticket.output_tokens, now - ticket.dispatched
        if tokens:
            if ticket.result is Result.OK:
                self._paces.learn(ticket.upstream, spent_s, tokens)
            return tokens
        if ticket.counted or not self._output or ticket.result not in _WORKED_ON:
            return 0.0
        return self._paces.tokens_in(ticket.upstream, spent_s, self._output)


class _Identified:
    """Whose key a request's fields show, in the eyes of one keyring."""

    __slots__ = ("by", "caller")

    def __init__(self, by: Keyring, caller: Caller | None) -> None:
        self.by = by
        self.caller = caller


class Keyring:
    """Every key there is. Immutable but for the limits' levels, which a successor takes over."""

    __slots__ = ("_callers", "_forward", "_paces")

    def __init__(
        self,
        keys: Sequence[KeyConfig],
        *,
        now: float,
        forward: bool = False,
        before: Keyring | None = None,
        share: Share = WHOLE,
    ) -> None:
        self._forward = forward
        self._paces: Paces = Paces() if before is None else before._paces
        kept = {} if before is None else before._callers
        self._callers: dict[bytes, Caller] = {}
        for key in keys:
            old = kept.get(key.digest)
            same = old is not None and old.config.limits == key.limits
            allowance = old.allowance if old is not None and same else _allowance(key.limits, now, share)
            self._callers[key.digest] = Caller(key, allowance)

    def receive(self, incoming: Incoming) -> Visit:
        """Find out who sent a request. Raises Refused when nobody known did.

        The key that fits is ours and goes no further, unless it is to be forwarded.
        """
        fields = incoming.fields
        known = fields.known
        if type(known) is not _Identified or known.by is not self:
            if known is not None:
                fields = incoming.refresh_fields()
            known = fields.known = _Identified(self, self._identify(fields))
        if known.caller is None:
            raise Refused(Unauthorized())
        return Visit(known.caller, self._paces)

    def _identify(self, fields: RequestFields) -> Caller | None:
        """Return whose key a request shows.

        What is looked up is a hash, about which timing tells nothing useful; what decides is compared in constant
        time.
        """
        found: Caller | None = None
        consumed: set[bytes] = set()
        for name, key in credentials(fields):
            digest = sha256(key).digest()
            caller = self._callers.get(digest)
            if caller is not None and hmac.compare_digest(caller.digest, digest):
                found = found or caller
                consumed.add(name)
        if consumed and not self._forward:
            if _PROTOCOLS in consumed:
                consumed.discard(_PROTOCOLS)
                fields.replace(_PROTOCOLS, _without_keys(fields))
            fields.drop(consumed)
        return found


def _without_keys(fields: RequestFields) -> bytes:
    """Return the protocols that a WebSocket's client offers, without those that are keys."""
    offered = [
        protocol.strip() for name, value in fields.raw if name.lower() == _PROTOCOLS for protocol in value.split(b",")
    ]
    return b", ".join([protocol for protocol in offered if not protocol.startswith(_IN_PROTOCOLS)])


def _allowance(limits: KeyLimitsConfig, now: float, share: Share) -> Allowance:
    """Return this process's part of what a key may use up: rates are divided, numbers of requests split."""
    return Allowance(
        requests=_bucket(limits.requests_per_minute, limits.burst, now, share),
        tokens=_bucket(limits.tokens_per_minute, limits.burst_tokens, now, share),
        max_inflight=None if limits.max_inflight is None else share.part(limits.max_inflight),
    )


def _bucket(per_minute: float | None, burst: int | None, now: float, share: Share) -> Bucket | None:
    if per_minute is None:
        return None
    return Bucket(per_minute / 60.0 / share.of, max(1.0, (burst or per_minute) / share.of), now)
