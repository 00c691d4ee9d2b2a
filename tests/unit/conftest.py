"""Nodes that answer over SSH, for all unit tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from .ssh_server import Server, ed25519, known, listening


@pytest.fixture
def stranger(tmp_path: Path) -> Iterator[Server]:
    """A node that lets tmp_path/id in and that nobody has met yet."""
    server = Server([ed25519(tmp_path / "host")], ed25519(tmp_path / "id"))
    with listening(server.serve) as server.port:
        yield server


@pytest.fixture
def node(tmp_path: Path, stranger: Server) -> Server:
    """A node that lets tmp_path/id in and whose host key is in tmp_path/known_hosts."""
    (tmp_path / "known_hosts").write_text(known(stranger.port, *stranger.host_keys))
    return stranger
