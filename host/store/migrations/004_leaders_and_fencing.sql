-- Who leads a pipeline, and the epoch that every write of the leader carries: a process that was paused or cut off and
-- comes back finds a larger epoch and can write nothing more.
-- No reference to walgate.pipelines: a pipeline is led before it is adopted, and the fence outlives forgetting.
CREATE TABLE walgate.leaders (
    pipeline text        PRIMARY KEY,
    epoch    bigint      NOT NULL,
    holder   text        NOT NULL,
    since    timestamptz NOT NULL DEFAULT now()
);
COMMENT ON TABLE walgate.leaders IS
    'The last process that took over a pipeline, and the epoch its writes carry; all smaller epochs are fenced off.';

-- Null: not recorded yet; and as timeline, which is part of the identity and stays after a promotion of the source.
ALTER TABLE walgate.pipelines ADD COLUMN publications text[], ADD COLUMN current_timeline bigint;

-- Refuses (WG007) unless the epoch leads, and keeps a takeover waiting until this transaction ends; so after a takeover
-- returned, everything of the earlier leader is either committed or refused. A null epoch is not compared.
CREATE FUNCTION walgate.hold_epoch(the_pipeline text, the_epoch bigint)
RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    IF the_epoch IS NULL THEN
        RETURN;
    END IF;
    PERFORM 1 FROM walgate.leaders l WHERE l.pipeline = the_pipeline AND l.epoch = the_epoch FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION USING ERRCODE = 'WG007', MESSAGE = '';
    END IF;
END
$$;

-- As in 002_commit_checkpoint.sql, with two differences: the epoch is held before anything is read, and a null
-- acknowledged position leaves the stored one and its time alone. The signature of 002 is dropped, so that a version
-- without epochs cannot write past the fence.
--   WG007  the epoch does not lead any more
DROP FUNCTION walgate.commit_checkpoint(
    text, text, bigint, text, text, pg_lsn, pg_lsn, text[], pg_lsn[], pg_lsn[], bigint[], bigint[],
    text[], bytea[], bytea[], text[], text[], bigint[], bigint[]);
CREATE FUNCTION walgate.commit_checkpoint(
    the_pipeline text, the_system_id text, the_timeline bigint, the_database text, the_slot text, the_slot_created pg_lsn,
    the_acked pg_lsn,
    cursor_plugins text[], cursor_ends pg_lsn[], cursor_commits pg_lsn[], cursor_ordinals bigint[],
    cursor_generations bigint[],
    state_plugins text[], state_keys bytea[], state_values bytea[],
    output_plugins text[], output_names text[], output_sequences bigint[], output_lengths bigint[],
    the_epoch bigint
) RETURNS void LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    moved bigint;
    culprit text;
BEGIN
    PERFORM walgate.hold_epoch(the_pipeline, the_epoch);

    -- Either way takes the lock that puts commits of one pipeline in a row.
    IF the_acked IS NULL THEN
        PERFORM 1 FROM walgate.pipelines p
         WHERE p.pipeline = the_pipeline AND p.system_id = the_system_id AND p.timeline = the_timeline
           AND p.database = the_database AND p.slot = the_slot AND p.slot_created = the_slot_created
           FOR NO KEY UPDATE;
    ELSE
        UPDATE walgate.pipelines p SET acked = the_acked, updated_at = now()
         WHERE p.pipeline = the_pipeline AND p.system_id = the_system_id AND p.timeline = the_timeline
           AND p.database = the_database AND p.slot = the_slot AND p.slot_created = the_slot_created
           AND p.acked <= the_acked;
    END IF;
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
