"""Fixtures that several test modules share: one embedded broker for the whole session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from events import embedded


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[embedded.EmbeddedBroker]:
    """A broker that is there for the whole session. Tests that kill or configure one start their own."""
    state_dir = tmp_path_factory.mktemp("shared-broker")
    with embedded.EmbeddedBroker(state_dir) as running:
        yield running
    embedded.stop(state_dir)  # so that nothing writes there when pytest clears it away
