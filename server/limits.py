"""Limits of each room, and the database of the store, from the settings."""

from sqlalchemy import URL

from braid.server.inference.call_memory import MemoryLimits
from braid.server.security.addresses import EVERY, HostNames
from braid.server.settings import Settings
from braid.server.store.database.opening import database_url
from braid.server.store.quota import StoreLimits
from braid.server.store.serving_config import BatchPolicy, queue_limit_s

LEAST_QUEUED_ROWS = 4096
"""Rows that may wait for one model, however few requests may."""


def batch_policy(settings: Settings) -> BatchPolicy:
    return BatchPolicy(
        max_wait_s=settings.max_batch_wait_ms / 1000,
        max_requests=settings.max_queue_requests,
        max_rows=max(LEAST_QUEUED_ROWS, 4 * settings.max_queue_requests),
        max_queue_s=queue_limit_s(settings.max_queue_ms),
        side_by_side=settings.side_by_side,
        explore_share=settings.plan_explore_share,
    )


def memory_limits(settings: Settings) -> MemoryLimits:
    return MemoryLimits(
        settings.connection_memory_bytes // 4,
        settings.connection_memory_bytes,
        settings.calls_memory_bytes,
    )


def host_names(settings: Settings) -> HostNames:
    """Host names of the HTTP port; with TLS any name, as browsers check it by the certificate."""
    any_name = settings.tls_certificate is not None
    return HostNames(settings.host, (EVERY,) if any_name else settings.http_hosts)


def cors_origins(settings: Settings) -> tuple[str, ...]:
    """Origins whose pages may call; every one where any name is ours, as pages can choose names."""
    is_open = not settings.cors_origins and EVERY in settings.http_hosts
    return (EVERY,) if is_open else settings.cors_origins


def store_limits(settings: Settings) -> StoreLimits:
    return StoreLimits(
        settings.max_store_bytes,
        settings.max_models,
        settings.max_concurrent_uploads,
        settings.max_caller_uploads,
    )


def store_database(settings: Settings) -> URL | None:
    """URL of the store's database; None: SQLite in its folder."""
    text = settings.database.get_secret_value()
    return database_url(text, settings.database_password_file)
