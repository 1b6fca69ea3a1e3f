"""What `trimtab simulate` can be told: every option with its range, its default and what it is for."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

from controller.laws import LAWS, make_law

__all__ = ["BARE", "Span", "parser"]

_N = TypeVar("_N", int, float)

BARE = "/no-admission"
"""Appended to a law's name: refuse and shed nothing under it."""
_EXAMPLES = """examples:
  trimtab simulate --law deadline,step --rate 12
      one made-up day under each of two laws, at three times the usual rate
  trimtab simulate --from-log access.jsonl --slo-ttft-ms 400 --plant engine
      the requests that came yesterday, under another promise
  trimtab simulate --surge 120:180:4 --slow 300:360:2 --plot day.png
      a minute of four times the load, and one of an upstream at half speed
  trimtab simulate --replay journal.jsonl.gz
      do today's controllers answer as those did that wrote this?

Exit code 0; 1 when --replay finds a difference; 2 when an option or a file is wrong."""


class Span(NamedTuple):
    """A while of virtual time (seconds), and what things are multiplied by during it."""

    start: float
    end: float
    factor: float = 1.0


class _Help(argparse.RawDescriptionHelpFormatter):
    """Show a default where there is one to show, and leave the examples as they are written."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        shown = not (action.default is None or action.default is False or action.default == argparse.SUPPRESS)
        return f"{action.help} (default: %(default)s)" if shown else action.help


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line; `--help` has the rest."""
        print(f"{self.prog}: error: {message} (see --help)", file=sys.stderr)
        raise SystemExit(2)


def parser() -> argparse.ArgumentParser:
    """Return what reads the command line."""
    made = _Parser(
        prog="trimtab simulate",
        description="Play a day of traffic through the live controller in virtual time.",
        epilog=_EXAMPLES,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    _add_traffic(made.add_argument_group("traffic, from a file", "without a file, arrivals are made up"))
    _add_made_up(made.add_argument_group("traffic, made up"))
    _add_upstream(made.add_argument_group("upstream"))
    _add_control(made.add_argument_group("control"))
    output = made.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write figures, series and decisions there")
    output.add_argument(
        "--plot",
        type=Path,
        metavar="FILE",
        help="draw a picture there: .png, .svg, .pdf (needs trimtab[plots])",
    )
    return made


def _add_traffic(group: argparse._ArgumentGroup) -> None:
    sources = group.add_mutually_exclusive_group()
    sources.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="recorded arrivals: CSV with a header or JSON lines, or .gz",
    )
    sources.add_argument(
        "--from-log", type=Path, metavar="FILE", help="the proxy's own access log in JSON lines, or .gz"
    )
    sources.add_argument(
        "--replay", type=Path, metavar="FILE",
        help="a journal of live controllers (log.journal): ask them the same again; no other option counts",
    )  # fmt: skip
    group.add_argument(
        "--speed", type=_above(0.0), default=1.0, metavar="TIMES", help="play a file so many times as fast"
    )
    group.add_argument(
        "--rate", type=_above(0.0), metavar="R",
        help="requests a second on average; a file is sped up or slowed down to it, made-up traffic is 4",
    )  # fmt: skip
    group.add_argument(
        "--duration",
        type=_above(0.0),
        default=600.0,
        metavar="S",
        help="seconds of virtual time; a file is cut off there",
    )


def _add_made_up(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--arrivals", choices=("poisson", "gamma", "mmpp"), default="poisson",
        help="poisson: independent callers; gamma: clumps, see --cv; mmpp: calm and busy spells by turns",
    )  # fmt: skip
    group.add_argument(
        "--surge", type=_span(3), action="append", metavar="FROM:TO:FACTOR",
        help="so many times the requests from second FROM to second TO; poisson only, may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--cv", type=_above(0.0), default=3.0, metavar="CV", help="gamma: coefficient of variation; 1 is poisson"
    )
    group.add_argument("--prompt-tokens", type=_whole(1), default=512, metavar="N", help="length of a prompt")
    group.add_argument("--output-tokens", type=_whole(1), default=100, metavar="N", help="mean length of an answer")
    group.add_argument(
        "--random-lengths", action="store_true", help="draw answers shaped like open chat: many short, some long"
    )
    group.add_argument("--seed", type=_whole(0), default=0, metavar="N", help="the same seed gives the same day")


