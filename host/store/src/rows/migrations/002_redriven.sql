-- Dead letters whose rows were written here. The letters themselves are in the state database, which forgets them in a
-- transaction of its own, later: a crash in between must not write their rows once more.
CREATE TABLE walgate_target.redriven (
    pipeline text        NOT NULL,
    lineage  text        NOT NULL,
    plugin   text        NOT NULL,
    letter   bigint      NOT NULL,
    at       timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, lineage, plugin, letter)
);
COMMENT ON TABLE walgate_target.redriven IS 'Dead letters whose rows were written here after all, by their numbers.';
