//! Every TLS mode, against a server with a certificate for `localhost` only.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use walgate_harness::Cluster;
use walgate_wire::{Class, Connection, Host, SourceOptions, TlsMode};

use crate::support::{options, pump, start_options};

/// A CA, a server certificate for `localhost` and a client certificate for `postgres`, as PEM.
struct Certificates {
    ca: String,
    server: (String, String),
    client: (String, String),
}

fn certificates() -> Certificates {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(DnType::CommonName, "test ca");
    let key = KeyPair::generate().unwrap();
    let ca = params.self_signed(&key).unwrap().pem();
    let issuer = Issuer::new(params, key);
    let signed = |names: Vec<String>, common_name: &str| {
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name.push(DnType::CommonName, common_name);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    };
    let server = signed(vec!["localhost".into()], "localhost");
    let client = signed(Vec::new(), "postgres");
    Certificates { ca, server, client }
}

fn write(directory: &Path, name: &str, text: &str) -> PathBuf {
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// Connects and says whether the session is encrypted; else the name of the error, which must be an operator's.
async fn attempt(options: &SourceOptions) -> Result<bool, &'static str> {
    match Connection::connect(options).await {
        Ok(mut connection) => {
            let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
            Ok(connection.query(sql).await.unwrap()[0].get(0) == Some("t"))
        }
        Err(error) => {
            assert_eq!(error.class(), Class::Operator, "{error:?}");
            Err(error.halt_name())
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn modes_check_what_they_promise() {
    let directory = tempfile::tempdir().unwrap();
    let own = certificates();
    let ca = write(directory.path(), "ca.pem", &own.ca);
    let other_ca = write(directory.path(), "other.pem", &certificates().ca);
    let cluster = Cluster::builder(18).ssl(&own.server.0, &own.server.1, None).start().unwrap();
    let check = async |mode, host: &str, root: Option<&PathBuf>, expect| {
        let mut options = options(&cluster);
        options.host = Host::Tcp(host.to_owned());
        options.tls.mode = mode;
        options.tls.root_cert = root.cloned();
        assert_eq!(attempt(&options).await, expect, "{mode:?} {host} {root:?}");
    };
    let (named, unnamed) = ("localhost", "127.0.0.1");
    check(TlsMode::Disable, unnamed, None, Ok(false)).await;
    check(TlsMode::Prefer, unnamed, None, Ok(true)).await;
    check(TlsMode::Require, unnamed, None, Ok(true)).await;
    check(TlsMode::Require, unnamed, Some(&ca), Ok(true)).await;
    check(TlsMode::Require, unnamed, Some(&other_ca), Err("tls")).await;
    check(TlsMode::VerifyCa, unnamed, Some(&ca), Ok(true)).await;
    check(TlsMode::VerifyCa, named, Some(&other_ca), Err("tls")).await;
    check(TlsMode::VerifyFull, named, Some(&ca), Ok(true)).await;
    check(TlsMode::VerifyFull, unnamed, Some(&ca), Err("tls")).await;
    check(TlsMode::VerifyFull, named, Some(&other_ca), Err("tls")).await;
    check(TlsMode::VerifyFull, named, Some(&directory.path().join("absent.pem")), Err("tls")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_used_or_refused() {
    let cluster = Cluster::start(15).unwrap();
    let mut options = options(&cluster);
    for (mode, expect) in [
        (TlsMode::Prefer, Ok(false)),
        (TlsMode::Require, Err("tls")),
        (TlsMode::VerifyCa, Err("tls")),
        (TlsMode::VerifyFull, Err("tls")),
    ] {
        options.tls.mode = mode;
        assert_eq!(attempt(&options).await, expect, "{mode:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_certificate_logs_in_and_a_stream_runs_over_tls() {
    let directory = tempfile::tempdir().unwrap();
    let own = certificates();
    let cluster = Cluster::builder(15)
        .ssl(&own.server.0, &own.server.1, Some(&own.ca))
        .hba("hostssl all all 127.0.0.1/32 cert")
        .hba("hostnossl all r 127.0.0.1/32 trust")
        .start()
        .unwrap();
    cluster.execute("postgres", "CREATE ROLE r REPLICATION LOGIN SUPERUSER").await.unwrap();
    let mut options = options(&cluster);
    options.tls.mode = TlsMode::Require;
    assert_eq!(attempt(&options).await, Err("authentication"), "the server wants a certificate");
    options.tls.client_cert = Some(write(directory.path(), "client.pem", &own.client.0));
    options.tls.client_key = Some(write(directory.path(), "client.key", &own.client.1));
    assert_eq!(attempt(&options).await, Ok(true));

    let mut plain = options.clone();
    (plain.user, plain.tls.mode) = ("r".into(), TlsMode::Disable);
    assert_eq!(attempt(&plain).await, Ok(false));

    // The helper connects without TLS, which this server refuses to that role, so the slot is made here.
    cluster.execute("postgres", "CREATE TABLE t (id int PRIMARY KEY, v text)").await.unwrap();
    cluster.execute("postgres", "CREATE PUBLICATION p FOR TABLE t").await.unwrap();
    let mut connection = Connection::connect(&options).await.unwrap();
    connection.create_slot("s", walgate_wire::SlotOptions::default()).await.unwrap();
    let sql = "INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, 20000) n";
    cluster.execute("postgres", sql).await.unwrap();
    let stream = connection.start_replication(&start_options()).await.unwrap();
    let mut pumping = pump(stream, 1 << 20);
    assert_eq!(pumping.receive(20_000).await.inserts, 20_000);
    pumping.stop().await.unwrap();
}
