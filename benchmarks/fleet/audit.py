"""Each write of the servers, recorded in the database by triggers: who, when, which row.

A writer is named by the address of its connection, not by what it says of itself.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from tests.fleet.fleet import Fleet

TABLES = ("models", "jobs", "schedules", "measurements", "leases")

INSTALL = """
create table if not exists audit (
    number bigserial primary key,
    at double precision not null default extract(epoch from clock_timestamp()),
    host text default host(inet_client_addr()),
    name text not null,
    what text not null,
    was jsonb,
    row jsonb
);
create or replace function record_write() returns trigger language plpgsql as $$
begin
    insert into audit (name, what, was, row) values (
        tg_table_name, tg_op,
        case when tg_op <> 'INSERT' then to_jsonb(old) end,
        case when tg_op <> 'DELETE' then to_jsonb(new) end
    );
    return null;
end $$;
"""


@dataclass(frozen=True, slots=True)
class Write:
    """One row that one server wrote."""

    at: float  # epoch seconds by the database's clock
    host: str  # address of the server's machine
    what: str  # INSERT, UPDATE or DELETE
    was: dict[str, Any] | None
    row: dict[str, Any] | None

    @property
    def after(self) -> dict[str, Any]:
        assert self.row is not None
        return self.row


class Audit:
    """The record of a fleet's writes."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def install(self) -> None:
        """Begin to record; the tables exist."""
        self._fleet.rows(INSTALL)
        for table in TABLES:
            self._fleet.rows(
                f"create or replace trigger record after insert or update or delete on {table} "
                "for each row execute function record_write()"
            )

    def writes(self, table: str, where: str = "true") -> list[Write]:
        """Writes to a table in their order; ``where``: a condition on ``row`` and ``was``."""
        query = (
            "select at, coalesce(host, ''), what, was, row from audit "
            f"where name = '{table}' and ({where}) order by number"
        )
        return [Write(*row) for row in self._fleet.rows(query)]

    def times_written(self, table: str, *columns: str) -> Counter[tuple[Any, ...]]:
        """How often each key, made of ``columns``, was inserted or written over."""
        writes = (write for write in self.writes(table) if write.row is not None)
        return Counter(tuple(write.after[column] for column in columns) for write in writes)
