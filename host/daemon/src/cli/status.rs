//! `walgate status`: asks the running process; when there is none, tells what the state database knows.
//!
//! Holds: a minimal request over loopback. Refuses to know the stages.

use std::time::Duration;

use serde::Serialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::config::Config;
use crate::connect;
use crate::exit::{Exit, Failure};
use crate::printer::Printer;

/// A local process answers at once or not at all.
const PATIENCE: Duration = Duration::from_secs(5);
/// Far more than a status page of hundreds of plugins.
const MAX_ANSWER_BYTES: u64 = 16 << 20;

#[derive(Serialize)]
struct Stopped {
    phase: &'static str,
    acknowledged: Option<String>,
    cursors: std::collections::BTreeMap<String, String>,
    halt: Option<KeptHalt>,
    /// Who took the pipeline over last.
    leader: Option<String>,
    /// That process, or another one, holds its lock now.
    is_led: bool,
}

/// A halt as it was kept, maybe by another version: its name may be unknown to this one.
#[derive(Serialize)]
struct KeptHalt {
    name: String,
    plugin: Option<String>,
    detail: String,
}

pub(super) async fn status(config: &Config, printer: Printer) -> Result<(), Failure> {
    let address = config.listen;
    match tokio::time::timeout(PATIENCE, ask(address)).await {
        Ok(Ok(page)) => {
            let value: serde_json::Value = serde_json::from_str(&page)
                .map_err(|_| Failure::unavailable(format!("{address} answered, but not with a walgate status")))?;
            let halted = value.get("halt").is_some_and(|halt| !halt.is_null());
            printer.show(&value, || crate::status::page(&value));
            if halted { Err(Failure { exit: Exit::Halted, message: "halted".to_owned(), halt: None }) } else { Ok(()) }
        }
        Ok(Err(_)) => stopped(config, printer).await,
        Err(_) => Err(Failure::unavailable(format!("{address} did not answer within {} s", PATIENCE.as_secs()))),
    }
}

/// What a running walgate says of its plugins; nothing when none answers.
pub(super) async fn plugins(address: std::net::SocketAddr) -> std::collections::BTreeMap<String, super::plugin::Now> {
    let asked = tokio::time::timeout(PATIENCE, request(address, "GET", "/plugins")).await;
    let page = asked.ok().and_then(Result::ok).unwrap_or_default();
    serde_json::from_str(&page).unwrap_or_default()
}

async fn stopped(config: &Config, printer: Printer) -> Result<(), Failure> {
    let mut reader = connect::state_reader(&config.state).await?;
    let stored = reader.load(&config.slot).await.map_err(connect::state_failure)?;
    let halt = reader.halt(&config.slot).await.map_err(connect::state_failure)?.map(|halt| KeptHalt {
        name: halt.name,
        plugin: halt.plugin,
        detail: halt.detail,
    });
    let leader = reader.leader(&config.slot).await.map_err(connect::state_failure)?;
    let answer = Stopped {
        leader: leader.map(|leader| leader.holder),
        is_led: reader.is_led(&config.slot).await.map_err(connect::state_failure)?,
        phase: if halt.is_some() { "halted" } else { "stopped" },
        acknowledged: stored.as_ref().map(|stored| stored.acked.to_string()),
        cursors: stored
            .map(|stored| stored.cursors.into_iter().map(|(name, cursor)| (name, cursor.end.to_string())).collect())
            .unwrap_or_default(),
        halt,
    };
    printer.show(&answer, || {
        let mut text = format!("walgate is not running ({} on {})\n", answer.phase, config.listen);
        if let Some(halt) = &answer.halt {
            let plugin = halt.plugin.as_ref().map(|plugin| format!(" (plugin {plugin})")).unwrap_or_default();
            text.push_str(&format!("halted: {}{plugin}: {}\n", halt.name, halt.detail));
        }
        match &answer.acknowledged {
            Some(position) => text.push_str(&format!("position  acknowledged {position}\n")),
            None => text.push_str("position  no checkpoint yet\n"),
        }
        if let Some(leader) = &answer.leader {
            let is =
                if answer.is_led { "runs it now; ask that one, under its own listen address" } else { "ran it last" };
            text.push_str(&format!("leader    {leader} {is}\n"));
        }
        for (name, cursor) in &answer.cursors {
            text.push_str(&format!("plugin    {name}: durable to {cursor}\n"));
        }
        text
    });
    match answer.halt {
        Some(_) => Err(Failure { exit: Exit::Halted, message: "halted".to_owned(), halt: None }),
        None => Ok(()),
    }
}

async fn ask(address: std::net::SocketAddr) -> std::io::Result<String> {
    request(address, "GET", "/status").await
}

/// Tells the running process something; an error when there is none.
pub(super) async fn post(address: std::net::SocketAddr, path: &str) -> std::io::Result<()> {
    let asked = tokio::time::timeout(PATIENCE, request(address, "POST", path));
    asked.await.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))?.map(drop)
}

/// One request over HTTP/1.0, so that the answer ends with the connection.
async fn request(address: std::net::SocketAddr, method: &str, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(format!("{method} {path} HTTP/1.0\r\nHost: {address}\r\n\r\n").as_bytes()).await?;
    let mut answer = String::new();
    stream.take(MAX_ANSWER_BYTES).read_to_string(&mut answer).await?;
    let (_, body) = answer.split_once("\r\n\r\n").ok_or(std::io::ErrorKind::InvalidData)?;
    Ok(body.to_owned())
}
