-- Moves one pipeline forward: one call, one transaction, one round trip.
--
-- The update of the pipeline row comes first: it takes the lock that puts commits of one pipeline in a row, so what
-- follows compares with the newest rows. Nothing moves back. A refusal raises a state of class WG, and with it the
-- transaction and everything in it is gone; the message of such a state is a plugin name or empty, never a value.
--   WG001  the pipeline row is gone, or belongs to another history
--   WG002  the acknowledged position would move back
--   WG003  a cursor would move back
--   WG004  a plugin has no cursor
--   WG005  a plugin or an output is named twice
--   WG006  an output would become shorter
CREATE FUNCTION walgate.commit_checkpoint(
    the_pipeline text, the_system_id text, the_timeline bigint, the_database text, the_slot text, the_slot_created pg_lsn,
    the_acked pg_lsn,
    cursor_plugins text[], cursor_ends pg_lsn[], cursor_commits pg_lsn[], cursor_ordinals bigint[],
    cursor_generations bigint[],
    state_plugins text[], state_keys bytea[], state_values bytea[],
    output_plugins text[], output_names text[], output_sequences bigint[], output_lengths bigint[]
) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moved bigint;
    culprit text;
BEGIN
    UPDATE walgate.pipelines p SET acked = the_acked, updated_at = now()
     WHERE p.pipeline = the_pipeline AND p.system_id = the_system_id AND p.timeline = the_timeline
       AND p.database = the_database AND p.slot = the_slot AND p.slot_created = the_slot_created
       AND p.acked <= the_acked;
    IF NOT FOUND THEN
        PERFORM 1 FROM walgate.pipelines p
         WHERE p.pipeline = the_pipeline AND p.system_id = the_system_id AND p.timeline = the_timeline
           AND p.database = the_database AND p.slot = the_slot AND p.slot_created = the_slot_created;
        IF FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'WG002', MESSAGE = '';
        END IF;
        RAISE EXCEPTION USING ERRCODE = 'WG001', MESSAGE = '';
    END IF;

    IF cardinality(cursor_plugins) > 0 THEN
        UPDATE walgate.checkpoints c
           SET end_lsn = u.end_lsn, commit_lsn = u.commit_lsn, ordinal = u.ordinal, generation = u.generation,
               updated_at = now()
          FROM unnest(cursor_plugins, cursor_ends, cursor_commits, cursor_ordinals, cursor_generations)
               AS u(plugin, end_lsn, commit_lsn, ordinal, generation)
         WHERE c.pipeline = the_pipeline AND c.plugin = u.plugin
           AND (c.end_lsn, c.commit_lsn, c.ordinal) <= (u.end_lsn, u.commit_lsn, u.ordinal);
        GET DIAGNOSTICS moved = ROW_COUNT;
        IF moved <> cardinality(cursor_plugins) THEN
            SELECT u.plugin INTO culprit FROM unnest(cursor_plugins) AS u(plugin)
             WHERE NOT EXISTS (SELECT FROM walgate.checkpoints c
                                WHERE c.pipeline = the_pipeline AND c.plugin = u.plugin) LIMIT 1;
            IF FOUND THEN
                RAISE EXCEPTION USING ERRCODE = 'WG004', MESSAGE = culprit;
            END IF;
            SELECT u.plugin INTO culprit FROM unnest(cursor_plugins) AS u(plugin)
             GROUP BY u.plugin HAVING count(*) > 1 LIMIT 1;
            IF FOUND THEN
                RAISE EXCEPTION USING ERRCODE = 'WG005', MESSAGE = culprit;
            END IF;
            SELECT u.plugin INTO culprit
              FROM unnest(cursor_plugins, cursor_ends, cursor_commits, cursor_ordinals)
                   AS u(plugin, end_lsn, commit_lsn, ordinal)
              JOIN walgate.checkpoints c ON c.pipeline = the_pipeline AND c.plugin = u.plugin
             WHERE (c.end_lsn, c.commit_lsn, c.ordinal) > (u.end_lsn, u.commit_lsn, u.ordinal) LIMIT 1;
            RAISE EXCEPTION USING ERRCODE = 'WG003', MESSAGE = coalesce(culprit, '');
        END IF;
    END IF;

    -- A null value deletes. The caller names each key once.
    IF cardinality(state_plugins) > 0 THEN
        DELETE FROM walgate.plugin_state s
         USING unnest(state_plugins, state_keys, state_values) AS u(plugin, key, value)
         WHERE u.value IS NULL AND s.pipeline = the_pipeline AND s.plugin = u.plugin AND s.key = u.key;
        INSERT INTO walgate.plugin_state AS s (pipeline, plugin, key, value)
        SELECT the_pipeline, u.plugin, u.key, u.value
          FROM unnest(state_plugins, state_keys, state_values) AS u(plugin, key, value)
         WHERE u.value IS NOT NULL
            ON CONFLICT (pipeline, plugin, key) DO UPDATE SET value = excluded.value;
    END IF;

    IF cardinality(output_plugins) > 0 THEN
        PERFORM 1 FROM unnest(output_plugins, output_names) AS u(plugin, name)
         GROUP BY u.plugin, u.name HAVING count(*) > 1;
        IF FOUND THEN
            RAISE EXCEPTION USING ERRCODE = 'WG005', MESSAGE = '';
        END IF;
        INSERT INTO walgate.outputs AS o (pipeline, plugin, name, sequence, length)
        SELECT the_pipeline, u.plugin, u.name, u.sequence, u.length
          FROM unnest(output_plugins, output_names, output_sequences, output_lengths)
               AS u(plugin, name, sequence, length)
            ON CONFLICT (pipeline, plugin, name) DO UPDATE
           SET sequence = excluded.sequence, length = excluded.length
         WHERE (o.sequence, o.length) <= (excluded.sequence, excluded.length);
        GET DIAGNOSTICS moved = ROW_COUNT;
        IF moved <> cardinality(output_plugins) THEN
            RAISE EXCEPTION USING ERRCODE = 'WG006', MESSAGE = '';
        END IF;
    END IF;
END
$$;
