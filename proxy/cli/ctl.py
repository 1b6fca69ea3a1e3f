"""`trimtab ctl`: look at and steer a running proxy from the shell."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn, TypeVar

import click
import yaml

from proxy.cli.client import AdminClient, Refusal, Unreachable
from proxy.cli.tables import (
    decision_line,
    laws_text,
    plans_table,
    pool_text,
    pools_table,
    upstreams_table,
    what_if_text,
)

__all__ = ["command"]

_F = TypeVar("_F", bound=Callable[..., Any])
_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(s|m|h|d)?$")
_LOOK_EVERY_S = 0.5
_UNITS = {None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class _Context:
    """What every subcommand needs."""

    def __init__(self, client: AdminClient, pool: str | None, as_json: bool) -> None:
        self.client = client
        self.as_json = as_json
        self._pool = pool

    @property
    def base(self) -> str:
        """The path of the chosen pool."""
        return f"/admin/v1/pools/{self.client.pool(self._pool)}"

    def say(self, answer: Any, text: str) -> None:
        """Print an answer as JSON or as text."""
        click.echo(json.dumps(answer, indent=2) if self.as_json else text)

    def say_pool(self, answer: Any) -> None:
        """Print a pool after a change, or the change when it is to come."""
        self.say(answer, pools_table([answer]) if "setpoints" in answer else plans_table([answer]))

    def say_decisions(self, found: Sequence[dict[str, Any]], otherwise: str) -> None:
        """Print a line for each decision; where there is none, tell a person so on stderr."""
        for decision in found:
            click.echo(json.dumps(decision) if self.as_json else decision_line(decision))
        if not found and not self.as_json:
            click.echo(otherwise, err=True)


def _fail(code: int, error: Exception) -> NoReturn:
    click.echo(f"trimtab: {error}", err=True)
    sys.exit(code)


def _talks(function: _F) -> _F:
    """Hand the context over, and turn what goes wrong into one line: exit code 2 refused, 1 nobody there."""

    @click.pass_obj
    @wraps(function)
    def wrapped(context: _Context, *args: Any, **kwargs: Any) -> None:
        try:
            function(context, *args, **kwargs)
        except Refusal as error:
            _fail(2, error)
        except Unreachable as error:
            _fail(1, error)
        except (BrokenPipeError, KeyboardInterrupt):
            sys.exit(0)

    return wrapped  # type: ignore[return-value]


def _seconds(context: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    match = _DURATION.match(value.strip())
    if not match:
        raise click.BadParameter("write a number of seconds, or one with s, m, h or d: 90, 15m, 2h")
    return float(match[1]) * _UNITS[match[2]]


def _moment(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Take a time as the API does, and one without an offset as this machine's."""
    if value is None or re.fullmatch(r"\d+(\.\d+)?", value):
        return value
    try:
        return datetime.fromisoformat(value).astimezone().isoformat()
    except ValueError:
        raise click.BadParameter("write Unix seconds or a time: 2030-01-31T08:00, 2030-01-31T08:00:00Z") from None


def _timed(function: _F) -> _F:
    """Let a change be made later, or for a while."""
    for option in (
        click.option("--until", callback=_moment, metavar="TIME", help="Take it back then."),
        click.option("--for", "for_s", callback=_seconds, metavar="DURATION", help="Take it back after this."),
        click.option("--at", callback=_moment, metavar="TIME", help="Make it then; see `plans`."),
    ):
        function = option(function)
    return function


def _pairs(words: Sequence[str]) -> dict[str, Any]:
    """Read `key=value` words; `none` takes a value away."""
    found = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise Refusal(f"{word}: write it as key=value")
        found[key] = None if value.lower() == "none" else yaml.safe_load(value)
    return found


@click.group("ctl")
@click.option(
    "--url", envvar="TRIMTAB_CTL_URL", default="http://127.0.0.1:8081", show_default=True, help="Admin port."
)
@click.option(
    "--token", envvar=["TRIMTAB_CTL_TOKEN", "TRIMTAB_ADMIN__TOKEN"], help="Bearer token; better by TRIMTAB_CTL_TOKEN."
)
@click.option("-p", "--pool", help="Which pool; the only one when there is only one.")
@click.option("--json", "as_json", is_flag=True, help="The API's own answer instead of a table.")
@click.pass_context
def command(context: click.Context, url: str, token: str | None, pool: str | None, as_json: bool) -> None:
    """Look at and steer a running proxy."""
    context.obj = _Context(AdminClient(url, token), pool, as_json)


