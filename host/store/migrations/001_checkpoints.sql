-- What a pipeline must find again after a restart. One transaction moves all of it: see 002_commit_checkpoint.sql.
-- Rows are rewritten at every checkpoint; the free half of each page keeps those updates on the page (HOT) and off
-- the indexes.

CREATE TABLE walgate.pipelines (
    pipeline       text        PRIMARY KEY,
    system_id      text        NOT NULL,
    timeline       bigint      NOT NULL,
    database       text        NOT NULL,
    slot           text        NOT NULL,
    slot_created   pg_lsn      NOT NULL,
    acked          pg_lsn      NOT NULL,
    ordinal_scheme integer     NOT NULL,
    updated_at     timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
COMMENT ON TABLE walgate.pipelines IS
    'The history a pipeline reads from, and the position it may acknowledge: written before the source is told.';

CREATE TABLE walgate.checkpoints (
    pipeline   text        NOT NULL REFERENCES walgate.pipelines ON DELETE CASCADE,
    plugin     text        NOT NULL,
    end_lsn    pg_lsn      NOT NULL,
    commit_lsn pg_lsn      NOT NULL,
    ordinal    bigint      NOT NULL CHECK (ordinal >= 0),
    generation bigint      NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, plugin),
    CHECK ((commit_lsn = '0/0') = (ordinal = 0))
) WITH (fillfactor = 50);
COMMENT ON TABLE walgate.checkpoints IS
    'How far each plugin has come: everything that ends at end_lsn, and of the transaction after it some changes.';

-- Keys are bytes: a key may hold a zero byte, which text cannot.
CREATE TABLE walgate.plugin_state (
    pipeline text  NOT NULL REFERENCES walgate.pipelines ON DELETE CASCADE,
    plugin   text  NOT NULL,
    key      bytea NOT NULL,
    value    bytea NOT NULL,
    PRIMARY KEY (pipeline, plugin, key)
);
COMMENT ON TABLE walgate.plugin_state IS 'The durable map of each plugin, as of its checkpoint.';

CREATE TABLE walgate.outputs (
    pipeline text   NOT NULL REFERENCES walgate.pipelines ON DELETE CASCADE,
    plugin   text   NOT NULL,
    name     text   NOT NULL,
    sequence bigint NOT NULL CHECK (sequence >= 0),
    length   bigint NOT NULL CHECK (length >= 0),
    PRIMARY KEY (pipeline, plugin, name)
) WITH (fillfactor = 50);
COMMENT ON TABLE walgate.outputs IS 'How many bytes of each output belong to the checkpoint; a restart cuts the rest off.';

-- One sequence for all plugins: numbers rise at each open, also after a pipeline was forgotten and began again.
CREATE SEQUENCE walgate.fencing_epoch AS bigint;
COMMENT ON SEQUENCE walgate.fencing_epoch IS 'Fencing epochs told to plugins when they are opened.';
