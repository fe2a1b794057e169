-- Which versions of a plugin a pipeline has run: its file and its plugin.toml together, by their digests. The same content
-- is the same generation whenever it comes back. Names and digests only.
CREATE TABLE walgate.generations (
    pipeline    text        NOT NULL,
    plugin      text        NOT NULL,
    generation  bigint      NOT NULL CHECK (generation > 0),
    fingerprint text        NOT NULL,
    version     text        NOT NULL,
    opened_at   timestamptz,
    blocked     text,
    proven      boolean     NOT NULL DEFAULT false,
    PRIMARY KEY (pipeline, plugin, generation),
    UNIQUE (pipeline, plugin, fingerprint)
);
COMMENT ON TABLE walgate.generations IS
    'The versions of each plugin that were to run, and ran if they were ever opened; blocked says why one was rolled back and is not started again, proven that one was through its probation.';
