//! Connecting, authentication, pinned settings, queries.

use std::time::Duration;

use secrecy::SecretString;
use tokio::net::TcpListener;
use tokio::sync::watch;
use walgate_harness::{Cluster, free_port, majors};
use walgate_wire::{Backoff, Class, Connection, Host, SourceOptions, TlsMode, literal};

use crate::support::{DEADLINE, connect, options};

#[tokio::test(flavor = "multi_thread")]
async fn tcp_and_unix_with_pinned_settings_on_every_version() {
    for major in majors() {
        let cluster = Cluster::builder(major).setting("wal_sender_timeout", "7s").start().unwrap();
        let sql = "ALTER ROLE postgres SET DateStyle = 'German'; ALTER ROLE postgres SET TimeZone = 'Asia/Tokyo'; \
                   ALTER ROLE postgres SET statement_timeout = '5s'; ALTER ROLE postgres SET bytea_output = 'escape'";
        cluster.execute("postgres", sql).await.unwrap();
        let unix = SourceOptions::from_url(&cluster.unix_url("postgres")).unwrap();
        assert!(matches!(unix.host, Host::Unix(_)));
        for mut options in [options(&cluster), unix] {
            options.application_name = "it's \"me\"".into();
            let mut connection = Connection::connect(&options).await.unwrap();
            assert_eq!(connection.server_version(), major);
            assert_eq!(connection.parameter("TimeZone"), Some("UTC"));
            let identity = connection.identify_system().await.unwrap();
            assert_eq!((identity.timeline, identity.database.as_str()), (1, "postgres"));
            assert!(!identity.system_id.is_empty() && !identity.xlog_pos.is_zero());
            assert_eq!(connection.setting("wal_sender_timeout").await.unwrap().as_deref(), Some("7000"));
            assert_eq!(connection.setting("no_such_setting").await.unwrap(), None);
            for (name, value) in [
                ("client_encoding", "UTF8"),
                ("DateStyle", "ISO, MDY"),
                ("IntervalStyle", "postgres"),
                ("extra_float_digits", "3"),
                ("bytea_output", "hex"),
                ("TimeZone", "UTC"),
                ("statement_timeout", "0"),
                ("idle_session_timeout", "0"),
                ("application_name", "it's \"me\""),
            ] {
                let rows = connection.query(&format!("SHOW {name}")).await.unwrap();
                assert_eq!(rows[0].get(0), Some(value), "{name} on {major}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn queries_give_text_and_survive_a_refusal() {
    let cluster = Cluster::start(15).unwrap();
    let mut connection = connect(&cluster).await;
    let nasty = "it's a \\ \"quote\" $$ ; -- ü";
    let sql = format!("SELECT 1, NULL, '', {} UNION ALL SELECT 2, 'x', 'y', 'z' ORDER BY 1", literal(nasty));
    let rows = connection.query(&sql).await.unwrap();
    assert_eq!(rows.len(), 2);
    assert_eq!((rows[0].get(0), rows[0].get(1), rows[0].get(2)), (Some("1"), None, Some("")));
    assert_eq!(rows[0].get(3), Some(nasty));

    // The server would quote the value: neither its message nor its detail may come out.
    let error = connection.query("SELECT 's3cr3t'::int").await.unwrap_err();
    assert_eq!(error.sqlstate(), Some("22P02"));
    assert!(!format!("{error} {error:?}").contains("s3cr3t"));
    assert_eq!(connection.query("SELECT 1").await.unwrap().len(), 1, "the session goes on");

    let half = tokio::time::timeout(Duration::from_millis(50), connection.query("SELECT pg_sleep(60)")).await;
    assert!(half.is_err());
    let error = connection.query("SELECT 1").await.unwrap_err();
    assert!(error.is_connection_loss(), "an abandoned answer is not taken for the next one: {error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn kf_098_passwords_of_any_characters_by_every_method() {
    for (method, encryption) in [("scram-sha-256", "scram-sha-256"), ("md5", "md5"), ("password", "scram-sha-256")] {
        let cluster = Cluster::builder(15)
            .setting("password_encryption", encryption)
            .hba(&format!("host all all 127.0.0.1/32 {method}"))
            .hba(&format!("local all all {method}"))
            .start()
            .unwrap();
        cluster.execute("postgres", "CREATE ROLE r LOGIN REPLICATION").await.unwrap();
        for password in ["plain", "p@ss #%25$/:?& 'x' \"y\" \\ä€\u{1F511}", " lead and trail "] {
            let sql = format!("ALTER ROLE r PASSWORD {}", literal(password));
            cluster.execute("postgres", &sql).await.unwrap();
            let mut options = options(&cluster).with_password(SecretString::from(password));
            options.user = "r".into();
            Connection::connect(&options).await.unwrap();
            options.host = Host::Unix(cluster.socket_dir().to_owned());
            Connection::connect(&options).await.unwrap();

            let error = Connection::connect(&options.clone().with_password("wrong".into())).await.unwrap_err();
            assert_eq!((error.class(), error.halt_name()), (Class::Operator, "authentication"), "{method}: {error}");
            options.password = None;
            let error = Connection::connect(&options).await.unwrap_err();
            assert_eq!(error.halt_name(), "authentication", "{method}: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_have_a_class() {
    let cluster = Cluster::builder(15).hba("host all all 127.0.0.1/32 trust").start().unwrap();
    let check = async |options: &SourceOptions, class, name| {
        let error = Connection::connect(options).await.unwrap_err();
        assert_eq!((error.class(), error.halt_name()), (class, name), "{error}");
    };
    let mut other = options(&cluster);
    other.database = "absent".into();
    check(&other, Class::Operator, "database_missing").await;
    other = options(&cluster);
    other.user = "absent".into();
    check(&other, Class::Operator, "authentication").await;
    cluster.execute("postgres", "CREATE ROLE plain LOGIN").await.unwrap();
    other.user = "plain".into();
    check(&other, Class::Operator, "permission").await;
    // Of its own, because a server keeps the place of one that it refused until that process has ended.
    let small =
        Cluster::builder(15).setting("max_wal_senders", "1").hba("host all all 127.0.0.1/32 trust").start().unwrap();
    let _first = Connection::connect(&options(&small)).await.unwrap();
    check(&options(&small), Class::Retry, "too_many_connections").await;
    other = options(&cluster);
    other.port = free_port().unwrap();
    check(&other, Class::Retry, "connection_lost").await;
    other.host = Host::Unix("/nonexistent".into());
    check(&other, Class::Retry, "connection_lost").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_never_answers_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    for mode in [TlsMode::Disable, TlsMode::Prefer] {
        let mut options = SourceOptions::new(Host::Tcp("127.0.0.1".into()), "u", "d");
        options.port = listener.local_addr().unwrap().port();
        options.tls.mode = mode;
        options.connect_timeout = Duration::from_millis(200);
        let error = Connection::connect(&options).await.unwrap_err();
        assert_eq!((error.class(), error.halt_name()), (Class::Retry, "connect_timeout"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_until_the_server_is_there_until_it_makes_no_sense_or_until_told_to_stop() {
    let mut cluster = Cluster::start(15).unwrap();
    cluster.stop_immediate().unwrap();
    let options = options(&cluster);
    let (stop, mut stop_watch) = watch::channel(false);
    let waiting = tokio::spawn({
        let (options, mut stop) = (options.clone(), stop_watch.clone());
        async move {
            let mut backoff = Backoff::new();
            let connection = Connection::connect_retrying(&options, &mut backoff, &mut stop).await;
            (connection, backoff.attempts())
        }
    });
    cluster.launch().unwrap();
    let (connection, attempts) = tokio::time::timeout(DEADLINE, waiting).await.unwrap().unwrap();
    assert!(connection.unwrap().is_some());
    assert_eq!(attempts, 0, "success resets the backoff");

    let mut absent = options.clone();
    absent.database = "absent".into();
    let error = Connection::connect_retrying(&absent, &mut Backoff::new(), &mut stop_watch).await.unwrap_err();
    assert_eq!(error.halt_name(), "database_missing");

    cluster.stop_immediate().unwrap();
    let waiting =
        tokio::spawn(async move { Connection::connect_retrying(&options, &mut Backoff::new(), &mut stop_watch).await });
    stop.send_replace(true);
    let stopped = tokio::time::timeout(DEADLINE, waiting).await.unwrap().unwrap();
    assert!(stopped.unwrap().is_none());
}
