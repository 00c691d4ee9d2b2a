"""Administrator commands on a head, over one connection; a failed command raises HeadFailed."""

from collections.abc import Sequence
from typing import Self

from clusterctl.inventory.model import Host
from clusterctl.nodes.remote import Access, connect
from clusterctl.nodes.session import ContactError, Session
from clusterctl.util.errors import HeadFailed
from clusterctl.util.text import printable

SECONDS = 30.0
MAX_REPLY = 32 << 20  # bytes; enough for 100,000 jobs


class HeadCommands:
    """A connection to a head, and the commands that root runs there."""

    seconds = SECONDS
    """How long a command may run."""
    limit = MAX_REPLY
    """How many bytes it may print."""
    unset: Sequence[str] = ()
    """The variables of the login's environment that it does not get."""

    def __init__(self, session: Session, name: str) -> None:
        self._session, self._name = session, name

    @classmethod
    def connect(cls, head: Host, access: Access) -> Self:
        """Connect to the head of a cluster."""
        try:
            return cls(connect(head, access), head.name)
        except ContactError as error:
            raise HeadFailed(f"{head.name}: {error}") from None

    @classmethod
    def connect_any(cls, heads: Sequence[Host], access: Access) -> Self:
        """Connect to the first of these heads that responds; each can ask for the state of the whole cluster."""
        failures = list[HeadFailed]()
        for head in heads:
            try:
                return cls.connect(head, access)
            except HeadFailed as error:
                failures.append(error)
        raise failures[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the connection."""
        self._session.close()

    def output(self, *argv: str) -> str:
        """Run a command that must succeed; return its output."""
        return self._run(*argv)

    def _try(self, *argv: str, stdin: str = "", more_seconds: float = 0.0) -> tuple[int, str, str]:
        """Run a command; return its exit code, output and errors. It may run `more_seconds` longer than others."""
        timeout = self.seconds + more_seconds
        try:
            return self._session.run(argv, stdin=stdin, root=True, timeout=timeout, limit=self.limit, unset=self.unset)
        except ContactError as error:
            raise HeadFailed(f"{self._name}: {argv[0]}: {error}") from None

    def _run(self, *argv: str, stdin: str = "", more_seconds: float = 0.0) -> str:
        """Run a command that must succeed; return its output. It may run `more_seconds` longer than others."""
        status, out, err = self._try(*argv, stdin=stdin, more_seconds=more_seconds)
        if status:
            text = err.strip() or out.strip()
            cause = printable(text.splitlines()[-1] if text else "", 200)
            raise HeadFailed(f"{self._name}: {argv[0].rpartition('/')[2]} failed with exit code {status}: {cause}")
        return out
