-- A database as Braid of a9f91505 left it, with two versions of a model that serve.
BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL,
	PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0004');
CREATE TABLE digests (
	sha256 VARCHAR(64) NOT NULL,
	PRIMARY KEY (sha256)
);
INSERT INTO "digests" VALUES('77aba341f850281ba9a47e5f09522b1cd3d97c7c6b815b0ce9c895958b5eea21');
CREATE TABLE graphs (
	schedule_id VARCHAR(24) NOT NULL,
	graph TEXT NOT NULL,
	PRIMARY KEY (schedule_id)
);
CREATE TABLE jobs (
	sequence INTEGER NOT NULL,
	id VARCHAR(32) NOT NULL,
	model VARCHAR(128) NOT NULL,
	version INTEGER NOT NULL,
	device_keys TEXT NOT NULL,
	state VARCHAR(16) NOT NULL,
	progress FLOAT NOT NULL,
	detail TEXT NOT NULL,
	eta_seconds FLOAT NOT NULL,
	done INTEGER NOT NULL,
	total INTEGER NOT NULL,
	message TEXT NOT NULL,
	created_unix FLOAT NOT NULL,
	updated_unix FLOAT NOT NULL,
	cancel_requested BOOLEAN DEFAULT 0 NOT NULL,
	tries INTEGER DEFAULT 0 NOT NULL,
	PRIMARY KEY (sequence),
	UNIQUE (id)
);
INSERT INTO "jobs" VALUES(1,'6ba4f15e914266da','cnn',1,'cpu:AMD EPYC:cores=2:isa=AVX512:threads=2:torch=2.13.0+cpu:onednn=2023.2.0:kernels=9','READY',1.0,'',0.0,0,0,'',1.79595212261536812782e+09,1.79595212821874165541e+09,0,0);
INSERT INTO "jobs" VALUES(2,'bebd698d6f5aa105','cnn',2,'cpu:AMD EPYC:cores=2:isa=AVX512:threads=2:torch=2.13.0+cpu:onednn=2023.2.0:kernels=9','READY',1.0,'',0.0,0,0,'',1.79595212396202898023e+09,1.79595213148196578023e+09,0,0);
CREATE TABLE leases (
	name VARCHAR(256) NOT NULL,
	node VARCHAR(128) NOT NULL,
	fence BIGINT NOT NULL,
	expires_at FLOAT NOT NULL,
	PRIMARY KEY (name)
);
CREATE TABLE lengths (
	name VARCHAR(128) NOT NULL,
	version INTEGER NOT NULL,
	sha256 VARCHAR(64) NOT NULL,
	seen JSON NOT NULL,
	PRIMARY KEY (name, version)
);
CREATE TABLE measurements (
	device_key VARCHAR(512) NOT NULL,
	signature VARCHAR(64) NOT NULL,
	latency_us FLOAT NOT NULL,
	spread FLOAT NOT NULL,
	repeats INTEGER NOT NULL,
	created_unix FLOAT NOT NULL,
	PRIMARY KEY (device_key, signature)
);
CREATE TABLE meta (
	schema_version INTEGER NOT NULL
);
INSERT INTO "meta" VALUES(3);
CREATE TABLE models (
	name VARCHAR(128) NOT NULL,
	version INTEGER NOT NULL,
	sha256 VARCHAR(64) NOT NULL,
	size_bytes BIGINT NOT NULL,
	options JSON NOT NULL,
	state VARCHAR(16) NOT NULL,
	message TEXT NOT NULL,
	created_unix FLOAT NOT NULL,
	deleted_unix FLOAT,
	PRIMARY KEY (name, version)
);
INSERT INTO "models" VALUES('cnn',1,'77aba341f850281ba9a47e5f09522b1cd3d97c7c6b815b0ce9c895958b5eea21',11893,'{"batch_sizes": [], "planner": "portfolio(r=3,s=8,gap=0.01,time_budget_s=15)", "input_shapes": {}}','SERVING','',1.79595212261436486247e+09,NULL);
INSERT INTO "models" VALUES('cnn',2,'77aba341f850281ba9a47e5f09522b1cd3d97c7c6b815b0ce9c895958b5eea21',11893,'{"batch_sizes": [1, 4], "planner": "portfolio(r=3,s=8,gap=0.01,time_budget_s=15)", "input_shapes": {}}','SERVING','',1.7959521239617688656e+09,NULL);
CREATE TABLE nodes (
	id VARCHAR(128) NOT NULL,
	address VARCHAR(300) NOT NULL,
	device_keys TEXT NOT NULL,
	version VARCHAR(64) NOT NULL,
	started_at FLOAT NOT NULL,
	beat_at FLOAT NOT NULL,
	PRIMARY KEY (id)
);
CREATE TABLE objects (
	"key" VARCHAR(256) NOT NULL,
	sha256 VARCHAR(64) NOT NULL,
	size_bytes BIGINT NOT NULL,
	state VARCHAR(16) NOT NULL,
	touched_at FLOAT NOT NULL,
	PRIMARY KEY ("key")
);
CREATE TABLE placed (
	name VARCHAR(128) NOT NULL,
	version INTEGER NOT NULL,
	PRIMARY KEY (name, version)
);
CREATE TABLE schedules (
	id VARCHAR(24) NOT NULL,
	model_digest VARCHAR(64) NOT NULL,
	device_key TEXT NOT NULL,
	batch_size INTEGER NOT NULL,
	"key" JSON NOT NULL,
	schedule TEXT NOT NULL,
	created_unix FLOAT NOT NULL,
	PRIMARY KEY (id)
);
CREATE TABLE serving (
	name VARCHAR(128) NOT NULL,
	config JSON NOT NULL,
	PRIMARY KEY (name)
);
CREATE INDEX ix_models_sha256 ON models (sha256);
CREATE INDEX ix_jobs_state ON jobs (state);
CREATE INDEX jobs_by_model ON jobs (model, version);
CREATE INDEX ix_schedules_model_digest ON schedules (model_digest);
CREATE INDEX ix_leases_node ON leases (node);
COMMIT;
