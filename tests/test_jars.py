"""The jars: exactly those that are listed, fetched once, found damaged when they are."""

from __future__ import annotations

import hashlib
import io
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from events import jars
from events.ivy import JarsUnavailable
from events.jars import BadJarList, CacheUnusable, Progress, WrongSum, fetch_jars, read_list

CONTENTS = {"org.one:first:1.0": b"the first", "org.two:second:2.0-beta": b"the second"}


class Repository:
    """A fetch function over contents in memory."""

    def __init__(self) -> None:
        self.contents = dict(CONTENTS)
        self.calls = 0

    def fetch(self, title: str, coordinates: Sequence[str], directory: Path, fetched: Callable[[int], None]) -> None:
        self.calls += 1
        for count, coordinate in enumerate(coordinates, start=1):
            _, name, version = coordinate.split(":")
            (directory / f"{name}-{version}.jar").write_bytes(self.contents[coordinate])
            fetched(count)


@pytest.fixture
def repository() -> Repository:
    return Repository()


@pytest.fixture
def listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DETENT_CACHE", str(tmp_path / "cache"))
    return write_list(tmp_path / "some.sha256", CONTENTS)


def write_list(path: Path, contents: dict[str, bytes]) -> Path:
    lines = [f"{hashlib.sha256(content).hexdigest()}  {coordinate}" for coordinate, content in contents.items()]
    path.write_text("\n".join(["# Some jars 1.0", *lines]) + "\n")
    return path


def leftovers(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.parent.iterdir() if entry != directory and entry.suffix != ".lock")


def test_they_are_fetched_once_and_silently_found_again(
    listing: Path, repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = fetch_jars(listing, fetch=repository.fetch)
    assert {jar.name: jar.read_bytes() for jar in directory.iterdir()} == {
        "first-1.0.jar": b"the first",
        "second-2.0-beta.jar": b"the second",
    }
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.splitlines()[0] == "fetching Some jars 1.0: 0 of 2 jars"
    assert said.err.splitlines()[-1] == "fetching Some jars 1.0: 2 of 2 jars"

    assert fetch_jars(listing, fetch=repository.fetch) == directory
    assert capsys.readouterr() == ("", "")
    assert repository.calls == 1
    assert leftovers(directory) == []


def test_a_wrong_sum_is_refused(listing: Path, repository: Repository, tmp_path: Path) -> None:
    repository.contents["org.one:first:1.0"] = b"something else"
    with pytest.raises(WrongSum) as caught:
        fetch_jars(listing, fetch=repository.fetch)
    assert caught.value.jar == "first-1.0.jar"
    assert caught.value.expected == hashlib.sha256(b"the first").hexdigest()
    assert caught.value.got == hashlib.sha256(b"something else").hexdigest()
    assert caught.value.got in str(caught.value) and caught.value.expected in str(caught.value)
    assert [entry.suffix for entry in (tmp_path / "cache" / "detent" / "jars").iterdir()] == [".lock"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda directory: (directory / "first-1.0.jar").write_bytes(b"the fir"),
        lambda directory: (directory / "first-1.0.jar").unlink(),
        lambda directory: (directory / "stranger.jar").write_bytes(b"not on the list"),
    ],
    ids=["changed", "missing", "one too many"],
)
def test_damage_is_mended_by_fetching_again(
    listing: Path, repository: Repository, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object]
) -> None:
    directory = fetch_jars(listing, fetch=repository.fetch)
    capsys.readouterr()
    archive = directory.with_name(f"{directory.name}.java.jsa")
    archive.write_bytes(b"made from the old files")
    damage(directory)
    assert fetch_jars(listing, fetch=repository.fetch) == directory
    assert repository.calls == 2
    assert "is damaged" in capsys.readouterr().err
    assert sorted(jar.read_bytes() for jar in directory.iterdir()) == [b"the first", b"the second"]
    assert leftovers(directory) == []


def test_damage_that_comes_again_is_an_error(listing: Path, repository: Repository) -> None:
    directory = fetch_jars(listing, fetch=repository.fetch)
    (directory / "first-1.0.jar").write_bytes(b"the fir")
    repository.contents["org.one:first:1.0"] = b"the fir"
    with pytest.raises(WrongSum):
        fetch_jars(listing, fetch=repository.fetch)
    assert repository.calls == 2


def test_what_a_killed_fetch_left_is_removed(listing: Path, repository: Repository, tmp_path: Path) -> None:
    left = tmp_path / "cache" / "detent" / "jars" / f"{read_list(listing).digest}.abc.part" / "fresh"
    left.mkdir(parents=True)
    assert leftovers(fetch_jars(listing, fetch=repository.fetch)) == []


def test_callers_at_the_same_time_fetch_once(listing: Path, repository: Repository) -> None:
    second_waits = threading.Event()
    found: list[Path] = []

    def fetch_while_another_comes(*arguments: object) -> None:
        another.start()
        assert second_waits.wait(30)
        repository.fetch(*arguments)  # type: ignore[arg-type]

    def call_as_the_second() -> None:
        second_waits.set()
        found.append(fetch_jars(listing, fetch=repository.fetch))

    another = threading.Thread(target=call_as_the_second)
    found.append(fetch_jars(listing, fetch=fetch_while_another_comes))
    another.join()
    assert repository.calls == 1
    assert found[0] == found[1]


