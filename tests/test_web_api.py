"""REST on a real broker with real coordinators and workers: what is asked, what is commanded, what stays and what is
hidden, while leaders die."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from events.embedded import EmbeddedBroker
from tests.logs import until
from tests.scenes import Scene, a_scene, numbers
from tests.web import SEND, Web, a_web, told

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def scene(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with a_scene(broker.bootstrap_servers, tmp_path_factory.mktemp("web"), shards=2, judged=False) as made:
        yield made


@pytest.fixture(scope="module")
def web(scene: Scene) -> Iterator[Web]:
    with a_web(scene.cluster, scene.fleet.directory) as made:
        yield made


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """A name of the test's own."""
    return str(request.node.name).removeprefix("test_")[:40]


def running(web: Web, scene: Scene, job: str, rows: int = -1, **env: Any) -> Any:
    outcome = web.submit(job, scene.body(job, numbers("in", rows, parallelism=2, rate=500), **env))
    assert outcome["state"] == "ACCEPTED", outcome
    return web.until_job(job, "RUNNING")


def canceled(web: Web, job: str) -> None:
    assert web.outcome(web.send(job, {"type": "cancel"}))["state"] == "ACCEPTED"
    web.until_job(job, "CANCELED")


def test_reads_wait_for_a_write(web: Web, scene: Scene, job: str) -> None:
    body = scene.body(job, numbers("in", 10))
    sent = web.client.post(
        f"/api/v1/jobs/{job}/commands",
        json={"action": {"type": "submit", "specification": json.loads(body)}, "id": "mine", "by": "anna"},
        headers=SEND,
    ).json()
    assert sent["after"] == f"{sent['shard']}:{sent['offset']}"
    assert web.get(f"/jobs/{job}", after=sent["after"])["job"]["id"] == job, "at once, without asking again"
    assert [each["id"] for each in web.get("/jobs", search=job, after=sent["after"])["items"]] == [job]
    outcome = web.outcome(sent)
    assert (outcome["state"], outcome["action"], outcome["id"]) == ("ACCEPTED", "Submit", "mine")
    assert outcome["by"] == "anna from 127.0.0.1", "who sent it is on the log"
    web.until_job(job, "FINISHED")


def test_a_job_with_all_that_belongs_to_it(web: Web, scene: Scene, job: str) -> None:
    running(web, scene, job)
    until(lambda: web.get(f"/jobs/{job}")["job"]["lastCheckpointId"], "a checkpoint")
    found = web.get(f"/jobs/{job}")
    line = found["job"]
    assert (line["state"], line["health"], line["mode"], line["tasks"]) == (
        "RUNNING",
        "HEALTHY",
        "BATCH",
        {"RUNNING": 2},
    )
    assert line["lastCheckpointTime"] > line["startedAt"] > 0
    assert line["secondsSinceLastCheckpoint"] >= 0
    assert line["lastCheckpointSize"] > 0
    assert [(step["name"], step["role"]) for step in found["graph"]] == [("in", "source"), ("out", "sink")]
    (pipeline,) = web.get(f"/jobs/{job}/pipelines")["items"]
    assert pipeline["lastCheckpointId"] >= 1
    assert pipeline["newest"]["durationMs"] is None or pipeline["newest"]["durationMs"] >= 0
    tasks = web.get(f"/jobs/{job}/tasks")
    assert [(task["state"], task["worker"], task["attempt"]) for task in tasks["items"]] == [("RUNNING", "w0", 1)] * 2
    assert web.get(f"/jobs/{job}/tasks", start=1, limit=1)["items"] == tasks["items"][1:] or tasks["total"] == 2
    until(lambda: web.get("/overview")["rowsPerSecond"] > 0, "rows")
    canceled(web, job)


