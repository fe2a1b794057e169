//! Migrations: once, never again, never silently different.

use walgate_store::{Class, Store};

use crate::{Place, check, migrated, on_both};

on_both! { a_second_start_changes_nothing an_edited_script_halts a_newer_ledger_halts a_missing_row_halts
a_failed_script_leaves_nothing two_starts_at_once_apply_once a_role_without_rights_is_told
a_prepared_schema_needs_no_right_to_create }

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
