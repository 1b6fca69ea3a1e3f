"""`python -m proxy.workers LINE LISTENING`: started by the supervisor, with two inherited descriptors."""

from __future__ import annotations

import sys

from proxy.run import calm_collector, run_loop
from proxy.workers.worker import main

if __name__ == "__main__":
    calm_collector()
    run_loop(main(int(sys.argv[1]), int(sys.argv[2])))
