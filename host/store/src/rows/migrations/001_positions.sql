-- What a database of row targets must know by itself, because rows commit there and not in the state database.
-- Rows are rewritten at every commit; the free half of each page keeps those updates on the page (HOT) and off the
-- indexes.

CREATE TABLE walgate_target.leaders (
    pipeline text        NOT NULL,
    lineage  text        NOT NULL,
    epoch    bigint      NOT NULL,
    since    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, lineage)
);
COMMENT ON TABLE walgate_target.leaders IS
    'The fencing epoch that may write the rows of a pipeline; a lower one never writes again. State databases count epochs
each for itself, and the lineage tells the pipelines of two of them apart.';

CREATE TABLE walgate_target.positions (
    pipeline   text        NOT NULL,
    lineage    text        NOT NULL,
    plugin     text        NOT NULL,
    end_lsn    pg_lsn      NOT NULL DEFAULT '0/0',
    commit_lsn pg_lsn      NOT NULL DEFAULT '0/0',
    ordinal    bigint      NOT NULL DEFAULT 0 CHECK (ordinal >= 0),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, lineage, plugin)
) WITH (fillfactor = 50);
COMMENT ON TABLE walgate_target.positions IS
    'How far the rows of each plugin are written; all zero before the first. Moves in the transaction of the rows.';