def _add_upstream(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--plant", choices=("batch", "engine"), default="batch",
        help="batch: one call a batch, as in merge pools; engine: continuous batching, as in gate pools",
    )  # fmt: skip
    group.add_argument("--slots", type=_whole(1), default=1, metavar="N", help="batch: how many upstreams there are")
    group.add_argument(
        "--knee-at", type=_whole(1), metavar="SIZE", help="batch: above this size every item takes 12 %% longer"
    )
    group.add_argument(
        "--kv-tokens", type=_whole(1), default=60_000, metavar="N", help="engine: tokens that its cache holds"
    )
    group.add_argument(
        "--prefill-us-per-token", type=_above(0.0), default=88.0, metavar="US",
        help="engine: microseconds of prefill a prompt token takes",
    )  # fmt: skip
    group.add_argument(
        "--max-num-seqs", type=_whole(1), default=256, metavar="N", help="engine: most sequences it runs at once"
    )
    group.add_argument(
        "--slow", type=_span(3), action="append", metavar="FROM:TO:FACTOR",
        help="so many times slower from second FROM to second TO; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--fail", type=_span(2), action="append", metavar="FROM:TO",
        help="answer with errors from second FROM to second TO; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--freeze-metrics", type=_span(2), action="append", metavar="FROM:TO",
        help="show the controller the load of second FROM until second TO; may be repeated",
    )  # fmt: skip


def _add_control(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--law", type=_laws, default="deadline,aimd,step", metavar="LAW[,LAW...]",
        help=f"one run under each: {', '.join(LAWS)}; append {BARE} to a name to refuse and shed nothing under it",
    )  # fmt: skip
    group.add_argument(
        "--slo-e2e-ms", "--slo", type=_above(0.0), metavar="MS",
        help="target from arrival to the end; 6000 when no target is given",
    )  # fmt: skip
    group.add_argument("--slo-ttft-ms", type=_above(0.0), metavar="MS", help="target from arrival to the first token")
    group.add_argument(
        "--slo-tpot-ms", type=_above(0.0), metavar="MS", help="target for a token after the first, on average"
    )
    group.add_argument("--quantile", type=_share, default=0.99, metavar="Q", help="share that must meet every target")
    group.add_argument("--size", type=_whole(1), default=8, metavar="N", help="max_batch_size at the start")
    group.add_argument("--max-size", type=_whole(1), default=64, metavar="N", help="upper bound of max_batch_size")
    group.add_argument(
        "--window-ms", type=_at_least(0.0), default=0.0, metavar="MS", help="the batching window at the start"
    )
    group.add_argument("--no-admission", action="store_true", help="refuse and shed nothing, whatever the law")


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return value


def _above(low: float) -> Callable[[str], float]:
    return _checked(_number, lambda value: value > low, f"be above {low:g}")


def _at_least(low: float) -> Callable[[str], float]:
    return _checked(_number, lambda value: value >= low, f"be at least {low:g}")


def _whole(low: int) -> Callable[[str], int]:
    return _checked(_integer, lambda value: value >= low, f"be at least {low}")


def _checked(read: Callable[[str], _N], right: Callable[[_N], bool], must: str) -> Callable[[str], _N]:
    """Return a converter that reads a number and refuses one that is not `right`."""

    def convert(text: str) -> _N:
        value = read(text)
        if not right(value):
            raise argparse.ArgumentTypeError(f"must {must}, but it is {text}")
        return value

    return convert


def _share(text: str) -> float:
    value = _number(text)
    if not 0.5 <= value < 1.0:
        raise argparse.ArgumentTypeError(f"must lie in [0.5, 1), but it is {text}; 0.99 is P99")
    return value


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def _span(parts: int) -> Callable[[str], Span]:
    """Return a converter for spans of `parts` numbers: from, to, and a factor where that means something."""
    form, example = ("FROM:TO:FACTOR", "120:180:4") if parts == 3 else ("FROM:TO", "120:180")

    def convert(text: str) -> Span:
        words = text.split(":")
        try:
            if len(words) != parts:
                raise ValueError(form)
            span = Span(*map(float, words))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {form} in seconds, as in {example}") from None
        if not (0.0 <= span.start < span.end < math.inf and 0.0 < span.factor < math.inf):
            rest = " and its factor be above 0" if parts == 3 else ""
            raise argparse.ArgumentTypeError(f"{text!r} must start at 0 or later, end after it starts{rest}")
        return span

    return convert


def _laws(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    try:
        for name in names:
            make_law(name.removesuffix(BARE))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if not names:
        raise argparse.ArgumentTypeError(f"name at least one of {', '.join(LAWS)}")
    return names
