//! A holder of a cluster that is killed, not asked: the server and its folder must still go.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use walgate_harness::wait_until;

#[tokio::test]
async fn a_killed_holder_leaves_neither_server_nor_folder() -> Result<()> {
    let mut holder = Command::new(env!("CARGO_BIN_EXE_walgate-throwaway-postgres"))
        .arg("18")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    BufReader::new(holder.stdout.take().context("stdout is piped")?).read_line(&mut line)?;
    assert!(line.starts_with("postgres://postgres@127.0.0.1:"), "{line}");
    let mut words = String::new();
    BufReader::new(holder.stderr.take().context("stderr is piped")?).read_line(&mut words)?;
    let folder = words.split("host=").nth(1).and_then(|rest| rest.split('&').next()).context("no socket folder")?;
    let pid = std::fs::read_to_string(Path::new(folder).join("data/postmaster.pid"))?;
    let pid = pid.lines().next().context("no process id")?.to_owned();

    holder.kill()?;
    holder.wait()?;
    let gone = async || Ok(!Path::new(folder).exists() && !Path::new("/proc").join(&pid).exists());
    wait_until(Duration::from_secs(30), "the guard has cleaned up", gone).await
}
