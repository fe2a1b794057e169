//! Takeovers: what an earlier leader may still write (nothing), and what a new one finds.

use std::time::Duration;

use tokio_postgres::Client;
use walgate_core::{Cursor, Lsn};
use walgate_harness::wait_until;
use walgate_store::{Checkpoint, Class, Store, StoreError, StoreReader, StoredHalt};

use crate::letters::letter;
use crate::{PIPELINE, PLUGIN, check, lineage, migrated, on_both, started, to};

on_both! { an_earlier_leader_can_write_nothing a_takeover_waits_for_what_is_under_way a_takeover_amid_commits
takeovers_rise another_pipeline_is_not_fenced a_promoted_source_is_followed publications_are_recorded
a_leader_is_shown }

const DEADLINE: Duration = Duration::from_secs(20);

fn halt() -> StoredHalt {
    StoredHalt { name: "slot_missing".into(), plugin: None, detail: "what to do".into() }
}

/// Everything that is stored, in one text.
async fn everything(client: &Client) -> String {
    let mut all = String::new();
    for table in [
        "pipelines",
        "checkpoints",
        "plugin_state",
        "outputs",
        "halts",
        "leaders",
        "dead_letters",
        "dead_letter_losses",
    ] {
        let sql = format!("SELECT coalesce(string_agg(t::text, ' ' ORDER BY t::text), '') FROM walgate.{table} t");
        all.push_str(&client.query_one(&sql, &[]).await.unwrap().get::<_, String>(0));
        all.push('\n');
    }
    all
}

async fn an_earlier_leader_can_write_nothing(major: u32) {
    let (place, mut old) = started(major).await;
    let mut first = to(0x200);
    first.dead_letters = vec![letter("b1", &["public.orders"])];
    old.take_over(PIPELINE, "old:1").await.unwrap();
    old.commit(PIPELINE, &lineage(), &first).await.unwrap();
    place.store().await.take_over(PIPELINE, "new:2").await.unwrap();
    let client = place.client().await;
    let before = everything(&client).await;

    let cursor = Cursor::at(Lsn::new(0x300));
    let idle = Checkpoint { acked: Lsn::new(0x300), ..Checkpoint::default() };
    let mut letters = idle.clone();
    letters.dead_letters = vec![letter("b2", &["public.orders"])];
    let refused: Vec<(&str, Result<(), StoreError>)> = vec![
        ("commit", old.commit(PIPELINE, &lineage(), &to(0x300)).await.map(drop)),
        ("idle commit", old.commit(PIPELINE, &lineage(), &idle).await.map(drop)),
        ("commit with letters", old.commit(PIPELINE, &lineage(), &letters).await.map(drop)),
        ("adopt", old.adopt(PIPELINE, &lineage(), Lsn::new(0x300)).await),
        ("start_plugin, new", old.start_plugin(PIPELINE, "second", cursor, 1).await.map(drop)),
        ("start_plugin, known", old.start_plugin(PIPELINE, PLUGIN, cursor, 1).await.map(drop)),
        ("register_output", old.register_output(PIPELINE, PLUGIN, "audit").await),
        ("set_halt", old.set_halt(PIPELINE, &halt()).await),
        // There is no halt: a write that would meet no row is refused all the same.
        ("clear_halt", old.clear_halt(PIPELINE).await),
        ("follow_timeline", old.follow_timeline(PIPELINE, 2).await),
        ("set_publications", old.set_publications(PIPELINE, &["p".to_owned()]).await),
        ("expire_letters", old.expire_letters(PIPELINE, Duration::ZERO).await.map(drop)),
        ("forget", old.forget(PIPELINE).await.map(drop)),
    ];
    for (method, result) in refused {
        match result {
            Ok(()) => panic!("{method} was not refused"),
            Err(error) => {
                assert_eq!((error.class(), error.halt_name()), (Class::Operator, "fenced"), "{method}: {error}")
            }
        }
    }
    assert_eq!(everything(&client).await, before, "nothing was written");
    // What a person does beside the leader is not its write, and drawing an epoch fences nobody.
    old.request_redrive(PIPELINE, None, None).await.unwrap();
    old.next_epoch().await.unwrap();
}

/// The takeover is answered only after the transaction that holds the older epoch has ended: what that wrote is there.
async fn a_takeover_waits_for_what_is_under_way(major: u32) {
    let (place, mut old) = started(major).await;
    let epoch = i64::try_from(old.take_over(PIPELINE, "old:1").await.unwrap()).unwrap();
    let mut client = place.client().await;
    let under_way = client.transaction().await.unwrap();
    under_way.query("SELECT walgate.hold_epoch($1, $2)", &[&PIPELINE, &epoch]).await.unwrap();
    under_way.execute("UPDATE walgate.pipelines SET acked = '0/250'", &[]).await.unwrap();

    let mut new = place.store().await;
    let takeover = tokio::spawn(async move {
        new.take_over(PIPELINE, "new:2").await.unwrap();
        new.load(PIPELINE).await.unwrap().unwrap().acked
    });
    let observer = place.client().await;
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    wait_until(DEADLINE, "the takeover waits for the lock", async || {
        Ok(observer.query_one(waits, &[]).await?.get::<_, i64>(0) == 1)
    })
    .await
    .unwrap();
    assert!(!takeover.is_finished());
    under_way.commit().await.unwrap();
    assert_eq!(takeover.await.unwrap(), Lsn::new(0x250));
    check(old.commit(PIPELINE, &lineage(), &to(0x300)).await, Class::Operator, "fenced");
}