@command.command()
@click.option("--watch", type=click.FloatRange(0.2, 3600), metavar="SECONDS", help="Again and again.")
@_talks
def pools(context: _Context, watch: float | None) -> None:
    """Show every pool on a line."""
    while True:
        answer = context.client.get("/admin/v1/pools")
        if watch is not None and sys.stdout.isatty():
            click.clear()
        context.say(answer, pools_table(answer["pools"]))
        if watch is None:
            return
        time.sleep(watch)


@command.command()
@click.option("--watch", type=click.FloatRange(0.2, 3600), metavar="SECONDS", help="Again and again.")
@_talks
def show(context: _Context, watch: float | None) -> None:
    """Show one pool: SLO, live latencies, upstreams."""
    while True:
        answer = context.client.get(context.base)
        if watch is not None and sys.stdout.isatty():
            click.clear()
        context.say(answer, pool_text(answer))
        if watch is None:
            return
        time.sleep(watch)


@command.command()
@click.argument("targets", nargs=-1, metavar="TARGET=MS...")
@click.option(
    "--class", "klass", metavar="NAME", help="Of one priority class; without targets it has the pool's again."
)
@_timed
@_talks
def slo(context: _Context, targets: tuple[str, ...], klass: str | None, **times: Any) -> None:
    """Change the SLO: ttft_ms=400 e2e_ms=none quantile=0.95."""
    if not targets and klass is None:
        raise Refusal("say which target: ttft_ms=400")
    body = _pairs(targets)
    if klass is not None:
        body = {"classes": {klass: body or None}}
    context.say_pool(context.client.send("PATCH", f"{context.base}/slo", body, **times))


@command.command()
@click.argument("setpoints", nargs=-1, required=True, metavar="SETPOINT=VALUE...")
@_timed
@_talks
def pin(context: _Context, setpoints: tuple[str, ...], **times: Any) -> None:
    """Hold setpoints: max_batch_size=8 window_ms=0."""
    context.say_pool(context.client.send("PATCH", f"{context.base}/setpoints", _pairs(setpoints), **times))


@command.command()
@click.argument("setpoints", nargs=-1)
@_talks
def unpin(context: _Context, setpoints: tuple[str, ...]) -> None:
    """Give setpoints back to the law, all when none is named."""
    context.say_pool(context.client.send("DELETE", f"{context.base}/pins", name=list(setpoints) or None))


@command.command()
@click.argument("name", required=False)
@click.argument("options", nargs=-1, metavar="[OPTION=VALUE...]")
@_timed
@_talks
def law(context: _Context, name: str | None, options: tuple[str, ...], **times: Any) -> None:
    """Hand the setpoints to another law; without NAME, show every law and what it can be told."""
    if name is None:
        known = context.client.get("/admin/v1/laws")
        context.say(known, laws_text(known["laws"]))
        return
    body = {"law": name, "options": _pairs(options)}
    context.say_pool(context.client.send("PUT", f"{context.base}/law", body, **times))


@command.command()
@click.argument("law_name", metavar="[LAW]", required=False)
@click.option("--block", callback=_seconds, metavar="DURATION", help="Length of a turn.  [2m]")
@click.option("--pairs", type=click.IntRange(3, 10_000), help="Most pairs of turns.  [60]")
@click.option("--stop", is_flag=True, help="End it; the law it began with stays.")
@_talks
def experiment(context: _Context, law_name: str | None, block: float | None, pairs: int | None, stop: bool) -> None:
    """Let LAW take turns with the one in force, on live traffic, until one is better."""
    path = f"{context.base}/experiment"
    if stop:
        context.say_pool(context.client.send("DELETE", path))
    elif law_name is None:
        found = context.client.get(context.base)["live"].get("experiment")
        context.say(found, yaml.safe_dump(found, sort_keys=False).rstrip() if found else "no experiment is running")
    else:
        given = {"law": law_name, "block_s": block, "pairs": pairs}
        body = {key: value for key, value in given.items() if value is not None}
        context.say_pool(context.client.send("POST", path, body))