def test_T5_ended_jobs_are_not_among_those_that_run(web: Web, scene: Scene, job: str) -> None:
    running(web, scene, job)
    assert job in names(web, state="running")
    assert job not in names(web, state="ended")
    canceled(web, job)
    assert job not in names(web, state="running")
    assert job not in names(web, state="RUNNING")
    assert job in names(web, state=["CANCELED", "FINISHED"])
    ended = web.get(f"/jobs/{job}")["job"]
    assert ended["isEnded"]
    assert ended["freeAt"] > ended["endedAt"], "its id is taken until it is cleaned up"
    counts = web.get("/jobs", limit=0)["counts"]
    metrics = web.client.get("/metrics").text
    assert f'detent_jobs{{state="CANCELED"}} {counts["CANCELED"]:.1f}' in metrics
    again = web.outcome(web.send(job, {"type": "pause"}))
    assert again["state"] == "REFUSED"
    assert "CANCELED" in again["reason"]


def test_a_job_is_explained(web: Web, scene: Scene, job: str) -> None:
    running(web, scene, job)
    said = web.get(f"/jobs/{job}/explain")
    assert said["state"] == "RUNNING"
    assert said["why"][0].startswith("It is RUNNING because all its tasks have been running since")
    then = said["at"]
    canceled(web, job)
    said = web.get(f"/jobs/{job}/explain")
    assert said["headline"].startswith(f"Job {job} (incarnation ")
    assert "was asked for by" in said["why"][1]
    assert [moment["kind"] for moment in said["story"]][-1] == "end"
    assert web.get(f"/jobs/{job}/explain", at=then)["state"] == "RUNNING", "as it was"
    assert web.problem("/jobs/nobody/explain")[0] == 404


def names(web: Web, **query: Any) -> list[str]:
    return [each["id"] for each in web.get("/jobs", limit=1000, **query)["items"]]


def test_lists_are_paged(web: Web, scene: Scene, job: str) -> None:
    for number in range(3):
        web.submit(f"{job}-{number}", scene.body(f"{job}-{number}", numbers("in", 1)))
    whole = web.get("/jobs", search=job)
    assert (whole["total"], len(whole["items"])) == (3, 3)
    part = web.get("/jobs", search=job, start=1, limit=1)
    assert (part["total"], part["start"]) == (3, 1)
    assert part["items"][0]["id"] == whole["items"][1]["id"]
    assert web.get("/jobs", search=job, start=99)["items"] == []


def test_commands_that_can_not_be(web: Web, scene: Scene, job: str) -> None:
    def refused(content: Any, headers: dict[str, str] = SEND) -> tuple[int, str]:
        return told(web.client.post(f"/api/v1/jobs/{job}/commands", json=content, headers=headers))

    assert refused({"action": {"type": "dance"}})[0] == 422
    assert "unknown field" in refused({"action": {"type": "cancel", "force": True}})[1]
    status, detail = refused({"action": {"type": "submit", "specification": {"source": [], "sink": []}}})
    assert (status, "source is empty" in detail) == (422, True)
    assert refused({"action": {"type": "cancel"}}, {})[0] == 403
    assert refused({"action": {"type": "cancel"}}, SEND | {"origin": "https://evil.example"})[0] == 403
    assert told(web.client.post(f"/api/v1/jobs/{job}/commands", content=b"x=1", headers=SEND))[0] == 415
    json_type = SEND | {"content-type": "application/json"}
    large = web.client.post(f"/api/v1/jobs/{job}/commands", content=b" " * 3_000_000, headers=json_type)
    assert told(large)[0] == 413
    unheard = web.outcome(web.send(job, {"type": "cancel"}))
    assert (unheard["state"], unheard["reason"]) == ("REFUSED", f"there is no job {job}")
    assert web.get(f"/jobs/{job}/commands/never-sent")["state"] == "PENDING"


