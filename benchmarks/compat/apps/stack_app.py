"""One application under many HTTP servers: `stack_app.py SERVER PORT`. It says what it was sent and answers oddly.

ASGI, WSGI, and the native interfaces of tornado, aiohttp and Sanic: all make their answers from `answers`.
"""

import asyncio
import gzip
import hashlib
import json
import sys
import time

_PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 40
_EVENTS = [f"data: {number}\n\n".encode() for number in range(4)]
_LINES = [json.dumps({"token": number}).encode() + b"\n" for number in range(4)]
_TEXT = "text/plain; charset=utf-8"
_FIXED = {
    "/empty": (204, [], [b""]),
    "/created": (201, [("Location", "/v1/things/7")], [b'{"id": 7}']),
    "/moved": (307, [("Location", "/echo?a=1")], [b""]),
    "/unchanged": (304, [("ETag", '"a"')], [b""]),
    "/part": (206, [("Content-Range", "bytes 0-3/10"), ("Content-Type", "application/octet-stream")], [b"abcd"]),
    "/who": (401, [("WWW-Authenticate", 'Basic realm="x"'), ("WWW-Authenticate", "Bearer")], [b"who?"]),
    "/cookies": (200, [("Set-Cookie", "a=1; Path=/"), ("Set-Cookie", "b=2; HttpOnly")], [b"ok"]),
    "/teapot": (418, [("X-Empty", ""), ("X-Latin", "caf\xe9"), ("x-lower", "a"), ("X-Lower", "b")], [b"short"]),
    "/busy": (503, [("Retry-After", "7")], [b'{"detail": "loading"}']),
    "/limited": (429, [("Retry-After", "1"), ("x-ratelimit-remaining", "0")], [b'{"detail": "slow down"}']),
    "/image": (200, [("Content-Type", "image/png")], [_PNG]),
    "/zipped": (200, [("Content-Encoding", "gzip"), ("Vary", "Accept-Encoding")], [gzip.compress(_PNG, mtime=0)]),
    "/large": (200, [("Content-Type", "application/octet-stream")], [bytes(range(256)) * 12_000]),
    "/events": (200, [("Content-Type", "text/event-stream"), ("Cache-Control", "no-cache")], _EVENTS),
    "/lines": (200, [("Content-Type", "application/x-ndjson")], _LINES),
    "/pieces": (200, [("Content-Type", "audio/wav")], [bytes([number]) * 5000 for number in range(20)]),
    "/many-fields": (200, [(f"X-Field-{number}", "v" * 40) for number in range(60)], [b"ok"]),
    "/ready": (200, [("Content-Type", _TEXT)], [b"ready"]),
}


def answers(method, path, query, fields, body):
    """Return status, fields and pieces. Pieces of more than one are sent one by one, without a length."""
    if path in _FIXED:
        return _FIXED[path]
    if path == "/breaks":
        raise RuntimeError("as asked")
    if path == "/slow":
        time.sleep(0.05)
    kinds = ("content-type", "accept", "cookie", "x-own", "authorization", "range", "if-none-match", "te")
    seen = {
        "method": method, "path": path, "query": query, "bytes": len(body), "sha": hashlib.sha256(body).hexdigest(),
        "fields": {name: [value for key, value in fields if key == name] for name in kinds},
    }  # fmt: skip
    return 200, [("Content-Type", "application/json")], [json.dumps(seen).encode()]


def _lengths(status, fields, pieces):
    if len(pieces) == 1 and status not in (204, 304):
        return [*fields, ("Content-Length", str(len(pieces[0])))]
    return fields


async def asgi(scope, receive, send):
    """The ASGI application."""
    if scope["type"] == "lifespan":
        while True:
            step = (await receive())["type"].partition(".")[2]
            await send({"type": f"lifespan.{step}.complete"})
            if step == "shutdown":
                return
    body, more = b"", scope["path"] != "/early"
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    if scope["path"] == "/early":
        status, fields, pieces = 413, [], [b"too large"]
    else:
        seen = [(key.decode().lower(), value.decode("latin-1")) for key, value in scope["headers"]]
        raw = (scope.get("raw_path") or scope["path"].encode()).decode("latin-1").partition("?")[0]
        path = scope["path"] if scope["path"] in _FIXED else raw
        status, fields, pieces = answers(scope["method"], path, scope["query_string"].decode("latin-1"), seen, body)
    fields = [(key.encode(), value.encode("latin-1")) for key, value in _lengths(status, fields, pieces)]
    await send({"type": "http.response.start", "status": status, "headers": fields})
    for piece in pieces[:-1]:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
        await asyncio.sleep(0.003)
    await send({"type": "http.response.body", "body": pieces[-1]})
    if scope["path"] == "/breaks-behind":
        raise RuntimeError("behind the answer, as asked")