@command.command()
@click.option("--off", is_flag=True, help="Let the law go on.")
@_timed
@_talks
def freeze(context: _Context, off: bool, **times: Any) -> None:
    """Keep the law from turning setpoints."""
    context.say_pool(context.client.send("PUT", f"{context.base}/freeze", {"frozen": not off}, **times))


@command.command()
@click.argument("url")
@click.option("--undo", is_flag=True, help="Take it back in.")
@click.option("--wait", is_flag=True, help="Return once it has finished what it had.")
@_talks
def drain(context: _Context, url: str, undo: bool, wait: bool) -> None:
    """Take an upstream out: nothing new goes there, what runs is finished."""
    answer = context.client.send("PUT", f"{context.base}/drain", {"upstream": url, "draining": not undo})
    while wait and not undo and _upstream(answer, url).get("state") == "draining":
        time.sleep(_LOOK_EVERY_S)
        answer = context.client.get(context.base)
    context.say(answer, upstreams_table(answer))


def _upstream(pool: dict[str, Any], url: str) -> dict[str, Any]:
    wanted = url.rstrip("/")
    return next((up for up in pool["stats"].get("upstreams", ()) if up["url"] == wanted), {})


@command.command()
@click.argument("decision", type=click.IntRange(1))
@_talks
def rollback(context: _Context, decision: int) -> None:
    """Undo a decision, by its number."""
    context.say_pool(context.client.send("POST", f"{context.base}/rollback", {"decision": decision}))


@command.command("what-if")
@click.argument("changes", nargs=-1, metavar="KEY=VALUE...")
@click.option("--law", "law_name", help="Another law.")
@_talks
def what_if(context: _Context, changes: tuple[str, ...], law_name: str | None) -> None:
    """Try a change on paper: ttft_ms=400 max_batch_size=8 --law fixed."""
    given = _pairs(changes)
    pins = {key: given.pop(key) for key in ("max_batch_size", "window_ms") if key in given}
    body: dict[str, Any] = {}
    if given:
        body["slo"] = given
    if pins:
        body["setpoints"] = pins
    if law_name is not None:
        body["law"] = {"law": law_name}
    found = context.client.send("POST", f"{context.base}/what-if", body)
    context.say(found, what_if_text(found))


@command.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="At most so many.")
@click.option("-f", "--follow", is_flag=True, help="Go on with every pool's decisions as they are made.")
@_talks
def decisions(context: _Context, limit: int, follow: bool) -> None:
    """Show what was decided and why, newest last."""
    found = context.client.get(f"{context.base}/decisions", limit=limit)["decisions"][::-1]
    context.say_decisions(found, "nothing has been decided yet: it takes traffic that calls for it, or an operator")
    if not follow:
        return
    for name, data in context.client.events(1.0):
        if name == "decision":
            click.echo(json.dumps(data) if context.as_json else decision_line(data))


@command.command()
@click.option("--cancel", "number", type=click.IntRange(1), metavar="NUMBER", help="Forget one.")
@_talks
def plans(context: _Context, number: int | None) -> None:
    """Show the changes to come, in all pools."""
    if number is None:
        answer = context.client.get("/admin/v1/plans")
    else:
        answer = context.client.send("DELETE", f"/admin/v1/plans/{number}")
    context.say(answer, plans_table(answer["plans"]))


@command.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="At most so many.")
@_talks
def audit(context: _Context, limit: int) -> None:
    """Show what operators decided, in all pools, newest last."""
    found = context.client.get("/admin/v1/audit", limit=limit)["decisions"][::-1]
    context.say_decisions(found, "no operator has changed anything yet")


@command.command()
@_talks
def reload(context: _Context) -> None:
    """Read the configuration again; a bad one changes nothing."""
    done = context.client.send("POST", "/admin/v1/reload")
    restart = f"; needs a restart: {', '.join(done['restart_required'])}" if done["restart_required"] else ""
    context.say(done, f"generation {done['generation']}; changed: {', '.join(done['changed']) or 'nothing'}{restart}")


@command.command("config")
@_talks
def show_config(context: _Context) -> None:
    """Show the configuration in force, secrets masked."""
    answer = context.client.get("/admin/v1/config")
    context.say(answer, yaml.safe_dump(answer["config"], sort_keys=False, width=110).rstrip())
