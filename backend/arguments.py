"""The worker's command line: flags with ranges, one clear line and exit code 2 where they are wrong."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn, get_args

from backend.api.service import Pooling
from backend.browsers import ORIGIN
from backend.chat_template import ChatTemplate
from backend.engine.errors import EngineError
from backend.engine.options import Admission, EngineOptions
from backend.models.errors import ModelError
from backend.weights.locate import DEMO, locate_model
from policies.registry import PolicyError, create_policy, policy_names

__all__ = ["Arguments", "parse_arguments"]

PROGRAM: Final = "trimtab worker"
KEY_VARIABLE: Final = "TRIMTAB_WORKER_API_KEY"


@dataclass(frozen=True, slots=True)
class Arguments:
    """What the command line says, checked."""

    engine: EngineOptions
    names: tuple[str, ...]
    """Model names that requests may use; the first is the one shown."""
    host: str
    port: int
    """0 lets the system choose."""
    api_key: str | None
    chat_template: str | None
    """Jinja source that replaces the model's own templates."""
    pooling: Pooling
    max_n: int
    max_body_bytes: int
    max_held_bytes: int
    max_connections: int
    head_timeout_s: float
    body_timeout_s: float
    min_rate_bytes: int
    keepalive_timeout_s: float
    cors_origins: tuple[str, ...]
    allowed_hosts: tuple[str, ...]
    grace_s: float
    write_stall_s: float
    log_level: str


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Say what is wrong in one line; `--help` has the rest."""
        print(f"{PROGRAM}: error: {message} (see --help)", file=sys.stderr)
        raise SystemExit(2)


def _option(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE; the value is JSON where it is valid JSON, else text."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _template(text: str) -> str:
    """Read the Jinja file named `text`, and compile it, so that a fault in it is known before the model is loaded."""
    try:
        source = Path(text).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"{text} cannot be read: {error}") from None
    try:
        ChatTemplate(source).check()
    except ModelError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None
    return source


class _Help(argparse.ArgumentDefaultsHelpFormatter):
    def _get_help_string(self, action: argparse.Action) -> str | None:
        """Show a default where there is one to show."""
        return action.help if action.default in (None, False, []) else super()._get_help_string(action)


def _whole(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return a converter for whole numbers in [low, high]."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < low or (high is not None and value > high):
            span = f"at least {low}" if high is None else f"between {low} and {high}"
            raise argparse.ArgumentTypeError(f"must be {span}, but it is {value}")
        return value

    return convert


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds") from None
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be at least 0 seconds, but it is {text}")
    return value


def _some_seconds(text: str) -> float:
    if (value := _seconds(text)) == 0:
        raise argparse.ArgumentTypeError("must be more than 0 seconds")
    return value


def _origin(text: str) -> str:
    if text != "*" and ORIGIN.fullmatch(text) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no origin: a scheme and a host, such as https://app.example, or *"
        )
    return text


def _parser() -> _Parser:
    parser = _Parser(
        prog=PROGRAM,
        description="Serve one model over an OpenAI-compatible API, with continuous batching and a paged KV cache.",
        allow_abbrev=False,
        formatter_class=_Help,
    )
    defaults = EngineOptions(model=Path(DEMO))
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", help="address to listen on")
    server.add_argument("--port", type=_whole(0, 65535), default=8000, help="0 picks a free one")
    server.add_argument("--served-model-name", nargs="+", metavar="NAME", help="names that requests may use")
    server.add_argument("--api-key", metavar="KEY", help=f"require this bearer token (or set {KEY_VARIABLE})")
    server.add_argument(
        "--chat-template",
        type=_template,
        metavar="FILE",
        help="Jinja file to use instead of the model's own template",
    )
    server.add_argument("--pooling", choices=("mean", "last"), default="mean", help="of embeddings")
    server.add_argument("--max-n", type=_whole(1), default=128, help="most choices per request")
    server.add_argument("--max-body-bytes", type=_whole(1024), default=16 << 20, help="longest request body")
    server.add_argument(
        "--max-held-bytes",
        type=_whole(1 << 20),
        default=256 << 20,
        help="request bodies in memory, over all requests",
    )
    server.add_argument("--max-connections", type=_whole(1), default=8192, help="open connections of clients")
    server.add_argument(
        "--head-timeout-s",
        type=_some_seconds,
        default=30.0,
        help="from a request's first byte to the end of its head",
    )
    server.add_argument(
        "--body-timeout-s", type=_some_seconds, default=60.0, help="how long a client may be waited for, for its body"
    )
    server.add_argument(
        "--min-rate-bytes", type=_whole(1), default=500, help="bytes a second that clients must send or take then"
    )
    server.add_argument("--keepalive-timeout-s", type=_some_seconds, default=75.0, help="idle connections")
    server.add_argument(
        "--cors-origin",
        type=_origin,
        action="append",
        default=[],
        metavar="ORIGIN",
        help="whose web pages may call, such as https://app.example, or * for all; repeatable",
    )
    server.add_argument(
        "--allowed-host",
        action="append",
        default=[],
        metavar="NAME",
        help="name to answer to besides this machine's own, where only this machine is listened to; * for any",
    )
    server.add_argument("--grace-s", type=_seconds, default=30.0, help="time for open requests after SIGTERM")
    server.add_argument("--write-stall-s", type=_seconds, default=60.0, help="give up a client that reads nothing")
    server.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), default="info", help="the least that is logged"
    )

    model = parser.add_argument_group("model")
    model.add_argument(
        "--model", required=True, help=f"Hugging Face directory, .gguf file, or '{DEMO}' for the bundled one"
    )
    model.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default=defaults.dtype,
        help="what weights and KV cache are held in; auto fits model and device",
    )
    model.add_argument("--device", default=defaults.device, help="auto, cpu or cuda[:n]")
    model.add_argument("--threads", type=_whole(1), help="CPU threads; one less than the cores unless given")
    model.add_argument(
        "--max-model-len", type=_whole(2), help="tokens of prompt and output; the model's own unless given"
    )

    engine = parser.add_argument_group("engine")
    engine.add_argument("--block-size", type=_whole(1, 1024), default=defaults.block_size, help="tokens per KV block")
    engine.add_argument("--num-blocks", type=_whole(1), help="KV blocks; sized from memory unless given")
    engine.add_argument("--kv-cache-bytes", type=_whole(1), help="size of the KV cache without --num-blocks")
    engine.add_argument(
        "--offload-blocks",
        type=_whole(0),
        default=defaults.offload_blocks,
        help="KV blocks of preempted sequences kept in main memory",
    )
    engine.add_argument(
        "--max-num-seqs", type=_whole(1), default=defaults.max_num_seqs, help="sequences running at once"
    )
    engine.add_argument(
        "--max-num-batched-tokens",
        type=_whole(1),
        default=defaults.max_num_batched_tokens,
        help="tokens per step; fits the device unless given",
    )
    engine.add_argument(
        "--prefill-chunk",
        type=_whole(1),
        default=defaults.prefill_chunk,
        help="prompt tokens per sequence and step; fits the device unless given",
    )
    engine.add_argument("--max-waiting", type=_whole(1), default=defaults.max_waiting, help="requests that may wait")
    engine.add_argument("--policy", choices=policy_names(), default=defaults.policy, help="who goes next")
    engine.add_argument(
        "--policy-option",
        type=_option,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="of the policy; repeatable",
    )
    engine.add_argument(
        "--admission",
        choices=get_args(Admission),
        default=defaults.admission,
        help="room a newcomer's output must find",
    )
    engine.add_argument("--no-mix", action="store_true", help="keep prefill and decode in separate steps")
    engine.add_argument("--no-prefix-cache", action="store_true", help="share no KV between requests")
    return parser


def parse_arguments(argv: Sequence[str] | None = None) -> Arguments:
    """Read the command line.

    Raises:
        SystemExit: with code 2 after one line on stderr, or 0 for --help.
    """
    parser = _parser()
    given = parser.parse_args(argv)
    try:
        path = locate_model(given.model)
        policy_options = dict(given.policy_option)
        create_policy(given.policy, policy_options)
        engine = EngineOptions(
            model=path,
            dtype=given.dtype,
            device=given.device,
            threads=given.threads,
            block_size=given.block_size,
            num_blocks=given.num_blocks,
            memory_bytes=given.kv_cache_bytes,
            offload_blocks=given.offload_blocks,
            max_num_seqs=given.max_num_seqs,
            max_num_batched_tokens=given.max_num_batched_tokens,
            prefill_chunk=given.prefill_chunk,
            max_model_len=given.max_model_len,
            max_waiting=given.max_waiting,
            policy=given.policy,
            policy_options=policy_options,
            admission=given.admission,
            mix=not given.no_mix,
            prefix_cache=not given.no_prefix_cache,
        )
    except (ModelError, EngineError, PolicyError) as error:
        parser.error(str(error))
    return Arguments(
        engine=engine,
        names=tuple(given.served_model_name or _default_names(given.model, path)),
        host=given.host,
        port=given.port,
        api_key=given.api_key or os.environ.get(KEY_VARIABLE) or None,
        chat_template=given.chat_template,
        pooling=given.pooling,
        max_n=given.max_n,
        max_body_bytes=given.max_body_bytes,
        max_held_bytes=given.max_held_bytes,
        max_connections=given.max_connections,
        head_timeout_s=given.head_timeout_s,
        body_timeout_s=given.body_timeout_s,
        min_rate_bytes=given.min_rate_bytes,
        keepalive_timeout_s=given.keepalive_timeout_s,
        cors_origins=tuple(given.cors_origin),
        allowed_hosts=tuple(given.allowed_host),
        grace_s=given.grace_s,
        write_stall_s=given.write_stall_s,
        log_level=given.log_level,
    )


def _default_names(model: str, path: Path) -> list[str]:
    """Name a model after its file or directory, without the ending and the quantisation; the demo also as `demo`."""
    name = path.name.removesuffix(".gguf").partition(".Q")[0] if path.is_file() else path.resolve().name
    return [name, DEMO] if model == DEMO else [name]