def wsgi(environ, start_response):
    """The WSGI application."""
    stream, length = environ["wsgi.input"], environ.get("CONTENT_LENGTH")
    body = stream.read(int(length)) if length else b""
    if not length and environ.get("HTTP_TRANSFER_ENCODING") and "WSGIServer" not in environ["SERVER_SOFTWARE"]:
        body = stream.read()
    seen = [(key[5:].lower().replace("_", "-"), value) for key, value in environ.items() if key.startswith("HTTP_")]
    seen += [("content-type", environ["CONTENT_TYPE"])] if environ.get("CONTENT_TYPE") else []
    path, query = environ["PATH_INFO"], environ.get("QUERY_STRING", "")
    status, fields, pieces = answers(environ["REQUEST_METHOD"], path, query, seen, body)
    fields = [field for field in _lengths(status, fields, pieces) if field[0].lower() != "connection"]
    start_response(f"{status} Said So", fields)
    return pieces


def _tornado(port):
    import tornado.ioloop
    import tornado.web

    class Any(tornado.web.RequestHandler):
        SUPPORTED_METHODS = (*tornado.web.RequestHandler.SUPPORTED_METHODS, "PURGE")

        async def _any(self, *_):
            request = self.request
            seen = [(key.lower(), value) for key, value in request.headers.get_all()]
            status, fields, pieces = answers(request.method, request.path, request.query, seen, request.body)
            self.set_status(status)
            self.clear_header("Content-Type")
            for key, value in fields:
                self.add_header(key, value)
            for piece in pieces:
                self.write(piece)
                if len(pieces) > 1:
                    await self.flush()

        get = post = put = patch = delete = options = head = purge = _any

    tornado.web.Application([(".*", Any)]).listen(port, "127.0.0.1")
    tornado.ioloop.IOLoop.current().start()


def _aiohttp(port):
    from aiohttp import web

    async def handle(request):
        body = await request.read()
        seen = [(key.lower(), value) for key, value in request.headers.items()]
        status, fields, pieces = answers(request.method, request.rel_url.raw_path, request.query_string, seen, body)
        if len(pieces) == 1:
            return web.Response(status=status, headers=fields, body=pieces[0])
        answer = web.StreamResponse(status=status, headers=fields)
        await answer.prepare(request)
        for piece in pieces:
            await answer.write(piece)
        return answer

    app = web.Application(client_max_size=1 << 26)
    app.router.add_route("*", "/{rest:.*}", handle)
    web.run_app(app, host="127.0.0.1", port=port, print=None)


def _sanic(port):
    import sanic

    app = sanic.Sanic("stack")

    @app.route("/<rest:path>", methods=["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"])
    async def handle(request, rest):
        seen = [(key.lower(), value) for key, value in request.headers.items()]
        status, fields, pieces = answers(request.method, request.path, request.query_string, seen, request.body)
        kind = next((value for key, value in fields if key == "Content-Type"), None)
        headers = [field for field in fields if field[0] != "Content-Type"]
        if len(pieces) == 1:
            return sanic.HTTPResponse(pieces[0], status, headers, kind)
        answer = await request.respond(status=status, headers=headers, content_type=kind)
        for piece in pieces:
            await answer.send(piece)
        return None

    app.run("127.0.0.1", port, single_process=True, access_log=False, motd=False)


def _granian(port, interface):
    from granian import Granian
    from granian.constants import Interfaces

    kind = Interfaces.ASGI if interface == "asgi" else Interfaces.WSGI
    Granian(f"stack_app:{interface}", "127.0.0.1", port, interface=kind, workers=1).serve()


def _uvicorn(port, http):
    import uvicorn

    uvicorn.run(asgi, host="127.0.0.1", port=port, http=http, access_log=False)


def _hypercorn(port):
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    asyncio.run(serve(asgi, config))


def _gunicorn(port, worker):
    from gunicorn.app.wsgiapp import run

    sys.argv = ["gunicorn", "-b", f"127.0.0.1:{port}", "-k", worker, "--threads", "8", "stack_app:wsgi"]
    run()


def _waitress(port):
    from waitress import serve

    serve(wsgi, host="127.0.0.1", port=port, threads=8)


def _cheroot(port):
    from cheroot.wsgi import Server

    Server(("127.0.0.1", port), wsgi).start()


def _werkzeug(port):
    from werkzeug.serving import run_simple

    run_simple("127.0.0.1", port, wsgi, threaded=True)


def _standard(port):
    """Run the standard library's own: HTTP/1.0, one request at a time."""
    from wsgiref.simple_server import make_server

    make_server("127.0.0.1", port, wsgi).serve_forever()


_RUN = {
    "uvicorn": lambda port: _uvicorn(port, "httptools"),
    "uvicorn-h11": lambda port: _uvicorn(port, "h11"),
    "hypercorn": _hypercorn,
    "granian": lambda port: _granian(port, "asgi"),
    "granian-wsgi": lambda port: _granian(port, "wsgi"),
    "gunicorn": lambda port: _gunicorn(port, "sync"),
    "gunicorn-threads": lambda port: _gunicorn(port, "gthread"),
    "waitress": _waitress,
    "cheroot": _cheroot,
    "werkzeug": _werkzeug,
    "wsgiref": _standard,
    "tornado": _tornado,
    "aiohttp": _aiohttp,
    "sanic": _sanic,
}

if __name__ == "__main__":
    _RUN[sys.argv[1]](int(sys.argv[2]))
