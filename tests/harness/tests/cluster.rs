//! Real servers of both ends of the supported range: start, talk, crash, recover, leave nothing behind.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use walgate_harness::{Cluster, cpu_time, majors, wait_until};

#[tokio::test]
async fn a_cluster_answers_on_both_addresses_and_leaves_nothing() -> Result<()> {
    for major in majors() {
        let cluster = Cluster::start(major)?;
        let (pid, folder) = (cluster.pid().unwrap(), cluster.socket_dir().to_owned());
        let version: i32 = setting(&cluster, "server_version_num").await?.parse()?;
        assert_eq!(version / 10_000, i32::try_from(major)?);
        assert_eq!(setting(&cluster, "wal_level").await?, "logical");
        assert_eq!(setting(&cluster, "fsync").await?, "off");

        let (client, connection) = tokio_postgres::connect(&cluster.url("postgres"), tokio_postgres::NoTls).await?;
        tokio::spawn(connection);
        client.batch_execute("SELECT pg_create_logical_replication_slot('s', 'pgoutput')").await?;
        cpu_time(pid)?;

        drop(cluster);
        assert!(!folder.exists(), "{} is left", folder.display());
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "process {pid} is left");
    }
    Ok(())
}

#[tokio::test]
async fn rows_survive_a_crash_and_the_port_stays() -> Result<()> {
    let mut cluster = Cluster::builder(18).durable(true).start()?;
    let port = cluster.port();
    cluster.execute("postgres", "CREATE TABLE t (id int); INSERT INTO t VALUES (1)").await?;
    let client = cluster.client("postgres").await?;
    cluster.stop_immediate()?;
    wait_until(Duration::from_secs(10), "the client sees the end", async || Ok(client.is_closed())).await?;
    cluster.launch()?;
    assert_eq!(cluster.port(), port);
    cluster.restart()?;
    let rows = cluster.client("postgres").await?.query("SELECT id FROM t", &[]).await?;
    assert_eq!(rows.len(), 1);
    assert!(cluster.log().contains("database system was not properly shut down"));
    Ok(())
}

#[tokio::test]
async fn two_clusters_have_two_identities() -> Result<()> {
    let (one, two) = (Cluster::start(18)?, Cluster::start(18)?);
    assert_ne!(identity(&one).await?, identity(&two).await?);
    Ok(())
}

#[tokio::test]
async fn own_access_rules_shut_out_strangers() -> Result<()> {
    let cluster = Cluster::builder(15).hba("host all all 127.0.0.1/32 scram-sha-256").start()?;
    cluster.execute("postgres", "CREATE ROLE app LOGIN PASSWORD 'right'").await?;
    let connect = async |password| {
        let url = cluster.url_as("app", password, "postgres");
        tokio_postgres::connect(&url, tokio_postgres::NoTls).await.map(|_| ())
    };
    connect("right").await?;
    assert!(connect("wrong").await.is_err());
    Ok(())
}

#[test]
fn a_server_that_does_not_start_shows_its_log() {
    let error = Cluster::builder(18).setting("shared_buffers", "a lot").start().unwrap_err().to_string();
    assert!(error.contains("shared_buffers"), "{error}");
}

async fn setting(cluster: &Cluster, name: &str) -> Result<String> {
    let row = cluster.client("postgres").await?.query_one("SELECT current_setting($1)", &[&name]).await?;
    Ok(row.try_get(0)?)
}

async fn identity(cluster: &Cluster) -> Result<i64> {
    let client = cluster.client("postgres").await?;
    Ok(client.query_one("SELECT system_identifier FROM pg_control_system()", &[]).await?.try_get(0)?)
}
