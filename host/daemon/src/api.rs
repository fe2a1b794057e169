//! The local API: `/status`, `/plugins`, `/healthz`, `/readyz`, `/metrics`, and the nudge to look for redrives, on
//! loopback.
//!
//! Holds: the routes. Refuses to know the pipeline beyond its status board.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;
use tokio::sync::Notify;

use crate::exit::Failure;
use crate::plugins::Plugins;
use crate::status::{Board, Phase};
use crate::telemetry::events;

/// What the routes read.
#[derive(Clone)]
struct Shared {
    board: Board,
    running: Plugins,
    metrics: PrometheusHandle,
    redrive: Arc<Notify>,
}

/// Listens and serves until the process ends.
pub(crate) async fn serve(
    listen: std::net::SocketAddr,
    board: Board,
    running: Plugins,
    metrics: PrometheusHandle,
    redrive: Arc<Notify>,
) -> Result<(), Failure> {
    let listener = TcpListener::bind(listen).await.map_err(|error| {
        Failure::unavailable(format!("api.listen {listen} cannot be used: {error}; choose another port in [api]"))
    })?;
    let routes = Router::new()
        .route("/status", get(status))
        .route("/plugins", get(plugins))
        .route("/healthz", get(health))
        .route("/readyz", get(ready))
        .route("/metrics", get(prometheus))
        .route("/dead-letters/redrive", post(redrive_letters))
        .with_state(Shared { board, running, metrics, redrive });
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, routes).await {
            tracing::error!(%error, "the API ended");
        }
    });
    Ok(())
}

async fn status(State(shared): State<Shared>) -> impl IntoResponse {
    Json(shared.board.shown())
}

/// The plugins alone.
async fn plugins(State(shared): State<Shared>) -> impl IntoResponse {
    Json(shared.board.shown().plugins)
}

/// Alive unless halted.
async fn health(State(shared): State<Shared>) -> impl IntoResponse {
    match shared.board.read().phase {
        Phase::Halted => (StatusCode::SERVICE_UNAVAILABLE, "halted\n"),
        _ => (StatusCode::OK, "ok\n"),
    }
}

async fn ready(State(shared): State<Shared>) -> impl IntoResponse {
    if shared.board.read().ready() {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready\n")
    }
}

/// Look for letters that an operator marked. Nothing is said here about which.
async fn redrive_letters(State(shared): State<Shared>) -> impl IntoResponse {
    shared.redrive.notify_one();
    (StatusCode::ACCEPTED, "looking\n")
}

async fn prometheus(State(shared): State<Shared>) -> impl IntoResponse {
    shared.running.publish();
    events::plugins(&shared.board.states());
    shared.metrics.run_upkeep();
    shared.metrics.render()
}
