"""A wheel of this tree, installed with what it needs and nothing else, serves and answers a request."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.install.plain import CheckFailed, plain, run

START_S = 60.0


class Echo(BaseHTTPRequestHandler):
    """An upstream that answers a POST with what it was sent."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        answer = json.dumps({"sent": json.loads(body), "to": self.path}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def upstream() -> Iterator[str]:
    """Serve on loopback and yield the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Echo)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def wheel(root: Path, python: Path, folder: Path) -> Path:
    """Build the wheel of this tree as a user's pip would, and return its path."""
    run([python, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, root], root)
    (built,) = folder.glob("*.whl")
    return built


def install(root: Path, python: Path, built: Path) -> None:
    """Install the wheel and what it needs, at the versions that are tested."""
    run([python, "-m", "pip", "install", "--quiet", "-c", root / "constraints.txt", built], root)


def answers_a_request(python: Path, folder: Path) -> None:
    """Start the proxy that is installed beside the interpreter, away from the sources, and ask it once."""
    with upstream() as url:
        command = [python.parent / "trimtab", "serve", "--upstream", url, "--port", "0", "--admin-port", "0"]
        process = subprocess.Popen(
            command, cwd=folder, env=plain(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        stop = threading.Timer(START_S, process.kill)
        stop.start()
        try:
            _ask(process)
        finally:
            stop.cancel()
            process.terminate()
            process.communicate(timeout=START_S)
    if process.returncode != 0:
        raise CheckFailed(f"the proxy ended with {process.returncode} when it was told to")


def _ask(process: subprocess.Popen[str]) -> None:
    said: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if match := re.match(r"proxy +http://(127\.0\.0\.1:\d+)", line):
            break
    else:
        raise CheckFailed("the proxy did not start:\n" + "".join(said[-20:]))
    body = {"model": "m", "prompt": "Hello", "max_tokens": 1}
    request = urllib.request.Request(
        f"http://{match[1]}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        came = json.load(answer)
    if came != {"sent": body, "to": "/v1/completions"}:
        raise CheckFailed(f"the proxy answered {came}")
