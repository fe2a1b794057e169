//! Losing the server, getting it back, and giving up.

use std::time::Duration;

use walgate_core::Lsn;
use walgate_store::{Class, Durable, Retries, RetryPolicy, Store, StoreError};

use crate::{PIPELINE, check, lineage, on_both, started, started_alone, to};

on_both! { a_restart_is_survived a_cut_session_is_survived a_stopped_server_is_given_up a_fault_may_heal
a_permanent_fault_is_tried_once retrying_works_in_a_task
any_real_position_is_refused_n_times_and_no_more }

const QUICK: RetryPolicy = RetryPolicy { max_retries: 3, backoff: Duration::from_millis(1) };

/// Commits with retries; answers the attempts made and how it ended.
async fn commit(store: &mut Store, end: u64, mut before: impl AsyncFnMut(u32)) -> (u32, Result<Durable, StoreError>) {
    let mut retries = Retries::new(QUICK);
    loop {
        let attempt = retries.failures() + 1;
        before(attempt).await;
        match store.commit(PIPELINE, &lineage(), &to(end)).await {
            Ok(durable) => return (attempt, Ok(durable)),
            Err(error) => {
                if let Err(last) = retries.after(error).await {
                    return (attempt, Err(last));
                }
            }
        }
    }
}

async fn a_restart_is_survived(major: u32) {
    let (mut cluster, mut store) = started_alone(major).await;
    commit(&mut store, 0x200, async |_| {}).await.1.unwrap();
    cluster.restart().unwrap();
    let (_, durable) = commit(&mut store, 0x300, async |_| {}).await;
    assert_eq!(durable.unwrap().acked(), Lsn::new(0x300));
    assert_eq!(store.load(PIPELINE).await.unwrap().unwrap().acked, Lsn::new(0x300));
}

async fn a_cut_session_is_survived(major: u32) {
    let (place, mut store) = started(major).await;
    let cut = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid()";
    for end in [0x200, 0x300] {
        place.execute(cut).await;
        commit(&mut store, end, async |_| {}).await.1.unwrap();
    }
    // What makes a commit durable is set on every session, not only on the first, and whatever the default is.
    place.execute(&format!("ALTER DATABASE {} SET synchronous_commit = off", place.database)).await;
    let probe = "CREATE FUNCTION public.probe() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF current_setting('synchronous_commit') <> 'on' THEN RAISE EXCEPTION 'not durable'; END IF;
            RETURN NEW; END $$;
        CREATE TRIGGER probe BEFORE UPDATE ON walgate.pipelines FOR EACH ROW EXECUTE FUNCTION public.probe()";
    place.execute(probe).await;
    place.execute(cut).await;
    commit(&mut store, 0x400, async |_| {}).await.1.unwrap();
}

async fn a_stopped_server_is_given_up(major: u32) {
    let (mut cluster, mut store) = started_alone(major).await;
    cluster.stop_fast().unwrap();
    let (attempts, result) = commit(&mut store, 0x200, async |_| {}).await;
    check(result, Class::Operator, "checkpoint_store(unavailable)");
    assert_eq!(attempts, 4, "the first attempt and three retries, and no more");
    cluster.launch().unwrap();
    assert_eq!(store.load(PIPELINE).await.unwrap().unwrap().acked, Lsn::new(0x100));
}

async fn a_fault_may_heal(major: u32) {
    let (place, mut store) = started(major).await;
    let fault = "ALTER TABLE walgate.checkpoints ADD CONSTRAINT fault CHECK (end_lsn <= '0/100') NOT VALID";
    place.execute(fault).await;
    let (attempts, result) = commit(&mut store, 0x200, async |_| {}).await;
    check(result, Class::Operator, "checkpoint_store(write)");
    assert_eq!(attempts, 4);
    assert_eq!(store.load(PIPELINE).await.unwrap().unwrap().acked, Lsn::new(0x100));

    let (attempts, result) = commit(&mut store, 0x200, async |attempt| {
        if attempt == 3 {
            place.execute("ALTER TABLE walgate.checkpoints DROP CONSTRAINT fault").await;
        }
    })
    .await;
    assert_eq!((attempts, result.unwrap().acked()), (3, Lsn::new(0x200)));
}

