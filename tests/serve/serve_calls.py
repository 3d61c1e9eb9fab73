"""A plain HTTP client: what a server answers, decoded."""

import json
import urllib.error
import urllib.request


def call(url, path, body=None, raw=None):
    """Status and decoded answer."""
    data = raw if raw is not None else None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        url + path, data=data, headers={"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def post(url, path, body):
    """The answer of a call that must succeed."""
    status, answer = call(url, path, body)
    assert status == 200, answer
    return answer


def stream(url, path, body, last="data: [DONE]"):
    """Events of a streamed answer, decoded, `last` left out, which must come last; None for a
    stream that breaks off."""
    data = json.dumps(body | {"stream": True}).encode()
    request = urllib.request.Request(
        url + path, data=data, headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        lines = [line.decode().strip() for line in answer if line.strip()]
    if last is not None:
        assert lines.pop() == last
    return [json.loads(line.removeprefix("data: ")) for line in lines]
