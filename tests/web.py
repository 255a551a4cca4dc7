"""`detent web` as a process, and asking it: for tests, next to a scene's coordinators and workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from bench.fleet import Child
from events.cluster import Cluster
from tests.logs import until

SEND = {"x-detent-request": "1"}


@dataclass
class Web:
    child: Child
    client: httpx.Client

    @property
    def base(self) -> str:
        return f"http://{self.child.address}"

    def get(self, path: str, **query: Any) -> Any:
        """What is answered, which must be what was asked for."""
        answer = self.client.get(f"/api/v1{path}", params={k: v for k, v in query.items() if v is not None})
        assert answer.status_code == 200, f"{path}: {answer.status_code} {answer.text}"
        return answer.json()

    def problem(self, path: str, **query: Any) -> tuple[int, str]:
        """Status and detail of an error, which must be a problem."""
        return told(self.client.get(f"/api/v1{path}", params=query))

    def send(self, job: str, action: dict[str, Any], **more: Any) -> dict[str, Any]:
        answer = self.client.post(f"/api/v1/jobs/{job}/commands", json={"action": action} | more, headers=SEND)
        assert answer.status_code == 202, answer.text
        sent: dict[str, Any] = answer.json()
        return sent

    def outcome(self, sent: dict[str, Any]) -> dict[str, Any]:
        """Of a command that was sent, waited for."""
        found: dict[str, Any] = self.get(f"/jobs/{sent['job']}/commands/{sent['id']}", after=sent["after"])
        return found

    def submit(self, job: str, body: str) -> dict[str, Any]:
        return self.outcome(self.send(job, {"type": "submit", "specification": json.loads(body)}))

    def until_job(self, job: str, *states: str) -> Any:
        def there() -> Any:
            found = self.client.get(f"/api/v1/jobs/{job}").json()
            return found if found.get("job", {}).get("state") in states else None

        return until(there, f"{job} to be {' or '.join(states)}")

    def live(self, **query: str) -> Live:
        return Live(self.base, query)


def told(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    assert problem["status"] == answer.status_code
    assert problem["title"]
    assert problem["type"].startswith("docs/rest.md#")
    return answer.status_code, problem["detail"]


@dataclass
class Live:
    """A live connection, read in a thread."""

    base: str
    query: dict[str, str]
    heard: list[tuple[str, Any]] = field(default_factory=list)

    def __enter__(self) -> Live:
        self._client = httpx.Client(timeout=httpx.Timeout(10, read=60))
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._thread.join(10)

    def _read(self) -> None:
        event = ""
        try:
            with self._client.stream("GET", f"{self.base}/api/v1/live", params=self.query) as answer:
                for line in answer.iter_lines():
                    if line.startswith("event: "):
                        event = line.removeprefix("event: ")
                    elif line.startswith("data: "):
                        self.heard.append((event, json.loads(line.removeprefix("data: "))))
        except (httpx.HTTPError, OSError, RuntimeError):
            self.heard.append(("ended", None))

    def until(self, fits: Callable[[str, Any], bool], what: str, since: int = 0) -> Any:
        return until(lambda: next((d or {"": ""} for e, d in self.heard[since:] if fits(e, d)), None), what)


@contextmanager
def a_web(cluster: Cluster, directory: Path, **settings: object) -> Iterator[Web]:
    """Settings are Detent's, with `__` for a dot. It is ready when it is handed over."""
    given = {
        "kafka.bootstrap_servers": cluster.bootstrap_servers,
        "kafka.topic_prefix": cluster.prefix,
        "kafka.shards": cluster.shards,
        "state_dir": directory / "state",
        "web.port": 0,
    } | {name.replace("__", "."): value for name, value in settings.items()}
    command = [sys.executable, "-m", "detent", "web"]
    command += [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
    log = directory / f"web-{uuid.uuid4().hex[:6]}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=os.environ | {"DETENT_CONFIG": ""})
    child = Child("web", process, log)
    try:
        until(lambda: child.address or process.poll() is not None, "the web's address")
        assert child.alive, child.said()
        with httpx.Client(base_url=f"http://{child.address}", timeout=60) as client:
            token = settings.get("web__token_file")
            if token:
                client.headers["authorization"] = f"Bearer {Path(str(token)).read_text().strip()}"
            until(lambda: client.get("/readyz").status_code == 200, "the web to have read the log")
            yield Web(child, client)
    finally:
        if child.alive:
            process.terminate()
            process.wait(30)
