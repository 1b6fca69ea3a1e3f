"""Control laws: one small pure class each, behind one interface."""

from controller.laws.base import Advice, Law, View
from controller.laws.options import Option
from controller.laws.registry import LAWS, STEERING, check_steering, law_options, make_law

__all__ = [
    "LAWS", "STEERING", "Advice", "Law", "Option", "View", "check_steering", "law_options", "make_law",
]  # fmt: skip