def test_errors_are_problems(web: Web) -> None:
    assert web.problem("/jobs/nobody")[0] == 404
    assert web.problem("/jobs", limit=-1)[0] == 422
    assert web.problem("/jobs", state="SLEEPY")[0] == 422
    assert web.problem("/jobs", at="yesterday")[0] == 422
    assert web.problem("/jobs", after="0:1", at="5")[0] == 422
    assert web.problem("/jobs", after="77:1")[0] == 422
    assert web.problem("/nothing/here")[0] == 404
    assert told(web.client.delete("/api/v1/jobs"))[0] in (403, 405, 415)
    assert told(web.client.get("/api/v1/jobs", headers={"host": "evil.example"}))[0] == 421
    assert web.problem("/jobs", after="0:999999999", waitMs=10) == (
        503, "the command at 0:999999999 was not decided on within 10 ms; ask again")  # fmt: skip


def test_odd_names_are_names(web: Web, scene: Scene) -> None:
    for name in ("a/b", "ä ö", "100%", "q?x=1#f", "..x", "a%2Fb"):
        quoted = quote(name, safe="")
        sent = web.send(quoted, {"type": "submit", "specification": json.loads(scene.body("odd", numbers("in", 1)))})
        assert sent["job"] == name
        assert web.get(f"/jobs/{quoted}", after=sent["after"])["job"]["id"] == name


def test_secrets_are_not_shown(web: Web, scene: Scene, job: str) -> None:
    body = scene.body(job, numbers("in", -1, password="hush-hush", token="${env:A_TOKEN}"))
    web.submit(job, body)
    for path in (f"/jobs/{job}", f"/jobs/{job}/tasks", "/jobs", f"/jobs/{job}/commands"):
        assert "hush-hush" not in str(web.get(path))
    shown = web.get(f"/jobs/{job}")["specification"]["source"][0]["options"]
    assert (shown["password"], shown["token"]) == ("********", "${env:A_TOKEN}")
    web.send(job, {"type": "cancel"})


def test_B8_every_transition_can_be_had(web: Web, scene: Scene, job: str) -> None:
    running(web, scene, job)
    canceled(web, job)
    found = web.get(f"/jobs/{job}/history", order="oldest", limit=1000)
    assert found["total"] == len(found["items"])
    assert all({"from", "to", "cause", "time", "offset", "epoch", "attempt"} <= set(each) for each in found["items"])
    states = [(each["from"], each["to"]) for each in found["items"] if each["kind"] == "job"]
    wanted = ["", "CREATED", "SCHEDULED", "RUNNING", "CANCELLING", "CANCELED"]
    assert states == list(pairwise(wanted))
    offsets = [each["offset"] for each in found["items"]]
    assert offsets == sorted(offsets)
    jobs = web.get(f"/jobs/{job}/history", kind="job", limit=2)
    assert [each["to"] for each in jobs["items"]] == ["CANCELED", "CANCELLING"]
    assert jobs["items"][1]["cause"]["topic"] == "commands"
    assert web.problem("/jobs/nobody/history")[0] == 404


def test_the_state_as_it_was(web: Web, scene: Scene, job: str) -> None:
    running(web, scene, job)
    until(lambda: web.get(f"/jobs/{job}")["job"]["lastCheckpointId"], "a checkpoint")
    canceled(web, job)
    line = web.get(f"/jobs/{job}")["job"]
    steps = web.get(f"/jobs/{job}/history", kind="job", order="oldest")["items"]
    for step in steps:
        then = web.get(f"/jobs/{job}", at=f"{step['shard']}:{step['offset']}")
        assert then["job"]["state"] == last_of(steps, step["offset"]), "with its whole transaction, and no further"
    between = (line["startedAt"] + line["endedAt"]) // 2
    assert web.get(f"/jobs/{job}", at=between)["job"]["state"] in ("RUNNING", "CANCELLING")
    iso = datetime.fromtimestamp(line["endedAt"] / 1000 + 1, UTC).isoformat()
    assert web.get(f"/jobs/{job}", at=iso)["job"]["state"] == "CANCELED"
    assert job in names(web, state="running", at=between)
    assert job not in names(web, state="running")
    whole = web.get(f"/jobs/{job}/history", limit=1000)["total"]
    part = web.get(f"/jobs/{job}/history", limit=1000, at=between)
    assert 0 < part["total"] < whole
    assert all(each["time"] <= between for each in part["items"])
    assert len(web.get("/cluster", at=between)["shards"]) == 2
    assert web.get("/overview", at=between)["shards"] == 2
    assert web.problem(f"/jobs/{job}", at=steps[0]["time"] - 1)[0] in (404, 409)
    assert web.problem("/jobs", at="1970-01-02")[0] == 409
    assert web.problem("/jobs", at="0:99999999")[0] == 409
    assert web.problem("/jobs", at="9:0")[0] == 409
    assert web.get("/jobs", at=line["endedAt"] + 3_600_000)["total"] > 0, "a time to come is now"


