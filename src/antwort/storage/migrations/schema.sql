-- The tables of SQLite at the newest revision: a database that is new is made of this, and not of the migrations.
-- Both make the same tables: see the test of the schema.

CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL,
    CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);

CREATE TABLE responses (
    "key" INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    parent_key BIGINT,
    thread_key BIGINT NOT NULL,
    depth INTEGER NOT NULL,
    status TEXT NOT NULL,
    background BOOLEAN NOT NULL,
    attempt INTEGER DEFAULT '1' NOT NULL,
    fence BIGINT DEFAULT '0' NOT NULL,
    created_at BIGINT NOT NULL,
    completed_at BIGINT,
    expires_at BIGINT,
    deleted_at BIGINT,
    conversation_id TEXT,
    schema_version INTEGER NOT NULL,
    request BLOB NOT NULL,
    body BLOB NOT NULL,
    model TEXT DEFAULT '' NOT NULL,
    worker TEXT,
    cancelled_at BIGINT,
    PRIMARY KEY ("key"),
    CONSTRAINT fk_responses_parent FOREIGN KEY(parent_key) REFERENCES responses ("key")
);
CREATE UNIQUE INDEX ix_responses_id ON responses (tenant, owner, id);
CREATE UNIQUE INDEX ix_responses_thread ON responses (thread_key, depth);
CREATE INDEX ix_responses_parent ON responses (parent_key) WHERE parent_key IS NOT NULL;
CREATE INDEX ix_responses_running ON responses (status) WHERE status IN ('queued', 'in_progress');

CREATE TABLE items (
    "key" INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    response_key BIGINT NOT NULL,
    direction TEXT NOT NULL,
    position INTEGER NOT NULL,
    type TEXT NOT NULL,
    raw BLOB NOT NULL,
    PRIMARY KEY ("key"),
    CONSTRAINT fk_items_response FOREIGN KEY(response_key) REFERENCES responses ("key") ON DELETE CASCADE
);
CREATE INDEX ix_items_id ON items (tenant, owner, id);
CREATE UNIQUE INDEX ix_items_place ON items (response_key, direction, position);

CREATE TABLE turns (
    response_key BIGINT NOT NULL,
    number INTEGER NOT NULL,
    kind TEXT NOT NULL,
    mark BLOB NOT NULL,
    items_end INTEGER NOT NULL,
    CONSTRAINT pk_turns PRIMARY KEY (response_key, number),
    CONSTRAINT fk_turns_response FOREIGN KEY(response_key) REFERENCES responses ("key") ON DELETE CASCADE
) WITHOUT ROWID;

CREATE TABLE idempotency_keys (
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    "key" TEXT NOT NULL,
    request_hash BLOB NOT NULL,
    response_id TEXT,
    created_at BIGINT NOT NULL,
    expires_at BIGINT,
    CONSTRAINT pk_idempotency_keys PRIMARY KEY (tenant, owner, "key")
);
CREATE INDEX ix_responses_listed ON responses (tenant, owner, status, created_at, "key", model);

CREATE TABLE conversations (
    "key" INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    schema_version INTEGER NOT NULL,
    metadata BLOB NOT NULL,
    PRIMARY KEY ("key")
);
CREATE UNIQUE INDEX ix_conversations_id ON conversations (tenant, owner, id);

CREATE TABLE conversation_items (
    "key" INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    conversation_key BIGINT NOT NULL,
    direction TEXT NOT NULL,
    position INTEGER NOT NULL,
    type TEXT NOT NULL,
    raw BLOB NOT NULL,
    PRIMARY KEY ("key"),
    CONSTRAINT fk_conversation_items_conversation FOREIGN KEY(conversation_key) REFERENCES conversations ("key") ON DELETE CASCADE
);
CREATE UNIQUE INDEX ix_conversation_items_id ON conversation_items (tenant, owner, id, conversation_key);
CREATE UNIQUE INDEX ix_conversation_items_place ON conversation_items (conversation_key, position);

