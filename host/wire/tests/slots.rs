//! Slots and publications: create, inspect, drop, on every version.

use walgate_core::Lsn;
use walgate_harness::{Cluster, majors};
use walgate_wire::{Class, Connection, SlotOptions, identifier};

use crate::support::{connect, options, prepare, pump, start, start_options, wait_active};

#[tokio::test(flavor = "multi_thread")]
async fn create_inspect_and_drop_on_every_version() {
    for major in majors() {
        let cluster = Cluster::start(major).unwrap();
        let mut connection = connect(&cluster).await;
        assert_eq!(connection.slot("s").await.unwrap(), None);
        let created = connection.create_slot("s", SlotOptions::default()).await.unwrap();
        assert_eq!((created.name.as_str(), created.snapshot.as_deref()), ("s", None));
        let slot = connection.slot("s").await.unwrap().unwrap();
        assert_eq!((slot.plugin.as_str(), slot.database.as_str()), ("pgoutput", "postgres"));
        assert_eq!((slot.temporary, slot.active, slot.active_pid), (false, false, None));
        assert_eq!(slot.confirmed_flush, Some(created.consistent_point));
        assert!(slot.restart_lsn.is_some_and(|lsn| lsn <= created.consistent_point));
        assert_eq!(slot.wal_status.as_deref(), Some("reserved"));
        assert_eq!(slot.conflicting, (major >= 16).then_some(false));
        assert_eq!(slot.failover, (major >= 17).then_some(false));
        assert_eq!(slot.invalidated(), None);

        let error = connection.create_slot("s", SlotOptions::default()).await.unwrap_err();
        assert_eq!((error.class(), error.halt_name()), (Class::Operator, "slot_exists"), "{error}");
        let exported = SlotOptions { temporary: true, export_snapshot: true, ..Default::default() };
        let temporary = connection.create_slot("tmp", exported).await.unwrap();
        assert!(temporary.snapshot.is_some());
        let all = connection.slots().await.unwrap();
        assert_eq!(all.iter().map(|slot| slot.name.as_str()).collect::<Vec<_>>(), ["s", "tmp"]);
        let failover = connection.create_slot("f", SlotOptions { failover: true, ..Default::default() }).await;
        assert_eq!(failover.is_ok(), major >= 17);

        connection.drop_slot("s", false).await.unwrap();
        let error = connection.drop_slot("s", true).await.unwrap_err();
        assert_eq!((error.class(), error.halt_name()), (Class::Operator, "slot_missing"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_in_use_names_its_reader() {
    let cluster = Cluster::start(15).unwrap();
    prepare(&cluster).await.unwrap();
    let first = pump(start(&cluster).await, 1 << 20);
    wait_active(&cluster, true).await.unwrap();
    let mut connection = connect(&cluster).await;
    let slot = connection.slot("s").await.unwrap().unwrap();
    assert_eq!(slot.active_application.as_deref(), Some("walgate"));
    let error = connection.drop_slot("s", false).await.unwrap_err();
    assert_eq!((error.class(), error.active_pid()), (Class::Retry, slot.active_pid), "{error}");
    let error = connection.start_replication(&start_options()).await.unwrap_err();
    assert_eq!((error.halt_name(), error.class(), error.active_pid()), ("slot_active", Class::Retry, slot.active_pid));
    assert!(error.to_string().contains("walgate"), "{error}");
    first.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn kf_036_only_a_session_of_ours_is_ended() {
    for major in majors() {
        let cluster = Cluster::start(major).unwrap();
        prepare(&cluster).await.unwrap();
        let reading = pump(start(&cluster).await, 1 << 20);
        wait_active(&cluster, true).await.unwrap();
        let pid = connect(&cluster).await.slot("s").await.unwrap().unwrap().active_pid.unwrap();
        assert!(connect(&cluster).await.last_reply(pid).await.unwrap().is_some());

        let mut other_name = options(&cluster);
        other_name.application_name = "someone else".to_owned();
        cluster.execute("postgres", "CREATE ROLE r SUPERUSER REPLICATION LOGIN").await.unwrap();
        let mut other_role = options(&cluster);
        other_role.user = "r".to_owned();
        for other in [other_name, other_role] {
            let mut connection = Connection::connect(&other).await.unwrap();
            assert!(!connection.terminate(pid).await.unwrap(), "{} {}", other.application_name, other.user);
            assert!(connection.slot("s").await.unwrap().unwrap().active);
        }
        let mut ours = connect(&cluster).await;
        assert!(!ours.terminate(0).await.unwrap() && !ours.terminate(-1).await.unwrap());
        assert!(ours.terminate(pid).await.unwrap());
        assert_eq!(reading.end().await.unwrap_err().sqlstate(), Some("57P01"));
        wait_active(&cluster, false).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordinary_session_and_a_standby_tell_what_they_are() {
    for major in majors() {
        let cluster = Cluster::start(major).unwrap();
        cluster.execute("postgres", "CREATE ROLE plain LOGIN").await.unwrap();
        let mut plain = options(&cluster);
        plain.user = "plain".to_owned();
        assert_eq!(Connection::connect(&plain).await.unwrap_err().halt_name(), "permission");
        assert!(!Connection::connect_sql(&plain).await.unwrap().in_recovery().await.unwrap());

        let standby = cluster.standby(&[]).await.unwrap();
        assert!(connect(&standby).await.in_recovery().await.unwrap());
        let slots = connect(&cluster).await.physical_slots().await.unwrap();
        assert_eq!((slots.len(), slots[0].active), (1, true), "{slots:?}");
        assert!(slots[0].restart_lsn.is_some());
        assert_eq!(connect(&cluster).await.timeline_history(1).await.unwrap().switch_point(1), None);

        standby.promote().await.unwrap();
        let mut connection = connect(&standby).await;
        let identity = connection.identify_system().await.unwrap();
        let history = connection.timeline_history(identity.timeline).await.unwrap();
        assert_eq!((identity.timeline, history.timeline(), history.switch_point(2)), (2, 2, None));
        assert!(history.switch_point(1).is_some_and(|fork| fork <= identity.xlog_pos && fork > Lsn::ZERO));
        let error = connection.timeline_history(9).await.unwrap_err();
        assert_eq!((error.class(), error.halt_name()), (Class::Operator, "lineage_changed"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tells_which_publications_are_missing() {
    let cluster = Cluster::start(15).unwrap();
    let names = ["it's", "a\"b", "A,b", "äö \\ x", "%"].map(str::to_owned);
    for name in &names {
        cluster.execute("postgres", &format!("CREATE PUBLICATION {}", identifier(name))).await.unwrap();
    }
    let mut connection = connect(&cluster).await;
    assert!(connection.missing_publications(&names).await.unwrap().is_empty());
    assert!(connection.missing_publications(&[]).await.unwrap().is_empty());
    let asked = [names.to_vec(), vec!["a%".to_owned(), "a,b".to_owned(), "x".repeat(200)]].concat();
    assert_eq!(connection.missing_publications(&asked).await.unwrap(), asked[names.len()..]);

    // And pgoutput finds them under the same names.
    cluster.execute("postgres", "CREATE TABLE t (id int PRIMARY KEY, v text)").await.unwrap();
    for name in &names {
        cluster.execute("postgres", &format!("ALTER PUBLICATION {} ADD TABLE t", identifier(name))).await.unwrap();
    }
    connection.create_slot("s", SlotOptions::default()).await.unwrap();
    let mut options = start_options();
    options.publications = names.to_vec();
    options.start = Lsn::ZERO;
    let mut pumping = pump(connection.start_replication(&options).await.unwrap(), 1 << 20);
    cluster.execute("postgres", "INSERT INTO t VALUES (1, 'x')").await.unwrap();
    assert_eq!(pumping.receive(1).await.inserts, 1);
    pumping.stop().await.unwrap();
}
