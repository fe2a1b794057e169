//! `walgate run`: load the plugins, open the state database, stream until told to stop.
//!
//! Holds: the order of a start and the signals. Refuses to know the stages (see [`crate::pipeline`]).

use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, Notify, mpsc, watch};

use crate::config::{Config, LogFormat};
use crate::exit::Failure;
use crate::pipeline::Beside;
use crate::plugins::{Loader, Plugins, Stamps, Watch};
use crate::status::{Board, Phase};
use crate::telemetry::events;
use crate::{api, connect, pipeline, plugins, telemetry};

pub(super) async fn run(config: Config) -> Result<(), Failure> {
    telemetry::logs(&config.log);
    let metrics = telemetry::metrics().map_err(Failure::unavailable)?;
    let stop = stop_on_signals()?;
    let board = Board::new();
    let plugins = Plugins::default();
    let redrive = Arc::new(Notify::new());
    api::serve(config.listen, board.clone(), plugins.clone(), metrics, Arc::clone(&redrive)).await?;
    tracing::info!(listen = %config.listen, "status and metrics are served");
    let format = config.log.format;
    let Err(failure) = start(config, board.clone(), plugins, redrive, stop).await else { return Ok(()) };
    match &failure.halt {
        // A halt of the stream was told when it happened.
        Some(halt) => {
            if board.read().halt.is_none() {
                events::halted(halt);
            }
            board.write(|status| (status.phase, status.halt) = (Phase::Halted, Some(halt.clone())));
        }
        None => tracing::error!("{}", failure.message),
    }
    // Who reads JSON has been told, and reads nothing else.
    let message = if format == LogFormat::Json { String::new() } else { failure.message };
    Err(Failure { message, ..failure })
}

async fn start(
    config: Config,
    board: Board,
    plugins: Plugins,
    redrive: Arc<Notify>,
    mut stop: watch::Receiver<bool>,
) -> Result<(), Failure> {
    let opening = async {
        let loader = Loader::new(&config)?;
        let stamps = Stamps::of(&loader);
        let directory = loader.all().await?;
        plugins::post(&board, &directory.not_running);
        Ok::<_, Failure>((loader, stamps, directory, connect::state(&config.state).await?))
    };
    let (loader, stamps, directory, store) = tokio::select! {
        opened = opening => opened?,
        _ = stop.wait_for(|stop| *stop) => return Ok(()),
    };
    let (changes, candidates) = mpsc::channel(1);
    plugins.change(|now| *now = directory);
    let watch = Watch::new(loader.clone(), stamps, plugins.clone(), changes, board.clone());
    let watching = tokio::spawn(watch.run(config.clone(), stop.clone()));
    let beside = Beside { redrive, candidates: Arc::new(Mutex::new(candidates)), plugins, loader };
    let outcome = pipeline::run(config, beside, store, board, stop).await;
    watching.abort();
    outcome
}

/// True once SIGTERM or SIGINT came.
fn stop_on_signals() -> Result<watch::Receiver<bool>, Failure> {
    let failed = |error| Failure::unavailable(format!("signals cannot be received: {error}"));
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        let _ = sender.send(true);
        // Whoever watches must not take the sender's end for a stop before one was asked for, nor miss it afterwards.
        std::future::pending::<()>().await;
    });
    Ok(receiver)
}
