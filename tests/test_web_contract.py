"""The OpenAPI document is right: requests that are made from it, by a seed, are answered as it says. Over a story, in
this process."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from zlib import crc32

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import (
    CheckContext,
    content_type_conformance,
    not_a_server_error,
    response_schema_conformance,
    status_code_conformance,
)
from schemathesis.core.transport import Response

from coordinator.web.guard import Guard
from events.records import Cancel, Repair, Restore, Submit, TaskPosition
from tests.shard import specification
from tests.test_past import story
from tests.web import SEND
from tests.web_in_hand import WindowInHand, an_app

EXAMPLES = 8
REQUEST = ("method", "url", "headers", "params", "data", "json", "files", "cookies")
JOB = "a"  # of the story


def ask(app: Any, method: str, path: str, **options: Any) -> httpx.Response:
    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **options)

    return asyncio.run(asked())


APP, _ = an_app(story("R1")[1])
schema = schemathesis.openapi.from_dict(ask(APP, "GET", "/api/v1/openapi.json").json())


@pytest.fixture
def app() -> Any:
    return APP


@schema.exclude(path="/api/v1/live").parametrize()
@settings(
    max_examples=EXAMPLES, derandomize=True, deadline=None, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_answers_are_as_the_document_says(case: Any) -> None:
    if "job" in case.path_parameters and crc32(str(case.query).encode()) % 2:
        case.path_parameters["job"] = JOB  # every other time one that is there
    given = case.as_transport_kwargs(base_url="http://localhost", headers=SEND)
    sent = requests.Request(**{name: value for name, value in given.items() if name in REQUEST}).prepare()
    body = sent.body.encode() if isinstance(sent.body, str) else sent.body
    answer = ask(APP, sent.method, sent.url, headers=dict(sent.headers), content=body)
    case.validate_response(answer, checks=CHECKS)


def not_a_server_error_but_503(ctx: CheckContext, response: Response, case: Any) -> bool | None:
    """A write that is not decided on in time is 503, and says so."""
    return None if response.status_code == 503 else not_a_server_error(ctx, response, case)


CHECKS = [not_a_server_error_but_503, status_code_conformance, content_type_conformance, response_schema_conformance]


def test_the_document_names_every_address(app: Any) -> None:
    document = ask(app, "GET", "/api/v1/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    paths = set(document["paths"])
    assert {"/api/v1/jobs", "/api/v1/jobs/{job}", "/api/v1/live", "/api/v1/timeline"} <= paths
    shapes = document["components"]["schemas"]
    assert {"lastCheckpointTime", "secondsSinceLastCheckpoint", "lastCheckpointSize"} <= set(
        shapes["JobView"]["properties"]
    )
    assert "HTTPValidationError" not in shapes
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (path, method)
            assert "application/problem+json" in operation["responses"]["422"]["content"]


@pytest.mark.parametrize(
    "path",
    ["jobs", "jobs?state=ended&search=a", "jobs/a", "jobs/a/pipelines", "jobs/a/tasks", "jobs/a/history?limit=5",
     "jobs/a/checkpoints", "jobs/a/commands", "overview", "cluster", "shards", "workers", "timeline?buckets=7",
     "jobs/a?at=0:30", "jobs?at=0:3", "cluster?at=0:10", "jobs/a/history?at=0:30", "jobs/a/explain"],
)  # fmt: skip
def test_every_address_answers(app: Any, path: str) -> None:
    answer = ask(app, "GET", f"/api/v1/{path}")
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "path", ["/api/v1/jobs", "/api/v1/jobs?start=0&limit=1", "/api/v1/jobs?limit=0", f"/api/v1/jobs/{JOB}"]
)
def test_what_is_asked_most_is_answered_as_the_framework_would(app: Any, path: str) -> None:
    quick = ask(app, "GET", path)
    framed = ask(
        app, "GET", f"{path}{'&' if '?' in path else '?'}waitMs=1"
    )  # which makes no difference, but is handed on
    assert (quick.status_code, quick.content, quick.headers) == (200, framed.content, framed.headers)


@pytest.mark.parametrize("asked", ["limit=1001", "start=-1", "start=", "limit=x", "state=none", "at=0:0&after=0:0"])
def test_what_is_wrong_with_a_page_is_told(app: Any, asked: str) -> None:
    assert ask(app, "GET", f"/api/v1/jobs?{asked}").status_code == 422
    assert ask(app, "GET", "/api/v1/jobs/no-such-job").status_code == 404


def test_commands_as_they_go_on_the_log() -> None:
    app, window = an_app(story("R1")[1])
    body = json.loads(specification(2))
    sent = [
        ({"type": "submit", "specification": body}, Submit),
        ({"type": "cancel", "reason": "why"}, Cancel),
        ({"type": "repair", "entity": "job/a", "to": "FAILED", "reason": "stuck"}, Repair),
        ({"type": "restore", "elsewhere": [{"pipeline": 0, "task": 1, "position": "7"}]}, Restore),
    ]
    for action, _ in sent:
        answer = ask(app, "POST", "/api/v1/jobs/a/commands", json={"action": action, "by": "anna"}, headers=SEND)
        assert answer.status_code == 202, answer.text
    assert [type(command.action) for command in window.commands] == [kind for _, kind in sent]
    first, last = window.commands[0], window.commands[-1]
    assert json.loads(first.action.specification) == body  # type: ignore[union-attr]
    assert (first.job, first.by[:5], first.time > 0) == ("a", "anna ", True)
    assert last.action.elsewhere == (TaskPosition(pipeline=0, task=1, position=b"7"),)  # type: ignore[union-attr]


def test_nobody_gets_past_the_guard_by_way_of_an_error() -> None:
    app, window = an_app(story("R1")[1], Guard("0.0.0.0", operate_token="operate-0123456789abcdef"))
    assert isinstance(window, WindowInHand)
    asked = ["GET /api/v1/jobs", "POST /api/v1/jobs/a/commands", "GET /api/v1/openapi.json", "GET /metrics",
             "GET /readyz", "GET /nothing", "DELETE /api/v1/jobs/a"]  # fmt: skip
    for method, path in map(str.split, asked):
        answer = ask(app, method, path)
        assert answer.status_code == 401, (method, path)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["www-authenticate"] == "Bearer"
    assert not window.commands
