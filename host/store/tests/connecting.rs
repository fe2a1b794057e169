//! The connection phase: over TLS, over a socket file, and refused.

use std::sync::Arc;

use rustls::crypto::ring;
use rustls::{ClientConfig, RootCertStore};
use walgate_harness::{Cluster, free_port};
use walgate_store::{Class, Store};

use crate::{check, on_both};

on_both! { tls_is_used_and_verified a_socket_file_needs_no_tls refusals_are_for_the_operator }

async fn tls_is_used_and_verified(major: u32) {
    let ours = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let other = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let cluster = Cluster::builder(major)
        .ssl(&ours.cert.pem(), &ours.signing_key.serialize_pem(), None)
        .hba("hostssl all all 127.0.0.1/32 trust")
        .start()
        .unwrap();
    let config = |mode: &str| -> tokio_postgres::Config {
        let port = cluster.port();
        format!("host=localhost hostaddr=127.0.0.1 port={port} user=postgres dbname=postgres sslmode={mode}")
            .parse()
            .unwrap()
    };
    let mut store = Store::connect(config("require"), Some(trusting(&ours))).await.unwrap();
    store.migrate().await.unwrap();

    let untrusted = Store::connect(config("require"), Some(trusting(&other))).await;
    check(untrusted, Class::Operator, "checkpoint_store(access)");
    let plain = Store::connect(config("prefer"), None).await;
    let error = check(plain, Class::Operator, "checkpoint_store(access)");
    assert!(error.to_string().contains("28000"), "{error}");
}

fn trusting(certificate: &rcgen::CertifiedKey<rcgen::KeyPair>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.cert.der().clone()).unwrap();
    ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

async fn a_socket_file_needs_no_tls(major: u32) {
    let cluster = Cluster::start(major).unwrap();
    let unused = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let config = cluster.unix_url("postgres").parse().unwrap();
    let mut store = Store::connect(config, Some(trusting(&unused))).await.unwrap();
    store.migrate().await.unwrap();
}

async fn refusals_are_for_the_operator(major: u32) {
    let cluster = Cluster::builder(major).hba("host all all 127.0.0.1/32 scram-sha-256").start().unwrap();
    cluster.execute("postgres", "CREATE ROLE app LOGIN PASSWORD 'right'").await.unwrap();
    let connect = async |url: String| Store::connect(url.parse().unwrap(), None).await;

    let wrong = connect(cluster.url_as("app", "wrong", "postgres")).await;
    let error = check(wrong, Class::Operator, "checkpoint_store(access)");
    assert!(error.to_string().contains("28P01") && !error.to_string().contains("wrong"), "{error}");
    check(connect(cluster.url("postgres")).await, Class::Operator, "checkpoint_store(access)");
    let nowhere = connect(cluster.url_as("app", "right", "nowhere")).await;
    let error = check(nowhere, Class::Operator, "checkpoint_store(access)");
    assert!(error.to_string().contains("nowhere"), "{error}");

    let silent = format!("postgres://app:right@127.0.0.1:{}/postgres", free_port().unwrap());
    check(connect(silent).await, Class::Retry, "checkpoint_store(unavailable)");
}
