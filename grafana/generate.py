"""Write the dashboards: `python grafana/generate.py` makes grafana/dashboards/*.json, `--check` reports drift.

Needs grafana-foundation-sdk==0.0.21. The JSON is committed, so nobody who only uses the dashboards needs this.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from grafana_foundation_sdk.builders import dashboard as d
from grafana_foundation_sdk.cog.encoder import JSONEncoder

from grafana.boards import controller, overview, queue, upstreams, worker

__all__ = ["BOARDS", "render"]

HERE = Path(__file__).resolve().parent / "dashboards"

BOARDS: dict[str, Callable[[], d.Dashboard]] = {
    "overview": overview.build,
    "controller": controller.build,
    "queue": queue.build,
    "upstreams": upstreams.build,
    "worker": worker.build,
}


def render(board: d.Dashboard) -> str:
    """Return the JSON of a dashboard, its panels numbered in order."""
    built = board.build()
    for number, panel in enumerate(built.panels or (), start=1):
        panel.id_val = number
    return JSONEncoder(sort_keys=True, indent=2).encode(built) + "\n"


def main() -> int:
    """Write every dashboard, or with --check say which are out of date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 when a file is out of date")
    check = parser.parse_args().check
    stale = []
    for name, make in BOARDS.items():
        path, text = HERE / f"{name}.json", render(make())
        if path.exists() and path.read_text() == text:
            continue
        stale.append(path.name)
        if not check:
            HERE.mkdir(exist_ok=True)
            path.write_text(text)
    print(f"{'out of date' if check else 'written'}: {', '.join(stale) or 'nothing'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