/// The last position that the old leader was told is durable is in what the new one loads, and nothing beyond it comes.
async fn a_takeover_amid_commits(major: u32) {
    let (place, mut old) = started(major).await;
    old.take_over(PIPELINE, "old:1").await.unwrap();
    let (told, mut hears) = tokio::sync::watch::channel(Lsn::ZERO);
    let commits = tokio::spawn(async move {
        for end in 0x101.. {
            match old.commit(PIPELINE, &lineage(), &to(end)).await {
                Ok(durable) => told.send(durable.acked()).unwrap(),
                Err(error) => return error,
            }
        }
        unreachable!("commits do not end by themselves")
    });
    let mut new = place.store().await;
    hears.wait_for(|acked| *acked > Lsn::new(0x110)).await.unwrap();
    new.take_over(PIPELINE, "new:2").await.unwrap();
    let found = new.load(PIPELINE).await.unwrap().unwrap().acked;
    check::<()>(Err(commits.await.unwrap()), Class::Operator, "fenced");
    assert_eq!(*hears.borrow(), found, "what was told is what was found");
    assert_eq!(new.load(PIPELINE).await.unwrap().unwrap().acked, found);
    new.commit(PIPELINE, &lineage(), &to(found.get() + 1)).await.unwrap();
}

async fn takeovers_rise(major: u32) {
    let (place, mut one) = migrated(major).await;
    assert_eq!(one.epoch(), None);
    let first = one.take_over(PIPELINE, "one").await.unwrap();
    assert_eq!(one.epoch(), Some(first));
    let opened = one.next_epoch().await.unwrap();
    let (mut two, mut three) = (place.store().await, place.store().await);
    let (second, third) = tokio::join!(two.take_over(PIPELINE, "two"), three.take_over(PIPELINE, "three"));
    let (second, third) = (second.unwrap(), third.unwrap());
    assert!(first < opened && opened < second.min(third), "{first} {opened} {second} {third}");
    // Of two at once, the larger epoch is the one that leads.
    let leads = place.client().await.query_one("SELECT epoch FROM walgate.leaders", &[]).await.unwrap();
    assert_eq!(leads.get::<_, i64>(0), i64::try_from(second.max(third)).unwrap());
    // The first one takes over again, and forgetting leaves the fence.
    let again = one.take_over(PIPELINE, "one").await.unwrap();
    one.forget(PIPELINE).await.unwrap();
    assert!(again > second.max(third));
    check(two.set_halt(PIPELINE, &halt()).await, Class::Operator, "fenced");
}

async fn another_pipeline_is_not_fenced(major: u32) {
    let (place, mut store) = started(major).await;
    store.take_over("another", "one").await.unwrap();
    place.store().await.take_over("another", "two").await.unwrap();
    store.commit(PIPELINE, &lineage(), &to(0x200)).await.unwrap();
    check(store.set_halt("another", &halt()).await, Class::Operator, "fenced");
}

async fn a_promoted_source_is_followed(major: u32) {
    let (_place, mut store) = started(major).await;
    assert_eq!(store.load(PIPELINE).await.unwrap().unwrap().timeline, 1);
    store.follow_timeline(PIPELINE, u32::MAX).await.unwrap();
    let row = store.load(PIPELINE).await.unwrap().unwrap();
    assert_eq!((row.timeline, row.lineage), (u32::MAX, lineage()));
    // The identity is what it was, for commits and for later starts.
    store.commit(PIPELINE, &lineage(), &to(0x200)).await.unwrap();
    store.adopt(PIPELINE, &lineage(), Lsn::new(0x200)).await.unwrap();
    let nowhere = store.follow_timeline("no such pipeline", 2).await;
    check(nowhere, Class::Operator, "checkpoint_store(lineage_changed)");
}

async fn publications_are_recorded(major: u32) {
    let (_place, mut store) = started(major).await;
    assert_eq!(store.load(PIPELINE).await.unwrap().unwrap().publications, None);
    for publications in [vec!["a\"b".to_owned(), "ü".to_owned()], vec![]] {
        store.set_publications(PIPELINE, &publications).await.unwrap();
        assert_eq!(store.load(PIPELINE).await.unwrap().unwrap().publications, Some(publications));
    }
    let nowhere = store.set_publications("no such pipeline", &[]).await;
    check(nowhere, Class::Operator, "checkpoint_store(lineage_changed)");
}

async fn a_leader_is_shown(major: u32) {
    let place = crate::Place::make(major).await;
    let mut reader = StoreReader::connect(place.config(), None).await.unwrap();
    assert_eq!(reader.leader(PIPELINE).await.unwrap(), None, "walgate never ran here");
    let mut store = Store::connect(place.config(), None).await.unwrap();
    store.migrate().await.unwrap();
    assert_eq!(reader.leader(PIPELINE).await.unwrap(), None);
    let epoch = store.take_over(PIPELINE, "host:42").await.unwrap();
    let leader = reader.leader(PIPELINE).await.unwrap().unwrap();
    assert_eq!((leader.epoch, leader.holder.as_str()), (epoch, "host:42"));
    let next = store.take_over(PIPELINE, "host:43").await.unwrap();
    let after = reader.leader(PIPELINE).await.unwrap().unwrap();
    assert_eq!((after.epoch, after.holder.as_str()), (next, "host:43"));
    assert!(after.since > leader.since);
}
