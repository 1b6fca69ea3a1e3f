"""What a law can be told: names, ranges, defaults. Laws declare them, and everybody who asks reads the same table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, NamedTuple

__all__ = ["SHARED", "Option", "check_options"]


class Option(NamedTuple):
    """One option of a law. Numbers lie in `low`..`high`, a bound being part of the range unless it is `open`."""

    name: str
    default: float | int | bool | str
    text: str
    low: float | None = None
    high: float | None = None
    open_low: bool = False
    open_high: bool = False
    choices: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """`boolean`, `integer`, `number` or `choice`."""
        if self.choices:
            return "choice"
        if isinstance(self.default, bool):
            return "boolean"
        return "integer" if isinstance(self.default, int) else "number"

    @property
    def accepted(self) -> str:
        """What would be right, in words."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.kind == "boolean":
            return "true or false"
        what = "a whole number" if self.kind == "integer" else "a number"
        bounds = []
        if self.low is not None:
            bounds.append(f"{'above' if self.open_low else 'at least'} {self.low:g}")
        if self.high is not None:
            bounds.append(f"{'below' if self.open_high else 'at most'} {self.high:g}")
        return " ".join([what, " and ".join(bounds)]).strip()

    def takes(self, value: object) -> bool:
        """Whether `value` is acceptable."""
        if self.choices:
            return value in self.choices
        if self.kind == "boolean":
            return isinstance(value, bool)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            return False
        if self.kind == "integer" and value != int(value):
            return False
        if self.low is not None and (value < self.low or (self.open_low and value == self.low)):
            return False
        return self.high is None or not (value > self.high or (self.open_high and value == self.high))

    def as_dict(self) -> dict[str, Any]:
        """Return what the admin API shows."""
        return {
            "name": self.name,
            "kind": self.kind,
            "default": self.default,
            "accepted": self.accepted,
            "low": self.low,
            "high": self.high,
            "choices": list(self.choices),
            "text": self.text,
        }


SHARED = (
    Option("admission", True, "Whether requests that cannot be in time are refused and shed."),
    Option("guards", True, "Whether cuts that changed nothing are undone, and the floor is left upwards."),
    Option(
        "late_target", 0.01, "Late share among the admitted that predictions are corrected towards; 0.005 for a hard "
        "P99, at some goodput.", 0.0, 0.5, open_low=True, open_high=True,
    ),
)  # fmt: skip
"""What every law can be told."""


def check_options(law: str, known: Sequence[Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options to make the law with. Raises ValueError, naming what would be right."""
    table = {option.name: option for option in known}
    for name, value in given.items():
        option = table.get(name)
        if option is None:
            close = get_close_matches(name, table, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"law {law!r} has no option {name!r}.{hint} Options: {', '.join(table) or 'none'}")
        if not option.takes(value):
            raise ValueError(f"law {law!r}: {name} must be {option.accepted}, not {value!r}")
    return {name: int(value) if table[name].kind == "integer" else value for name, value in given.items()}
