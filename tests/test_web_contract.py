"""The OpenAPI document is right: requests made from it by the thousand way, by a seed, are answered as it says."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from zlib import crc32

import pytest
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

from events.embedded import EmbeddedBroker
from tests.scenes import a_scene, numbers
from tests.web import SEND, Web, a_web

pytestmark = pytest.mark.broker
EXAMPLES = 12
# What is asked of jobs is asked of one that is there, every other time.
KNOWN = "known-job"


@pytest.fixture(scope="module")
def web(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    directory = tmp_path_factory.mktemp("contract")
    with (
        a_scene(broker.bootstrap_servers, directory, coordinators=1, judged=False) as scene,
        a_web(scene.cluster, directory) as made,
    ):
        made.submit(KNOWN, scene.body(KNOWN, numbers("in", 50)))
        made.until_job(KNOWN, "FINISHED")
        yield made


@pytest.fixture(scope="module")
def api(web: Web) -> Any:
    return schemathesis.openapi.from_url(f"{web.base}/api/v1/openapi.json")


schema = schemathesis.pytest.from_fixture("api")


@schema.exclude(path="/api/v1/live").parametrize()
@settings(
    max_examples=EXAMPLES, derandomize=True, deadline=None, phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
def test_answers_are_as_the_document_says(case: Any, web: Web) -> None:
    if "job" in case.path_parameters and crc32(str(case.query).encode()) % 2:
        case.path_parameters["job"] = KNOWN
    if "waitMs" in (case.query or {}) or "after" in (case.query or {}):
        case.query["waitMs"] = 1
    checks = [
        not_a_server_error_but_503,
        status_code_conformance,
        content_type_conformance,
        response_schema_conformance,
    ]
    case.call_and_validate(base_url=web.base, headers=SEND, checks=checks, timeout=30)


def not_a_server_error_but_503(ctx: CheckContext, response: Response, case: Any) -> bool | None:
    """A write that is not decided on in time is 503, and says so."""
    return None if response.status_code == 503 else not_a_server_error(ctx, response, case)


CHECKS = [not_a_server_error_but_503, status_code_conformance, content_type_conformance, response_schema_conformance]


def test_the_document_names_every_address(web: Web) -> None:
    document = web.client.get("/api/v1/openapi.json").json()
    assert document["openapi"].startswith("3.1")
    paths = set(document["paths"])
    assert {"/api/v1/jobs", "/api/v1/jobs/{job}", "/api/v1/live", "/api/v1/timeline"} <= paths
    shapes = document["components"]["schemas"]
    line = shapes["JobView"]["properties"]
    assert {"lastCheckpointTime", "secondsSinceLastCheckpoint", "lastCheckpointSize"} <= set(line)
    assert "HTTPValidationError" not in shapes
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            assert operation["summary"], (path, method)
            assert "application/problem+json" in operation["responses"]["422"]["content"]