def last_of(steps: list[dict[str, Any]], offset: int) -> Any:
    """The last state of the transaction that an offset belongs to: steps of one transaction have one time."""
    time = next(step["time"] for step in steps if step["offset"] == offset)
    return [step["to"] for step in steps if step["time"] == time][-1]


def test_Z2_checkpoints_with_sizes_and_durations(web: Web, scene: Scene, job: str) -> None:
    running(web, scene, job)
    until(lambda: web.get(f"/jobs/{job}/checkpoints")["total"] >= 3, "checkpoints")
    canceled(web, job)
    found = web.get(f"/jobs/{job}/checkpoints")["items"]
    ids = [each["id"] for each in found]
    assert ids == sorted(ids, reverse=True)
    committed = [each for each in found if each["state"] == "COMMITTED"]
    assert all(each["durationMs"] >= 0 and each["committedAt"] >= each["triggeredAt"] for each in committed)
    assert sum(each["rows"] for each in committed) == web.get(f"/jobs/{job}")["job"]["rowsPublished"]
    assert sum(each["size"] for each in committed) > 0


def test_it_explains(web: Web, scene: Scene, job: str) -> None:
    missing = {"name": "in", "kind": "no-such-kind"}
    web.submit(job, scene.body(job, missing))
    web.until_job(job, "FAILED")
    said = web.get(f"/jobs/{job}/explain", utcOffset=60)
    assert said["state"] == "FAILED"
    assert "no-such-kind" in said["headline"]
    assert any("no-such-kind" in each for each in said["why"])
    assert any("web from 127.0.0.1" in each["text"] for each in said["story"]), "who sent it"
    assert web.problem("/jobs/nobody/explain")[0] == 404


def test_the_timeline(web: Web, scene: Scene, job: str) -> None:
    running(web, scene, job)
    canceled(web, job)
    line = web.get(f"/jobs/{job}")["job"]
    found = web.get("/timeline", buckets=10)
    assert found["from"] < line["submittedAt"] < line["endedAt"] <= found["to"]
    assert len(found["buckets"]) == 10
    assert sum(found["buckets"]) > 5
    assert {"takeover"} <= {mark["kind"] for mark in found["marks"]}
    assert [mark["at"] for mark in found["marks"]] == sorted(mark["at"] for mark in found["marks"])


def test_who_is_there(web: Web, scene: Scene) -> None:
    until(lambda: web.get("/overview")["shardsLed"] == 2, "a leader of each shard, though they are handed over")
    cluster = web.get("/cluster")
    assert {shard["leader"] for shard in cluster["shards"]} <= {*scene.coordinators, ""}
    assert all(shard["epoch"] for shard in cluster["shards"])
    assert {each["id"] for each in cluster["coordinators"]} >= {"c0", "c1"}
    assert [(worker["id"], worker["state"], worker["slots"]) for worker in cluster["workers"]] == [("w0", "HEARD", 16)]
    assert web.get("/workers")["items"][0]["id"] == "w0"
    assert len(web.get("/shards")["items"]) == 2
    overview = web.get("/overview")
    assert (overview["shards"], overview["workers"], overview["slots"]) == (2, 1, 16)


