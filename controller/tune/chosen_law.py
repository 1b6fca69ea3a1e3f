"""A law that was chosen for a pool, with what every law may be told beside its own options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controller.dispatch.dispatcher import LawTerms
from controller.laws import Law, make_law
from controller.laws.registry import STEERING

__all__ = ["ChosenLaw"]


class ChosenLaw:
    """A law by name, made with `options`. Nobody changes one. Raises ValueError for a bad name or option."""

    __slots__ = ("guarded", "law", "options", "terms")

    def __init__(self, name: str, options: Mapping[str, Any] | None) -> None:
        own: Mapping[str, Any] = dict(options or {})
        self.law: Law = make_law(name, own)
        self.options = own
        """As they were given; one left out has its default."""
        self.terms = LawTerms(
            forms_batches=self.law.forms_batches,
            admission=bool(own.get("admission", True)),
            late_target=float(own.get("late_target", 0.01)),
            e2e_share=self.law.e2e_share,
        )
        """What it asks of those who dispatch under it."""
        self.guarded = bool(own.get("guards", True)) and name in STEERING
        """Whether its cuts are judged by what they did. Those of a law for trials are explorations."""

    @property
    def name(self) -> str:
        """The law's name."""
        return self.law.name
