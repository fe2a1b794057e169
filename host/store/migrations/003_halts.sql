-- Why a pipeline stopped for good, so that it can be told after the process is gone. Names and positions only.
-- No reference to walgate.pipelines: a pipeline can halt before it was ever adopted.
CREATE TABLE walgate.halts (
    pipeline  text        PRIMARY KEY,
    name      text        NOT NULL,
    plugin    text,
    detail    text        NOT NULL,
    halted_at timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE walgate.halts IS 'Why a pipeline stopped for good; gone once it streams again.';