def test_a_cache_that_can_not_be_written(
    listing: Path, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETENT_CACHE", str(listing))  # a file
    with pytest.raises(CacheUnusable, match="set DETENT_CACHE"):
        fetch_jars(listing, fetch=repository.fetch)


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DETENT_CACHE", str(tmp_path / "a"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "b"))
    assert jars.cache_directory() == tmp_path / "a" / "detent"
    monkeypatch.delenv("DETENT_CACHE")
    assert jars.cache_directory() == tmp_path / "b" / "detent"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert jars.cache_directory() == Path.home() / ".cache" / "detent"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        (f"{'0' * 64}  a:b:1\n", 1),
        ("# Title\nabc  a:b:1\n", 2),
        (f"# Title\n{'0' * 64}  a:b\n", 2),
        (f"# Title\n{'0' * 64}  a:../b:1\n", 2),
        (f"# Title\n{'0' * 64}  a:b:1\n{'1' * 64}  other:b:1\n", 3),
    ],
)
def test_a_list_is_read_to_the_letter(tmp_path: Path, text: str, line: int) -> None:
    path = tmp_path / "list"
    path.write_text(text)
    with pytest.raises(BadJarList) as caught:
        read_list(path)
    assert caught.value.line == line


def test_the_list_of_kafka() -> None:
    listing = read_list(jars.KAFKA_JARS)
    coordinates = [jar.coordinate for jar in listing.jars]
    assert listing.title == "Kafka 4.3.1"
    assert len(coordinates) == 46
    assert coordinates == sorted(coordinates, key=lambda coordinate: coordinate.split(":"))
    assert "org.apache.kafka:kafka_2.13:4.3.1" in coordinates
    assert "org.slf4j:slf4j-simple:1.7.36" in coordinates


def test_progress_is_one_line_on_a_terminal_and_sparse_elsewhere() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal, plain = Terminal(), io.StringIO()
    for stream in (terminal, plain):
        progress = Progress("Kafka", 46, stream)
        for count in range(47):
            progress.came(count)
        progress.end()
    assert terminal.getvalue().count("\n") == 1
    assert terminal.getvalue().endswith("\r\x1b[Kfetching Kafka: 46 of 46 jars\n")
    assert 3 <= plain.getvalue().count("\n") <= 6
    assert "\r" not in plain.getvalue()


class TestIvy:
    """The real Ivy, on a repository of files."""

    @pytest.fixture(autouse=True)
    def settings(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        pattern = f"{tmp_path}/repository/[organisation]/[module]/[revision]/[artifact]-[revision].[ext]"
        self.use(f'<filesystem name="public"><artifact pattern="{pattern}"/></filesystem>', tmp_path, monkeypatch)
        for coordinate, content in CONTENTS.items():
            organisation, name, version = coordinate.split(":")
            directory = tmp_path / "repository" / organisation / name / version
            directory.mkdir(parents=True)
            (directory / f"{name}-{version}.jar").write_bytes(content)

    def use(self, resolver: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "settings.xml"
        path.write_text(
            f'<ivysettings><settings defaultResolver="public"/><resolvers>{resolver}</resolvers></ivysettings>'
        )
        monkeypatch.setenv("DETENT_IVY_SETTINGS", str(path))

    def test_brings_what_is_listed(self, listing: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert jars.main(["--list", str(listing)]) == 0
        said = capsys.readouterr()
        directory = Path(said.out.strip())
        assert sorted(jar.name for jar in directory.iterdir()) == ["first-1.0.jar", "second-2.0-beta.jar"]
        assert said.err.splitlines()[-1] == "fetching Some jars 1.0: 2 of 2 jars"
        assert jars.main(["--list", str(listing), "--quiet"]) == 0
        assert capsys.readouterr() == ("", "")

    def test_names_what_the_repository_does_not_have(
        self, listing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_list(listing, {**CONTENTS, "org.no:such:1.0": b""})
        with pytest.raises(JarsUnavailable) as caught:
            fetch_jars(listing)
        assert caught.value.missing == ("org.no:such:1.0",)
        assert caught.value.reason == "the repository does not have it"
        assert jars.main(["--list", str(listing)]) == 1
        assert "1 of the 3 jars of Some jars 1.0 could not be fetched" in capsys.readouterr().err

    def test_says_that_the_network_is_missing(
        self, listing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        resolver = '<ibiblio name="public" m2compatible="true" usepoms="false" root="http://127.0.0.1:9/"/>'
        self.use(resolver, tmp_path, monkeypatch)
        with pytest.raises(
            JarsUnavailable, match=r"Connection refused.*Check the network, then run it again"
        ) as caught:
            fetch_jars(listing)
        assert set(caught.value.missing) == set(CONTENTS)
