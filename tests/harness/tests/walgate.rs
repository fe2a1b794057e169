//! The process helper, on a shell in the place of walgate: lines, readiness, signals, last words.

use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use anyhow::Result;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use walgate_harness::{Walgate, WalgateCommand};

/// Generous, because it only runs out when something is broken.
const DEADLINE: Duration = Duration::from_secs(30);

/// Prints a line to each output and stays.
const STAYS: &str = "echo out; echo err >&2; exec tail -f /dev/null";

fn shell(script: &str) -> WalgateCommand {
    Walgate::command().program("/bin/sh").args(["-c", script])
}

#[tokio::test]
async fn lines_are_seen_on_both_outputs_and_signals_arrive() -> Result<()> {
    let mut process = shell(STAYS).spawn()?;
    assert_eq!(process.wait_line("ou", DEADLINE).await?, "out");
    assert_eq!(process.wait_line("er", DEADLINE).await?, "err");
    assert!(process.ended()?.is_none());
    process.sigterm()?;
    assert_eq!(process.wait_exit(DEADLINE).await?.signal(), Some(15));
    process.sigkill()
}

#[tokio::test]
async fn an_early_end_is_told_at_once_with_its_last_words() -> Result<()> {
    let mut process = shell("echo no configuration >&2; exit 2").spawn()?;
    let error = format!("{:#}", process.wait_line("listening", Duration::from_secs(3600)).await.unwrap_err());
    assert!(error.contains("exit status: 2") && error.contains("no configuration"), "{error}");
    let api = SocketAddr::from(([127, 0, 0, 1], 1));
    let mut process = shell("exit 3").api(api).spawn()?;
    let error = format!("{:#}", process.wait_ready(Duration::from_secs(3600)).await.unwrap_err());
    assert!(error.contains("exit status: 3"), "{error}");
    Ok(())
}

#[tokio::test]
async fn readiness_is_a_200_and_nothing_less() -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let mut process = shell(STAYS).api(listener.local_addr()?).token("s3").spawn()?;
    let server = tokio::spawn(async move {
        let mut asked = Vec::new();
        for status in ["503 Service Unavailable", "200 OK"] {
            let (mut stream, _) = listener.accept().await?;
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                stream.read_buf(&mut head).await?;
            }
            stream.write_all(format!("HTTP/1.1 {status}\r\n\r\n").as_bytes()).await?;
            asked.push(String::from_utf8_lossy(&head).into_owned());
        }
        anyhow::Ok(asked)
    });
    process.wait_ready(DEADLINE).await?;
    let asked = server.await??;
    assert_eq!(asked.len(), 2);
    assert!(asked.iter().all(|head| head.starts_with("GET /readyz ") && head.contains("Bearer s3")));
    Ok(())
}

#[tokio::test]
async fn one_file_takes_the_output_of_many_processes() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("out");
    for word in ["first", "second"] {
        let mut process = shell(&format!("echo {word}")).stdout_to(&file).spawn()?;
        process.wait_exit(DEADLINE).await?;
        assert_eq!(process.stdout(), "");
    }
    assert_eq!(std::fs::read_to_string(&file)?, "first\nsecond\n");
    Ok(())
}
