//! The local API: `/status`, `/healthz`, `/readyz`, `/metrics`, on loopback.
//!
//! Holds: the routes. Refuses to know the pipeline beyond its status board.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use metrics_exporter_prometheus::PrometheusHandle;
use tokio::net::TcpListener;

use crate::exit::Failure;
use crate::plugins::Workers;
use crate::status::{Board, Phase};

/// What the routes read.
#[derive(Clone)]
struct Shared {
    board: Board,
    workers: Workers,
    metrics: PrometheusHandle,
}

/// Listens and serves until the process ends.
pub(crate) async fn serve(
    listen: std::net::SocketAddr,
    board: Board,
    workers: Workers,
    metrics: PrometheusHandle,
) -> Result<(), Failure> {
    let listener = TcpListener::bind(listen).await.map_err(|error| {
        Failure::unavailable(format!("api.listen {listen} cannot be used: {error}; choose another port in [api]"))
    })?;
    let routes = Router::new()
        .route("/status", get(status))
        .route("/healthz", get(health))
        .route("/readyz", get(ready))
        .route("/metrics", get(prometheus))
        .with_state(Shared { board, workers, metrics });
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, routes).await {
            tracing::error!(%error, "the API ended");
        }
    });
    Ok(())
}

async fn status(State(shared): State<Shared>) -> impl IntoResponse {
    Json(shared.board.read())
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

async fn prometheus(State(shared): State<Shared>) -> impl IntoResponse {
    shared.workers.publish();
    shared.metrics.run_upkeep();
    shared.metrics.render()
}
