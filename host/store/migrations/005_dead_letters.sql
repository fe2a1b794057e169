-- What a plugin refused and the pipeline went on without, kept until it is delivered again, dropped or too old.
--
-- No reference to walgate.pipelines: letters may be the only copy of what they hold, so forgetting a pipeline, which is
-- about positions, leaves them. What is removed without being delivered is counted in walgate.dead_letter_losses, which
-- outlives forgetting for the same reason. The image may hold row values; nothing else here does.
CREATE TABLE walgate.dead_letters (
    id             bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    pipeline       text        NOT NULL,
    lineage        text        NOT NULL,
    plugin         text        NOT NULL,
    generation     bigint      NOT NULL,
    batch_id       text        NOT NULL,
    commit_lsn     pg_lsn      NOT NULL,
    end_lsn        pg_lsn      NOT NULL,
    source_ordinal bigint      NOT NULL CHECK (source_ordinal >= 0),
    class          text        NOT NULL,
    code           text        NOT NULL,
    tables         text[]      NOT NULL,
    rows           bigint      NOT NULL CHECK (rows >= 0),
    image          bytea       NOT NULL,
    bytes          bigint      NOT NULL CHECK (bytes >= 0),
    created_at     timestamptz NOT NULL DEFAULT now(),
    attempts       bigint      NOT NULL DEFAULT 1 CHECK (attempts > 0),
    requested_at   timestamptz
);
COMMENT ON TABLE walgate.dead_letters IS
    'What plugins refused, until it is delivered again, dropped or too old; ids rise in the order of the source.';

-- One letter a place in the source: a commit whose answer was lost is tried again, and in front of a target elsewhere a
-- letter is kept before the position that passes over it, so that a crash in between brings it once more, maybe out of a
-- batch that was cut elsewhere. Messages of no transaction have no place, and are told apart by their batch. Letters
-- outlive a forgotten pipeline, and the next one of its name may meet the same positions in another history.
CREATE UNIQUE INDEX dead_letters_once ON walgate.dead_letters
    (pipeline, lineage, plugin, commit_lsn, source_ordinal, (CASE WHEN commit_lsn = '0/0' THEN batch_id ELSE '' END));
CREATE INDEX dead_letters_in_order ON walgate.dead_letters (pipeline, plugin, id);
CREATE INDEX dead_letters_requested ON walgate.dead_letters (pipeline, plugin, id) WHERE requested_at IS NOT NULL;

CREATE TABLE walgate.dead_letter_losses (
    pipeline  text        NOT NULL,
    plugin    text        NOT NULL,
    reason    text        NOT NULL,
    letters   bigint      NOT NULL,
    rows      bigint      NOT NULL,
    up_to_lsn pg_lsn      NOT NULL,
    at        timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, plugin, reason)
);
COMMENT ON TABLE walgate.dead_letter_losses IS
    'How many letters were removed without being delivered, why, and up to where; sums since the first, at the last.';

-- What a checkpoint changes of the letters; called in the statement that commits it. Taken letters are gone. A letter
-- that was refused again loses its mark; one without a mark is left alone, so that repeating a commit counts nothing
-- twice. The names of tables come flat, each with the number of its letter, because arrays of arrays have one length.
CREATE FUNCTION walgate.commit_letters(
    the_pipeline text, taken bigint[], refused bigint[],
    letter_plugins text[], letter_generations bigint[], letter_batches text[], letter_commits pg_lsn[],
    letter_ends pg_lsn[], letter_ordinals bigint[], letter_classes text[], letter_codes text[], letter_rows bigint[],
    letter_images bytea[],
    table_letters bigint[], table_names text[]
) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    the_lineage text;
BEGIN
    -- Puts commits of one pipeline in a row, so that ids are drawn in their order.
    SELECT concat_ws('/', p.system_id, p.slot_created, p.slot, p.database) INTO the_lineage
      FROM walgate.pipelines p WHERE p.pipeline = the_pipeline FOR NO KEY UPDATE;

    DELETE FROM walgate.dead_letters d WHERE d.pipeline = the_pipeline AND d.id = ANY (taken);
    UPDATE walgate.dead_letters d SET attempts = d.attempts + 1, requested_at = NULL
     WHERE d.pipeline = the_pipeline AND d.id = ANY (refused) AND d.requested_at IS NOT NULL;
    -- What waits behind one of them was not tried, and waits for the operator like it.
    UPDATE walgate.dead_letters d SET requested_at = NULL
     WHERE d.pipeline = the_pipeline AND d.requested_at IS NOT NULL
       AND EXISTS (SELECT FROM walgate.dead_letters r
                    WHERE r.pipeline = the_pipeline AND r.plugin = d.plugin AND r.id = ANY (refused) AND r.id < d.id
                      AND r.tables && d.tables);
    -- What came last is what the plugin said last: what it does not hold was taken meanwhile.
    INSERT INTO walgate.dead_letters AS d (pipeline, lineage, plugin, generation, batch_id, commit_lsn, end_lsn, source_ordinal,
                                           class, code, tables, rows, image, bytes)
    SELECT the_pipeline, the_lineage, l.plugin, l.generation, l.batch_id, l.commit_lsn, l.end_lsn, l.source_ordinal, l.class, l.code,
           ARRAY(SELECT t.name FROM unnest(table_letters, table_names) WITH ORDINALITY AS t(letter, name, place)
                  WHERE t.letter = l.number ORDER BY t.place),
           l.rows, l.image, octet_length(l.image)
      FROM (SELECT DISTINCT ON (u.plugin, u.commit_lsn, u.source_ordinal,
                                CASE WHEN u.commit_lsn = '0/0' THEN u.batch_id ELSE '' END) u.*
              FROM unnest(letter_plugins, letter_generations, letter_batches, letter_commits, letter_ends,
                          letter_ordinals, letter_classes, letter_codes, letter_rows, letter_images) WITH ORDINALITY
                   AS u(plugin, generation, batch_id, commit_lsn, end_lsn, source_ordinal, class, code, rows, image,
                        number)
             ORDER BY u.plugin, u.commit_lsn, u.source_ordinal,
                      CASE WHEN u.commit_lsn = '0/0' THEN u.batch_id ELSE '' END, u.number DESC) l
     ORDER BY l.number
        ON CONFLICT (pipeline, lineage, plugin, commit_lsn, source_ordinal,
                     (CASE WHEN commit_lsn = '0/0' THEN batch_id ELSE '' END))
        DO UPDATE SET batch_id = excluded.batch_id, end_lsn = excluded.end_lsn, class = excluded.class,
                      code = excluded.code, tables = excluded.tables, rows = excluded.rows, image = excluded.image,
                      bytes = excluded.bytes;
END
$$;
