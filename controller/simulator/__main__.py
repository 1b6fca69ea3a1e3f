"""`python -m controller.simulator`."""

from __future__ import annotations

import sys

from controller.simulator.cli import main

sys.exit(main())
