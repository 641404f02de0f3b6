"""Puts, rows and sweeps of two servers in any order: no row ever lacks its object.

Each server's put and sweep is cut into its steps, between which all others may run, as if each had
slept there for longer than any grace time. Beside the rows stands what really lies in the place.
"""

from collections.abc import Callable
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.pool import StaticPool

from braid.compiler.options import ModelOptions
from braid.server.fleet.tables import objects
from braid.server.fleet.tables.objects import ObjectState, StoredObject
from braid.server.store.records import ModelStatus
from braid.server.store.tables import jobs as jobs_table
from braid.server.store.tables import models as models_table
from braid.server.store.tables.schema import metadata

SERVERS = st.integers(0, 1)
DIGESTS = st.just("a" * 64)


class Sweeps(RuleBasedStateMachine):
    """Servers are what they remember between their steps: a put, or a sweep."""

    def __init__(self) -> None:
        super().__init__()
        self.engine = create_engine("sqlite://", poolclass=StaticPool)
        metadata.create_all(self.engine)
        self.place: dict[str, str] = {}  # key -> digest
        self.puts: dict[int, tuple[str, str]] = {}  # server -> key, digest
        self.condemned: dict[int, list[str]] = {}
        self.count = 0

    def teardown(self) -> None:
        self.engine.dispose()

    def _write(self, change: Callable[..., Any], *args: Any) -> Any:
        with self.engine.begin() as connection:
            return change(connection, *args)

    @rule(server=SERVERS, digest=DIGESTS)
    def begin_put(self, server: int, digest: str) -> None:
        if server in self.puts or self._write(objects.hold, f"uploads/{digest}"):
            return
        self.count += 1
        key = f"uploads/{digest}.{self.count:016x}"
        self._write(objects.begin, StoredObject(key, digest, 1))
        self.puts[server] = key, digest

    @rule(server=SERVERS)
    def object_arrives(self, server: int) -> None:
        if server in self.puts:
            key, digest = self.puts[server]
            self.place[key] = digest

    @rule(server=SERVERS)
    def finish_put(self, server: int) -> None:
        if server in self.puts and self.puts[server][0] in self.place:
            key, _ = self.puts.pop(server)
            if not self._write(objects.finish, key):
                self.place.pop(key, None)

    @rule(server=SERVERS, digest=DIGESTS)
    def put(self, server: int, digest: str) -> None:
        self.begin_put(server, digest)
        self.object_arrives(server)
        self.finish_put(server)

    @rule(server=SERVERS, digest=DIGESTS)
    def put_and_register(self, server: int, digest: str) -> None:
        self.put(server, digest)
        self.register(digest)

    @rule(server=SERVERS)
    def crash(self, server: int) -> None:
        self.puts.pop(server, None)
        self.condemned.pop(server, None)

    @rule(digest=DIGESTS)
    def register(self, digest: str) -> None:
        def store(connection: Connection) -> None:
            if objects.hold(connection, f"uploads/{digest}"):
                model = models_table.add(connection, "m", digest, 1, ModelOptions())
                jobs_table.add(connection, model, "cpu")

        self._write(store)

    @precondition(lambda self: self._write(models_table.present))
    @rule()
    def delete_model(self) -> None:
        model = self._write(models_table.present)[0]
        assert model.state is ModelStatus.LOADING
        self._write(models_table.mark_deleted, model.name, model.version)

    @rule(server=SERVERS)
    def condemn(self, server: int) -> None:
        self._write(
            lambda connection: connection.execute(
                text("UPDATE objects SET touched_at = touched_at - 100")
            )
        )
        self.condemned[server] = self._write(objects.condemn, 10.0)

    @rule(server=SERVERS)
    def delete_objects(self, server: int) -> None:
        for key in self.condemned.get(server, ()):
            self.place.pop(key, None)

    @rule(server=SERVERS)
    def forget(self, server: int) -> None:
        keys = self.condemned.get(server, [])
        if not set(keys) & set(self.place):
            self._write(objects.forget, keys, 0.0)

    @invariant()
    def each_row_has_its_object(self) -> None:
        for model in self._write(models_table.present):
            found = self._write(objects.find, f"uploads/{model.sha256}")
            present = [each.key for each in found if each.state is ObjectState.PRESENT]
            assert present
            assert all(self.place.get(key) == model.sha256 for key in present)


TestSweeps = Sweeps.TestCase
TestSweeps.settings = settings(max_examples=25, stateful_step_count=40, deadline=None)
