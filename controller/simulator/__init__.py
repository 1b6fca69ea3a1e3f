"""Days of traffic in virtual time, driving the very objects that steer the live proxy."""

from controller.simulator.cli import main

__all__ = ["main"]