def test_live_views_go_on_when_the_leader_dies(web: Web, scene: Scene, job: str) -> None:
    running(web, scene, job)
    shard = web.get(f"/jobs/{job}")["job"]["shard"]
    with web.live(view="job", job=job) as live, web.live() as overview:
        assert live.until(lambda event, _: event == "hello", "hello")["role"] == "operate"
        live.until(lambda event, data: event == "job" and data["job"]["lastCheckpointId"], "a checkpoint")
        takeover = scene.kill_leader(shard)
        since, before = len(live.heard), web.get(f"/jobs/{job}")["job"]["lastCheckpointId"]
        live.until(lambda e, d: e == "job" and d["job"]["lastCheckpointId"] > before, "checkpoints after that", since)
        overview.until(lambda event, data: event == "changed" and job in data["jobs"], "the overview to hear of it")
        newest = web.get("/cluster")["shards"][shard]
        assert (newest["epoch"], newest["leader"]) == (takeover.epoch, takeover.by)
        last = newest["takeovers"][-1]
        assert (last["epoch"], last["leader"]) == (takeover.epoch, takeover.by)
        assert last["totalMs"] >= last["fenceMs"] >= 0, "the split of its time"
        assert not any(event == "ended" for event, _ in live.heard), "the connection was never interrupted"
    canceled(web, job)


def test_roles(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "operate").write_text("operate-0123456789abcdef\n")
    (tmp_path / "read").write_text("read-only-0123456789abcdef\n")
    tokens = {"web__token_file": tmp_path / "operate", "web__read_token_file": tmp_path / "read"}
    with a_web(scene.cluster, tmp_path, web__host="0.0.0.0", **tokens) as web:
        port = web.child.address.rpartition(":")[2]
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as nobody:
            assert told(nobody.get("/api/v1/jobs"))[0] == 401
            assert told(nobody.get("/metrics"))[0] == 401
            assert nobody.get("/").status_code == nobody.get("/healthz").status_code == 200
        looks = {"authorization": "Bearer read-only-0123456789abcdef"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", headers=looks) as reader:
            assert reader.get("/api/v1/jobs").status_code == 200
            assert told(reader.post("/api/v1/jobs/x/commands", json={"action": {"type": "cancel"}}))[0] == 403
        sent = web.client.post("/api/v1/jobs/nobody/commands", json={"action": {"type": "cancel"}})
        assert sent.status_code == 202, "a token needs no other header"
        said = web.child.said() + web.client.get("/metrics").text
        assert "0123456789abcdef" not in said, "tokens are in no log and no metric"


def test_it_does_not_start_open_to_the_world(scene: Scene, tmp_path: Path) -> None:
    open_to_all = a_web(scene.cluster, tmp_path, web__host="0.0.0.0")
    with pytest.raises(AssertionError, match=r"web\.host is 0\.0\.0\.0"), open_to_all:
        pass


def test_pages_may_only_do_what_ours_do(web: Web) -> None:
    page = web.client.get("/")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "unsafe" not in page.headers["content-security-policy"]
    assert page.headers["x-content-type-options"] == "nosniff"
    assert web.client.get("/api/v1/jobs").headers["cache-control"] == "no-store"
    for file in ("js/main.js", "css/base.css", "mark.svg"):
        found = web.client.get(f"/static/{file}")
        assert found.status_code == 200
        assert web.client.get(f"/static/{file}", headers={"if-none-match": found.headers["etag"]}).status_code == 304
    assert told(web.client.get("/static/../app.py"))[0] == 404
    assert told(web.client.get("/static/%2e%2e/app.py"))[0] == 404


def test_the_page_asks_nobody_else() -> None:
    """No address of another host is in what the page loads."""
    static = Path(__file__).parent.parent / "coordinator/web/static"
    for file in static.rglob("*"):
        if file.suffix in (".js", ".css", ".html", ".svg"):
            text = file.read_text().replace("http://www.w3.org/2000/svg", "")
            assert "http:" not in text, file
            assert "https:" not in text, file
