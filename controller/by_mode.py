"""The controllers of one pool: one for each way its requests are dispatched that has one of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from controller.base import Controller
from controller.decision import Decision
from controller.load import Load
from controller.measure.evidence import Mode

__all__ = ["ControllersByMode"]


class ControllersByMode:
    """Says which controller is asked about requests of which mode. Nobody changes one.

    `main` is the one that operators see and steer, and is asked about every mode that has none of its own. `beside`
    are others, each of another mode; ValueError where two are of the same.
    """

    __slots__ = ("_by_mode", "main")

    def __init__(self, main: Controller, *beside: Controller) -> None:
        self.main: Final = main
        self._by_mode: dict[Mode, Controller] = {main.mode: main}
        for controller in beside:
            if controller.mode in self._by_mode:
                raise ValueError(f"pool {main.pool} has two controllers of mode {controller.mode!r}")
            self._by_mode[controller.mode] = controller

    def __iter__(self) -> Iterator[Controller]:
        """Return an iterator over all, the main one first."""
        return iter(self._by_mode.values())

    def own(self, mode: Mode) -> Controller | None:
        """Return the controller whose models are about requests of `mode`; None when there is none."""
        return self._by_mode.get(mode)

    def asked(self, mode: Mode) -> Controller:
        """Return the controller that is asked about requests of `mode`."""
        return self._by_mode.get(mode, self.main)

    def tick(self, now: float, load: Callable[[Mode], Load]) -> list[Decision]:
        """Let each do what is due once a second, under the `load` of its own mode; returns what was decided."""
        decided = [controller.tick(now, load(mode)) for mode, controller in self._by_mode.items()]
        return [decision for decision in decided if decision is not None]
