"""Job files: what is wrong with one is said with file, line, column and field; a good one is the builder's job; the
schema and the page are made from the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema_rs import Draft202012Validator

from coordinator.specification import plan
from detent import Job
from detent.job_files import JobFileError, parse_job, read_job
from detent.job_schema import page, schema, schema_text
from detent.jobs import JobRefused

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(ROOT.glob("examples/*.yaml"))
GOOD = """\
name: hello
env:
  parallelism: 2
source:
  - name: in
    kind: generator
    options: {rows: 10}
sink:
  - name: out
    kind: files
    from: in
    options:
      path: out
"""


def wrong(text: str, file: str = "job.yaml") -> list[str]:
    with pytest.raises(JobFileError) as caught:
        parse_job(text, file)
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("parallelism: 2", "paralelism: 2",
         "job.yaml:3:3: env.paralelism: it is not known; did you mean parallelism?"),
        ("parallelism: 2", "parallelism: two", 'job.yaml:3:16: env.parallelism: it is "two"; it may be a whole number'),
        ("parallelism: 2", "parallelism: 0", "job.yaml:3:16: env.parallelism: env.parallelism is 0; it may be 1 to"),
        ("parallelism: 2", "mode: batch", "job.yaml:3:9: env.mode: env.mode is 'batch'; it may be BATCH or STREAMING"),
        ("kind: files", "kind: file", "job.yaml:10:11: sink[0].kind: there is no kind of sink 'file'; did you mean"),
        ("from: in", "from: inn",
         "job.yaml:11:11: sink[0].from[0]: step 'out' reads from 'inn', which is not there; did you mean in?"),
        ("path: out", "paht: out", "job.yaml:13:7: sink[0].options.paht: it is not known; did you mean path?"),
        ("path: out", "path: ''", "job.yaml:13:13: sink[0].options.path: it can't be used: Expected `str`"),
        ("path: out", "path: [out]", "job.yaml:13:13: sink[0].options.path: it is a list; it may be text"),
        ("    from: in\n", "", "job.yaml:9:5: sink[0]: step 'out' has no `from`"),
        ("rows: 10", "rows: -2", "job.yaml:7:21: source[0].options.rows: it can't be used: Expected `int` >= -1"),
        ("rows: 10", "rows: 10, rows: 11", "job.yaml:7:25: the file: it has `rows` twice; the first is on line 7"),
        ("sink:", "snik:", "job.yaml:8:1: snik: it is not known; did you mean sink?"),
        ("name: hello", "name: 7", "job.yaml:1:7: name: it is no text"),
        ("  - name: in", "  - naem: in", "job.yaml:5:5: source[0].naem: it is not known; did you mean name?"),
        ("rows: 10}", "rows: 10", "job.yaml:8:5: the file: it is no YAML"),
        ("rows: 10", "rows: .inf", "job.yaml:7:21: the file: it has the number .inf"),
        ("rows: 10", "rows: !!python/name:os.system 1", "job.yaml:7:21: the file: it has the tag"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_pointed_at(before: str, after: str, says: str) -> None:
    assert before in GOOD
    found = wrong(GOOD.replace(before, after, 1))
    assert any(problem.startswith(says) for problem in found), found


def test_everything_that_is_wrong_is_told_at_once_in_the_order_of_lines() -> None:
    text = GOOD.replace("parallelism", "paralelism").replace("kind: gen", "kind: jen").replace("path:", "pth:")
    lines = [int(problem.split(":")[1]) for problem in wrong(text)]
    assert lines == [3, 6, 13, 13]


@pytest.mark.parametrize("text", ["", "[]", "just words", "{}", "&a [*a]", "? [1]\n: 2"])
def test_what_is_no_job_at_all(text: str) -> None:
    assert wrong(text)


def test_a_few_lines_can_not_fill_the_memory() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n"
    bomb += "".join(f"{b}: &{b} [{','.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefg", "bcdefgh", strict=True))
    assert "more than 200,000 values" in wrong(bomb)[0]


def test_scalars_stay_what_was_written() -> None:
    text = GOOD.replace("rows: 10", "rows: 10, columns: {on: 2024-01-01, no: '1'}")
    assert parse_job(text, "job.yaml").value["source"][0]["options"]["columns"] == {"on": "2024-01-01", "no": "1"}


def test_json_is_read_as_json_and_pointed_at_as_well() -> None:
    value = parse_job(GOOD, "job.yaml").value
    text = json.dumps(value, indent="\t")
    assert parse_job(text, "job.json").value == value
    assert parse_job(text, "dir/job.json").name == "job"
    assert wrong(text.replace("rows", "rwos"), "job.json")[0].startswith("job.json:10:5: source[0].options.rwos")
    assert wrong(text.replace("10", "010", 1), "job.json")[0].startswith("job.json:10:14: the file: it is no JSON")


def test_a_secret_that_is_written_out_is_refused_before_it_is_on_the_log() -> None:
    source = {"kind": "kafka", "options": {"topics": ["t"], "properties": {"sasl.password": "swordfish"}}}
    value = {"source": [{"name": "in", **source}], "sink": [{"name": "o", "kind": "console", "from": "in"}]}
    (problem,) = wrong(json.dumps(value), "job.json")
    assert "source[0].options.properties.sasl.password: it looks like a secret" in problem
    assert "swordfish" not in problem
    fine = json.dumps(value).replace('"swordfish"', '{"secret": "env:KAFKA_PASSWORD"}')
    assert parse_job(fine, "job.json")


def test_the_builder_makes_the_same_job() -> None:
    built = Job("hello").env(parallelism=2).source("in", "generator", rows=10).sink("out", "files", path="out")
    read = parse_job(GOOD, "job.yaml")
    assert (built.name, json.loads(built.body)) == (read.name, read.value)
    assert Job.from_text(built.to_yaml()).body == built.body
    assert plan(built.body).tasks == (2,)


def test_the_builder_takes_what_nobody_takes_yet() -> None:
    job = Job("j").source("a", "generator").source("b", "generator").transform("t", "sql", query="select 1")
    job = job.sink("x", "files", path="x").sink("y", "files", path="y").sink("z", "files", from_="a", path="z")
    assert [step["from"] for _, step in job.steps if "from" in step] == [["a", "b"], ["t"], ["t"], ["a"]]


def test_the_builder_says_what_is_wrong() -> None:
    with pytest.raises(JobRefused, match=r"sink\[0\].options.paht: it is not known; did you mean path\?") as caught:
        Job("j").source("a", "generator").sink("x", "files", paht="x").body  # noqa: B018
    assert "`path`" in caught.value.reasons[1]


def test_there_are_examples() -> None:
    assert ROOT / "examples/hello.yaml" in EXAMPLES


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_jobs(path: Path) -> None:
    job = read_job(path)
    plan(job.body)
    Draft202012Validator(schema()).validate(job.value | {"name": job.name})


def errors(value: Any) -> list[list[str | int]]:
    return [error.instance_path for error in Draft202012Validator(schema()).iter_errors(value)]


def test_the_schema_sees_what_the_checks_see() -> None:
    value = parse_job(GOOD, "job.yaml").value
    assert errors(value) == []
    assert errors(value | {"env": {"parallelism": 0}}) == [["env", "parallelism"]]
    assert errors(value | {"source": []}) == [["source"]]
    assert errors(value | {"snik": []}) == [[]]
    sink = value["sink"][0]
    assert errors(value | {"sink": [sink | {"options": {"paht": "x"}}]})
    assert errors(value | {"sink": [sink | {"kind": "nowhere"}]})
    assert errors(value | {"sink": [sink | {"from": []}]})


def test_what_is_made_from_the_model_is_current() -> None:
    """`make docs` writes them anew."""
    assert (ROOT / "schemas/job.schema.json").read_text() == schema_text()
    assert (ROOT / "docs/jobs.md").read_text() == page()