CREATE TABLE "approvals" (
    "key" INTEGER NOT NULL,
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    response_key BIGINT,
    response_id TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL,
    decided_by TEXT,
    server_label TEXT NOT NULL,
    name TEXT NOT NULL,
    arguments TEXT NOT NULL,
    conversation_key BIGINT,
    tool_digest TEXT DEFAULT '' NOT NULL,
    replaces TEXT,
    PRIMARY KEY ("key"),
    CONSTRAINT fk_approvals_response FOREIGN KEY(response_key) REFERENCES responses ("key") ON DELETE CASCADE,
    CONSTRAINT fk_approvals_conversation FOREIGN KEY(conversation_key) REFERENCES conversations ("key") ON DELETE CASCADE
);
CREATE INDEX ix_approvals_response ON approvals (response_key);
CREATE UNIQUE INDEX ix_approvals_id ON approvals (tenant, owner, id);
CREATE INDEX ix_approvals_place ON approvals (tenant, owner, "key");
CREATE INDEX ix_approvals_status ON approvals (tenant, owner, status, "key");
CREATE INDEX ix_approvals_conversation ON approvals (conversation_key);

CREATE TABLE workers (
    name TEXT NOT NULL,
    address TEXT,
    expires_at DOUBLE NOT NULL,
    PRIMARY KEY (name)
);

CREATE TABLE seals (
    place INTEGER NOT NULL,
    token TEXT NOT NULL,
    PRIMARY KEY (place)
);

CREATE TABLE runs (
    response_key BIGINT NOT NULL,
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    id TEXT NOT NULL,
    conversation_id TEXT,
    identity BLOB NOT NULL,
    queued_at DOUBLE NOT NULL,
    begun_at DOUBLE,
    worker TEXT,
    fence BIGINT DEFAULT '0' NOT NULL,
    attempt INTEGER DEFAULT '0' NOT NULL,
    is_cancelled BOOLEAN NOT NULL,
    PRIMARY KEY (response_key),
    CONSTRAINT fk_runs_response FOREIGN KEY(response_key) REFERENCES responses ("key") ON DELETE CASCADE
);
CREATE UNIQUE INDEX ix_runs_id ON runs (tenant, owner, id);
CREATE INDEX ix_runs_worker ON runs (worker);
CREATE INDEX ix_runs_conversation ON runs (tenant, owner, conversation_id) WHERE conversation_id IS NOT NULL;

CREATE TABLE run_events (
    response_key BIGINT NOT NULL,
    at INTEGER NOT NULL,
    first INTEGER NOT NULL,
    next INTEGER NOT NULL,
    events BLOB NOT NULL,
    CONSTRAINT pk_run_events PRIMARY KEY (response_key, at),
    CONSTRAINT fk_run_events_response FOREIGN KEY(response_key) REFERENCES responses ("key") ON DELETE CASCADE
) WITHOUT ROWID;

CREATE TABLE run_logs (
    response_key BIGINT NOT NULL,
    ended_at BIGINT NOT NULL,
    log BLOB,
    PRIMARY KEY (response_key),
    CONSTRAINT fk_run_logs_response FOREIGN KEY(response_key) REFERENCES responses ("key") ON DELETE CASCADE
);
CREATE INDEX ix_run_logs_ended ON run_logs (ended_at);
CREATE INDEX ix_run_logs_loose ON run_logs (response_key) WHERE log IS NULL;

CREATE TABLE calls (
    tenant TEXT NOT NULL,
    owner TEXT NOT NULL,
    call_id TEXT NOT NULL,
    response_key BIGINT,
    conversation_key BIGINT,
    settled_by TEXT NOT NULL,
    result BLOB,
    PRIMARY KEY (tenant, owner, call_id),
    CONSTRAINT fk_calls_response FOREIGN KEY(response_key) REFERENCES responses ("key") ON DELETE CASCADE,
    CONSTRAINT fk_calls_conversation FOREIGN KEY(conversation_key) REFERENCES conversations ("key") ON DELETE CASCADE
);
CREATE INDEX ix_calls_response ON calls (response_key);
CREATE INDEX ix_calls_conversation ON calls (conversation_key);

CREATE TABLE writing_tools (
    tenant TEXT NOT NULL,
    server TEXT NOT NULL,
    name TEXT NOT NULL,
    seen_at BIGINT NOT NULL,
    PRIMARY KEY (tenant, server, name)
) WITHOUT ROWID;
