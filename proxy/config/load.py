"""File, then environment, then flags: from the outside world to one frozen `Config`.

Later layers win key by key. `TRIMTAB_ADMIN__PORT=9000` sets `admin.port`; pools are addressed by name or number,
`TRIMTAB_POOLS__CHAT__SLO__TTFT_MS=500`. With a single pool its keys may stand at the top, in the file as well as in
the environment: `TRIMTAB_SLO__TTFT_MS=500`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError

from proxy.config.base import nearest
from proxy.config.certificates import file_problems
from proxy.config.errors import ConfigError, Path, Problem, join, problems_of
from proxy.config.model import POOL_KEYS, Config, PoolConfig
from proxy.config.names import unknown_names
from proxy.config.source import Source, read_file

__all__ = ["ENV_PREFIX", "Override", "check", "load"]

ENV_PREFIX = "TRIMTAB_"

_NOT_OURS = re.compile(
    r"^TRIMTAB(_[A-Z0-9_]+?)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$"
)
"""Variables that Kubernetes puts into every container beside a Service called trimtab."""

_RESERVED = re.compile(r"^TRIMTAB_((CC|COMPILED|CONFIG|DATA)$|CTL_|WORKER_)")
"""Variables with a meaning of their own: the path of the file, and what others than the configuration read."""

_NO_UPSTREAM = "no upstream is given; add `upstreams: [http://127.0.0.1:8000]` or --upstream URL"


class Override(NamedTuple):
    """One value given by a flag."""

    path: Path
    value: Any
    flag: str


def load(file: FilePath | None, *, environ: Mapping[str, str], overrides: Iterable[Override] = ()) -> Config:
    """Read all layers. Raises ConfigError, naming file, line, key, what was found and what is accepted."""
    source = read_file(file, environ) if file else Source()
    short = _unfold(source)
    problems = [
        *_apply(source, _from_environment(environ), short),
        *_apply(source, overrides, short),
    ]
    if problems:
        raise ConfigError(problems)
    return check(source, short=short)


def check(source: Source, *, short: bool = False) -> Config:
    """Validate plain data. `short` says that its one pool was written at the top level. Raises ConfigError."""

    def locate(path: Path) -> tuple[str, Path]:
        shown = path[2:] if short and path[:2] == ("pools", 0) else path
        return source.origin(path), shown

    try:
        config = Config.model_validate(source.data)
    except ValidationError as error:
        problems = [_friendlier(problem, source, short) for problem in problems_of(error, locate)]
        raise ConfigError(problems) from None
    found = [*unknown_names(config), *file_problems(config)]
    if found:
        raise ConfigError([Problem(source.origin(path), join(locate(path)[1]), text) for path, text in found])
    return config


def _friendlier(problem: Problem, source: Source, short: bool) -> Problem:
    """Say it in terms of what a short configuration contains: pools need not be known to write one."""
    nothing = problem.path == "pools" and not source.data.get("pools")
    unlisted = short and problem.path == "upstreams" and problem.message.startswith(("is required", "has 0"))
    if nothing or unlisted:
        return Problem(problem.origin, "", _NO_UPSTREAM)
    if "unknown key" in problem.message and "." not in problem.path and "[" not in problem.path:
        known = [*Config.model_fields, *(key for key in PoolConfig.model_fields if key in POOL_KEYS)]
        guess = nearest(problem.path, known)
        hint = f"did you mean {guess}?" if guess else f"known keys: {', '.join(known)}"
        return problem._replace(message=f"unknown key; {hint}")
    return problem


def _unfold(source: Source) -> bool:
    """Move pool keys from the top level into `pools[0]`, with their origins; say whether there were any."""
    keys = [key for key in source.data if key in POOL_KEYS]
    if not keys:
        return "pools" not in source.data
    if "pools" in source.data:
        first = keys[0]
        message = f"belongs to a pool; put it under pools, or drop pools ({source.origin(('pools',))})"
        raise ConfigError([Problem(source.origin((first,)), first, message)])
    source.data["pools"] = [{key: source.data.pop(key) for key in keys}]
    moved = {path: origin for path, origin in source.origins.items() if path and path[0] in POOL_KEYS}
    for path, origin in moved.items():
        del source.origins[path]
        source.origins["pools", 0, *path] = origin
    return True


def _apply(source: Source, values: Iterable[Override], short: bool) -> list[Problem]:
    """Put `values` over `source`; return what could not be placed."""
    problems = []
    for path, value, origin in values:
        try:
            source.set(_resolve(path, source, short), value, origin)
        except ValueError as error:
            problems.append(Problem(origin, join(path), str(error)))
    return problems


def _resolve(path: Path, source: Source, short: bool) -> Path:
    """Find the pool that `path` means. Raises ValueError when it is not clear or not there."""
    head = path[0]
    pools = source.data.get("pools")
    if head in POOL_KEYS:
        if isinstance(pools, list) and len(pools) > 1:
            names = ", ".join(str(_name_of(pool)) for pool in pools)
            raise ValueError(f"which pool? There are {names}; name one, as in pools.{_name_of(pools[0])}.{head}")
        return ("pools", 0, *path)
    if head == "pools" and len(path) > 1 and isinstance(path[1], str):
        return ("pools", _index_of(path[1], pools if isinstance(pools, list) else []), *path[2:])
    return path


def _index_of(name: str, pools: Sequence[Any]) -> int:
    if name.isdecimal():
        return int(name)
    spelled = {_spelling(str(_name_of(pool))): index for index, pool in enumerate(pools)}
    if _spelling(name) not in spelled:
        raise ValueError(f"there is no pool {name!r}; known pools: {', '.join(spelled) or 'none'}")
    return spelled[_spelling(name)]


def _name_of(pool: Any) -> Any:
    return pool.get("name", "default") if isinstance(pool, dict) else pool


def _spelling(name: str) -> str:
    """Reduce a pool's name to what an environment variable can spell."""
    return re.sub(r"[^a-z0-9]", "_", name.lower())


