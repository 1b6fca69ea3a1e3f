"""Control laws: one small pure class each, behind one interface."""

from controller.laws.base import Advice, Law, View
from controller.laws.registry import LAWS, make_law

__all__ = ["LAWS", "Advice", "Law", "View", "make_law"]