async fn a_permanent_fault_is_tried_once(major: u32) {
    let (place, mut store) = started(major).await;
    place.execute("ALTER TABLE walgate.checkpoints ALTER COLUMN generation TYPE boolean USING true").await;
    let (attempts, result) = commit(&mut store, 0x200, async |_| {}).await;
    check(result, Class::Operator, "checkpoint_store(schema)");
    assert_eq!(attempts, 1);
}

/// Spec 2.32: a constraint that no position satisfies is tried again N times, and the store is left alone after that; a
/// wrong column type is not tried again at all. The sequence counts what reaches the table, a rolled back write too.
async fn any_real_position_is_refused_n_times_and_no_more(major: u32) {
    let (place, mut store) = started(major).await;
    let counting = "CREATE SEQUENCE public.attempts;
        CREATE FUNCTION public.count_attempt() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM nextval('public.attempts'); RETURN NEW; END $$;
        CREATE TRIGGER count_attempt BEFORE UPDATE ON walgate.checkpoints
            FOR EACH ROW EXECUTE FUNCTION public.count_attempt();
        ALTER TABLE walgate.checkpoints ADD CONSTRAINT fault CHECK (end_lsn < '0/1') NOT VALID";
    place.execute(counting).await;
    let client = place.client().await;
    let attempts = async || -> i64 {
        let sql = "SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM public.attempts";
        client.query_one(sql, &[]).await.unwrap().get(0)
    };
    let mut checkpoint = to(0x200);
    checkpoint.dead_letters.push(crate::letters::letter("b1", &["t"]));
    let mut retries = Retries::new(QUICK);
    let given_up = loop {
        let refused = store.commit(PIPELINE, &lineage(), &checkpoint).await.unwrap_err();
        if let Err(error) = retries.after(refused).await {
            break error;
        }
    };
    check::<()>(Err(given_up), Class::Operator, "checkpoint_store(write)");
    assert_eq!(attempts().await, 1 + i64::from(QUICK.max_retries));

    place.execute("ALTER TABLE walgate.checkpoints DROP CONSTRAINT fault").await;
    assert_eq!(attempts().await, 4, "nothing tries again by itself, also when the fault is gone");
    let letters = "SELECT count(*) FROM walgate.dead_letters";
    assert_eq!(client.query_one(letters, &[]).await.unwrap().get::<_, i64>(0), 0);
    // A later commit begins to count anew.
    let (tried, durable) = commit(&mut store, 0x200, async |_| {}).await;
    assert_eq!((tried, durable.unwrap().acked()), (1, Lsn::new(0x200)));

    place.execute("ALTER TABLE walgate.dead_letters ALTER COLUMN generation TYPE boolean USING true").await;
    let mut retries = Retries::new(QUICK);
    let refused = store.commit(PIPELINE, &lineage(), &checkpoint).await.unwrap_err();
    check(retries.after(refused).await, Class::Operator, "checkpoint_store(schema)");
    assert_eq!(retries.failures(), 1, "zero retries");
}

/// The checkpoint stage is a spawned task, so the future must be free to move between threads.
async fn retrying_works_in_a_task(major: u32) {
    let (_place, mut store) = started(major).await;
    let task = tokio::spawn(async move {
        let mut retries = Retries::new(QUICK);
        loop {
            match store.commit(PIPELINE, &lineage(), &to(0x200)).await {
                Ok(durable) => return Ok(durable),
                Err(error) => retries.after(error).await?,
            }
        }
    });
    let durable: Result<_, StoreError> = task.await.unwrap();
    assert_eq!(durable.unwrap().acked(), Lsn::new(0x200));
}