def _from_environment(environ: Mapping[str, str]) -> list[Override]:
    """Turn TRIMTAB_* variables into overrides. Raises ConfigError for a variable that sets nothing."""
    found, problems = [], []
    for variable in sorted(environ):
        if not variable.startswith(ENV_PREFIX) or _RESERVED.match(variable) or _NOT_OURS.match(variable):
            continue
        parts = [part.lower() for part in variable.removeprefix(ENV_PREFIX).split("__")]
        if parts[0] not in Config.model_fields and parts[0] not in POOL_KEYS:
            problems.append(Problem(variable, "", _unknown_variable(parts[0])))
            continue
        path = tuple(parts)
        found.append(Override(_with_indexes(path), _plain(path, environ[variable]), variable))
    if problems:
        raise ConfigError(problems)
    return found


def _with_indexes(path: Path) -> Path:
    """Turn the numbers of `upstreams` entries into indexes; everything else is a key."""
    return tuple(
        int(part)
        if index and path[index - 1] in ("upstreams", "paths", "models") and str(part).isdecimal()
        else str(part)
        for index, part in enumerate(path)
    )


def _plain(path: Path, text: str) -> Any:
    """Read a variable's value. Text stays text (a secret may look like a number); lists and mappings are YAML."""
    free = any(str(part).endswith("_options") for part in path[:-1])
    if not free and text.strip()[:1] not in ("[", "{") and text.strip() != "null":
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        return text


def _unknown_variable(head: str) -> str:
    guess = nearest(head, {*Config.model_fields, *POOL_KEYS})
    hint = f"did you mean {ENV_PREFIX}{guess.upper()}?" if guess else "nested keys are joined by two underscores"
    return f"sets no known key; {hint}"
