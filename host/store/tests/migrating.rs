//! Migrations: once, never again, never silently different.

use walgate_core::{Cursor, Lsn};
use walgate_store::{Class, Store, StoreReader};

use crate::{PIPELINE, PLUGIN, Place, check, lineage, migrated, on_both, to};

on_both! { a_second_start_changes_nothing an_edited_script_halts a_newer_ledger_halts a_missing_row_halts
a_failed_script_leaves_nothing two_starts_at_once_apply_once a_role_without_rights_is_told
a_prepared_schema_needs_no_right_to_create
data_of_version_003_is_kept }

async fn a_second_start_changes_nothing(major: u32) {
    let (place, _store) = migrated(major).await;
    let before = ledger(&place).await;
    assert!(before.contains("001_checkpoints") && before.contains("002_commit_checkpoint"), "{before}");
    let mut again = place.store().await;
    assert_eq!(again.migrate().await.unwrap(), 0);
    assert_eq!(ledger(&place).await, before);
}

async fn an_edited_script_halts(major: u32) {
    let (place, mut store) = migrated(major).await;
    let edit = "UPDATE walgate.schema_migrations SET sha256 = repeat('0', 64) WHERE name = '001_checkpoints'";
    place.execute(edit).await;
    let error = check(store.migrate().await, Class::Operator, "checkpoint_store(migration_changed)");
    assert!(error.to_string().contains("001_checkpoints"), "{error}");
}

async fn a_newer_ledger_halts(major: u32) {
    let (place, mut store) = migrated(major).await;
    let newer = "INSERT INTO walgate.schema_migrations VALUES ('store', '999_future', 'x', now(), '9.9.9')";
    place.execute(newer).await;
    let error = check(store.migrate().await, Class::Operator, "checkpoint_store(migration_unknown)");
    assert!(error.to_string().contains("999_future"), "{error}");
    // Another part of walgate keeps rows in the same ledger; they say nothing about this one.
    let other = "UPDATE walgate.schema_migrations SET module = 'eventing' WHERE name = '999_future'";
    place.execute(other).await;
    assert_eq!(store.migrate().await.unwrap(), 0);
}

async fn a_missing_row_halts(major: u32) {
    let (place, mut store) = migrated(major).await;
    let hole = "DELETE FROM walgate.schema_migrations WHERE name = '001_checkpoints'";
    place.execute(hole).await;
    check(store.migrate().await, Class::Operator, "checkpoint_store(migration_missing)");
}

async fn a_failed_script_leaves_nothing(major: u32) {
    let place = Place::make(major).await;
    place.execute("CREATE SCHEMA walgate; CREATE TABLE walgate.outputs (mine text)").await;
    let mut store = place.store().await;
    check(store.migrate().await, Class::Operator, "checkpoint_store(schema)");
    let client = place.client().await;
    let made = client.query_one("SELECT to_regclass('walgate.pipelines')::text", &[]).await.unwrap();
    assert_eq!(made.get::<_, Option<String>>(0), None, "the tables before the failing one are gone with it");
    assert_eq!(ledger(&place).await, "");
    place.execute("DROP TABLE walgate.outputs").await;
    let applied = store.migrate().await.unwrap();
    assert_eq!((applied, ledger_rows(&place).await), (scripts(), scripts()));
}

async fn two_starts_at_once_apply_once(major: u32) {
    let place = Place::make(major).await;
    let (mut one, mut two) = (place.store().await, place.store().await);
    let (one, two) = tokio::join!(one.migrate(), two.migrate());
    assert_eq!((one.unwrap() + two.unwrap(), ledger_rows(&place).await), (scripts(), scripts()));
}

async fn a_role_without_rights_is_told(major: u32) {
    let place = Place::make(major).await;
    // Roles belong to the cluster, which other cases share.
    let role = format!("poor_{}", place.database);
    place.execute(&format!("CREATE ROLE {role} LOGIN")).await;
    let mut store = Store::connect(place.config_as(&role), None).await.unwrap();
    let error = check(store.migrate().await, Class::Operator, "checkpoint_store(access)");
    assert!(error.to_string().contains("42501") && error.to_string().contains("CREATE on the database"), "{error}");
}

async fn a_prepared_schema_needs_no_right_to_create(major: u32) {
    let (place, _store) = migrated(major).await;
    let role = format!("poor_{}", place.database);
    let grants = format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA walgate TO {role};
         GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA walgate TO {role};
         GRANT USAGE ON ALL SEQUENCES IN SCHEMA walgate TO {role}"
    );
    place.execute(&grants).await;
    let mut store = Store::connect(place.config_as(&role), None).await.unwrap();
    assert_eq!(store.migrate().await.unwrap(), 0);
    store.adopt(crate::PIPELINE, &crate::lineage(), walgate_core::Lsn::new(1)).await.unwrap();
    store.commit(crate::PIPELINE, &crate::lineage(), &idle(2)).await.unwrap();
    assert_eq!(store.next_epoch().await.unwrap(), 1);
    store.take_over(crate::PIPELINE, "host:1").await.unwrap();
    let mut letters = idle(3);
    letters.dead_letters.push(crate::letters::letter("b1", &["t"]));
    store.commit(crate::PIPELINE, &crate::lineage(), &letters).await.unwrap();
    assert_eq!(store.expire_letters(crate::PIPELINE, std::time::Duration::ZERO).await.unwrap().len(), 1);
}

