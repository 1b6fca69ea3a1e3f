"""What the client scripts share: run every call against every URL, and print what came of it.

Standard library only, and imported by its plain name: it runs where Trimtab is not installed.
"""

import json
import re
import sys


def plainly(value):
    """Turn what a client gives into JSON: models dumped, arrays listed, the rest as text."""
    if hasattr(value, "model_dump"):
        return plainly(value.model_dump())
    if hasattr(value, "tolist"):
        return plainly(value.tolist())
    if isinstance(value, dict):
        return {str(key): plainly(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plainly(inner) for inner in value]
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def failure(error):
    """What a caller sees of an error: its class, its status, its body."""
    seen = {"error": type(error).__name__, "status": None, "body": None}
    for holder in (error, getattr(error, "response", None)):
        code = getattr(holder, "status_code", None)
        seen["status"] = code if seen["status"] is None else seen["status"]
    status = getattr(error, "status", None)  # tritonclient: a method
    if callable(status):
        seen["status"] = plainly(status())
    # huggingface_hub puts the request's id into its message where the answer has one, and Trimtab always adds one.
    seen["body"] = plainly(getattr(error, "body", None)) or re.sub(r" \(Request ID: [^)]*\)", "", str(error))
    return seen


def run(make, calls):
    """Call each of `calls` with what `make(url)` gives, for each URL on the command line."""
    model, urls = sys.argv[1], sys.argv[2:]
    results = []
    for url in urls:
        client, result = make(url), {}
        for name, call in calls.items():
            try:
                result[name] = plainly(call(client, model))
            except Exception as error:  # an error is a result like any other
                text = json.dumps(failure(error))
                result[name] = json.loads(text.replace(url.rpartition("/")[2], "HOST"))
        results.append(result)
    print(json.dumps(results))
