from __future__ import annotations

import pytest

from controller.by_mode import ControllersByMode
from controller.load import Load
from controller.measure.evidence import Mode
from controller.slo import SLO
from tests.controller.build import controller


@pytest.mark.parametrize("mode", ["gate", "merge"])
def test_one_controller_is_asked_about_every_mode_and_owns_its_own(mode: Mode) -> None:
    main = controller(mode=mode)
    controllers = ControllersByMode(main)
    assert [controllers.asked(each) for each in ("gate", "merge")] == [main, main]
    assert [controllers.own(each) is main for each in ("gate", "merge")] == [mode == "gate", mode == "merge"]


def test_each_of_two_is_asked_about_its_own_mode() -> None:
    gate, merge = controller(mode="gate"), controller(mode="merge")
    controllers = ControllersByMode(gate, merge)
    assert list(controllers) == [gate, merge]
    assert controllers.main is gate
    assert (controllers.asked("gate"), controllers.asked("merge")) == (gate, merge)
    with pytest.raises(ValueError, match="two controllers of mode 'gate'"):
        ControllersByMode(gate, controller(mode="gate"))


def test_a_tick_reaches_each_under_the_load_of_its_mode() -> None:
    controllers = ControllersByMode(controller(mode="gate", slo=SLO()), controller(mode="merge", slo=SLO()))
    asked: list[Mode] = []

    def load(mode: Mode) -> Load:
        asked.append(mode)
        return Load()

    assert [decision.rule for decision in controllers.tick(1.0, load)] == ["hold", "hold"]
    assert controllers.tick(2.0, load) == []
    assert asked == ["gate", "merge", "gate", "merge"]