/// What the first released version left: its scripts, its ledger, and one pipeline with everything.
async fn data_of_version_003_is_kept(major: u32) {
    let place = Place::make(major).await;
    let client = place.client().await;
    let ledger_table = "CREATE SCHEMA walgate;
        CREATE TABLE walgate.schema_migrations (module text NOT NULL, name text NOT NULL, sha256 text NOT NULL,
            applied_at timestamptz NOT NULL DEFAULT clock_timestamp(), tool_version text NOT NULL,
            PRIMARY KEY (module, name))";
    client.batch_execute(ledger_table).await.unwrap();
    for name in ["001_checkpoints", "002_commit_checkpoint", "003_halts"] {
        let file = format!("{}/migrations/{name}.sql", env!("CARGO_MANIFEST_DIR"));
        let sql = std::fs::read_to_string(file).unwrap();
        client.batch_execute(&sql).await.unwrap();
        let applied = "INSERT INTO walgate.schema_migrations (module, name, sha256, tool_version)
            VALUES ('store', $1, encode(sha256(convert_to($2, 'UTF8')), 'hex'), '0.1.0')";
        client.execute(applied, &[&name, &sql]).await.unwrap();
    }
    let data = "INSERT INTO walgate.pipelines (pipeline, system_id, timeline, database, slot, slot_created, acked,
            ordinal_scheme) VALUES ('orders', '7400000000000000001', 1, 'shop', 'walgate', '0/100', '0/200', 1);
        INSERT INTO walgate.checkpoints (pipeline, plugin, end_lsn, commit_lsn, ordinal, generation)
            VALUES ('orders', 'warehouse', '0/200', '0/0', 0, 3);
        INSERT INTO walgate.plugin_state VALUES ('orders', 'warehouse', 'k', 'v');
        INSERT INTO walgate.outputs VALUES ('orders', 'warehouse', 'audit', 1, 10);
        INSERT INTO walgate.halts (pipeline, name, detail) VALUES ('orders', 'slot_missing', 'what to do');
        SELECT nextval('walgate.fencing_epoch')";
    client.batch_execute(data).await.unwrap();

    let mut store = place.store().await;
    assert_eq!(store.migrate().await.unwrap(), scripts() - 3);
    let row = store.load(PIPELINE).await.unwrap().unwrap();
    assert_eq!((row.lineage, row.acked, row.timeline, row.publications), (lineage(), Lsn::new(0x200), 1, None));
    assert_eq!((row.cursors[PLUGIN], row.generations[PLUGIN]), (Cursor::at(Lsn::new(0x200)), 3));
    assert_eq!(store.output_lengths(PIPELINE, PLUGIN).await.unwrap()["audit"].length, 10);
    let mut reader = StoreReader::connect(place.config(), None).await.unwrap();
    assert_eq!(reader.halt(PIPELINE).await.unwrap().unwrap().name, "slot_missing");
    assert_eq!(reader.leader(PIPELINE).await.unwrap(), None);
    assert_eq!(store.take_over(PIPELINE, "host:1").await.unwrap(), 2, "epochs go on where they were");
    store.commit(PIPELINE, &lineage(), &to(0x300)).await.unwrap();
    // The version before has no way around the fence.
    let ways = "SELECT count(*), max(pronargs)::int FROM pg_proc
        WHERE proname = 'commit_checkpoint' AND pronamespace = 'walgate'::regnamespace";
    let ways = client.query_one(ways, &[]).await.unwrap();
    assert_eq!((ways.get::<_, i64>(0), ways.get::<_, i32>(1)), (1, 20));
}

fn idle(acked: u64) -> walgate_store::Checkpoint {
    walgate_store::Checkpoint { acked: walgate_core::Lsn::new(acked), ..Default::default() }
}

/// Every field of every row, in one text.
async fn ledger(place: &Place) -> String {
    let client = place.client().await;
    let all = "SELECT coalesce(string_agg(m::text, ' ' ORDER BY name), '') FROM walgate.schema_migrations m";
    client.query_one(all, &[]).await.unwrap().get(0)
}

async fn ledger_rows(place: &Place) -> usize {
    let count = "SELECT count(*) FROM walgate.schema_migrations";
    let rows: i64 = place.client().await.query_one(count, &[]).await.unwrap().get(0);
    usize::try_from(rows).unwrap()
}

/// How many scripts there are: every file of the folder, so that one nobody listed is noticed.
fn scripts() -> usize {
    std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/migrations")).unwrap().count()
}
