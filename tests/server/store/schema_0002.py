"""Tables as Braid of 2f0059c made them, on PostgreSQL and SQLite."""

_POSTGRESQL = """
CREATE TABLE graphs (schedule_id VARCHAR(24) NOT NULL, graph TEXT NOT NULL, PRIMARY KEY
    (schedule_id));
CREATE TABLE jobs (sequence SERIAL NOT NULL, id VARCHAR(32) NOT NULL, model VARCHAR(128) NOT
    NULL, version INTEGER NOT NULL, device_keys TEXT NOT NULL, state VARCHAR(16) NOT NULL,
    progress FLOAT NOT NULL, detail TEXT NOT NULL, eta_seconds FLOAT NOT NULL, done INTEGER NOT
    NULL, total INTEGER NOT NULL, message TEXT NOT NULL, created_unix FLOAT NOT NULL,
    updated_unix FLOAT NOT NULL, cancel_requested BOOLEAN DEFAULT false NOT NULL, tries INTEGER
    DEFAULT 0 NOT NULL, PRIMARY KEY (sequence), UNIQUE (id));
CREATE INDEX ix_jobs_state ON jobs (state);
CREATE INDEX jobs_by_model ON jobs (model, version);
CREATE TABLE leases (name VARCHAR(256) NOT NULL, node VARCHAR(128) NOT NULL, fence BIGINT NOT
    NULL, expires_at FLOAT NOT NULL, PRIMARY KEY (name));
CREATE INDEX ix_leases_node ON leases (node);
CREATE TABLE measurements (device_key VARCHAR(512) NOT NULL, signature VARCHAR(64) NOT NULL,
    latency_us FLOAT NOT NULL, spread FLOAT NOT NULL, repeats INTEGER NOT NULL, created_unix
    FLOAT NOT NULL, PRIMARY KEY (device_key, signature));
CREATE TABLE meta (schema_version INTEGER NOT NULL);
CREATE TABLE models (name VARCHAR(128) NOT NULL, version INTEGER NOT NULL, sha256 VARCHAR(64)
    NOT NULL, size_bytes BIGINT NOT NULL, options JSON NOT NULL, state VARCHAR(16) NOT NULL,
    message TEXT NOT NULL, created_unix FLOAT NOT NULL, deleted_unix FLOAT, PRIMARY KEY (name,
    version));
CREATE INDEX ix_models_sha256 ON models (sha256);
CREATE TABLE nodes (id VARCHAR(128) NOT NULL, address VARCHAR(300) NOT NULL, device_keys TEXT
    NOT NULL, version VARCHAR(64) NOT NULL, started_at FLOAT NOT NULL, beat_at FLOAT NOT NULL,
    PRIMARY KEY (id));
CREATE TABLE objects (key VARCHAR(256) NOT NULL, sha256 VARCHAR(64) NOT NULL, size_bytes BIGINT
    NOT NULL, state VARCHAR(16) NOT NULL, touched_at FLOAT NOT NULL, PRIMARY KEY (key));
CREATE TABLE placed (name VARCHAR(128) NOT NULL, version INTEGER NOT NULL, PRIMARY KEY (name,
    version));
CREATE TABLE schedules (id VARCHAR(24) NOT NULL, model_digest VARCHAR(64) NOT NULL, device_key
    TEXT NOT NULL, batch_size INTEGER NOT NULL, key JSON NOT NULL, schedule TEXT NOT NULL,
    created_unix FLOAT NOT NULL, PRIMARY KEY (id));
CREATE INDEX ix_schedules_model_digest ON schedules (model_digest);
CREATE TABLE serving (name VARCHAR(128) NOT NULL, config JSON NOT NULL, PRIMARY KEY (name));
CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, PRIMARY KEY (version_num));
INSERT INTO meta VALUES (3);
INSERT INTO alembic_version VALUES ('0002');
"""


def statements_0002(backend: str) -> list[str]:
    """Statements that make the tables of revision 0002."""
    text = _POSTGRESQL
    if backend == "sqlite":
        text = text.replace("SERIAL", "INTEGER").replace("DEFAULT false", "DEFAULT 0")
    return [statement for statement in text.split(";\n") if statement.strip()]
