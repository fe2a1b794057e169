//! A sink that posts each batch as one JSON document to a URL.
//!
//! Holds: the sink, and what each status means for the batch. Refuses to know keys and credentials: the host signs and adds
//! them, so that no code in here can leak them. Refuses to repeat by itself, too: the host delivers again under the same id.
//! Read next: `document.rs` (what is posted), `pause.rs` (`Retry-After`).

mod document;
mod pause;

use walgate_sdk::host::http::{self, Method, Request, Response};
use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink, host};

/// The setting that says where batches go.
pub const URL: &str = "url";

/// The header by which a receiver tells a repeated batch, as Standard Webhooks has it.
pub const ID: &str = "webhook-id";

/// The sink. It keeps nothing between batches but where they go.
pub struct Webhook {
    url: String,
}

impl Sink for Webhook {
    fn describe() -> Description {
        Description::new("webhook-rust", env!("CARGO_PKG_VERSION"))
            .table(TableRequest::all())
            .capability("http")
            .settings_schema(
                r#"{"type":"object","required":["url"],"properties":{"url":{"type":"string","format":"uri"}}}"#,
            )
    }

    fn open(_context: &Context) -> Result<Opened<Self>, Failure> {
        let url = host::setting(URL).ok_or_else(|| Failure::halt("no-url-setting"))?;
        Ok(Webhook { url }.into())
    }

    fn deliver(&mut self, batch: &Batch) -> Result<Receipt, Failure> {
        if batch.rows().next().is_none() {
            return Ok(Receipt::durable());
        }
        let request = Request::new(Method::Post, &self.url)
            .header("content-type", "application/json")
            .header("user-agent", concat!("walgate-webhook/", env!("CARGO_PKG_VERSION")))
            .header(ID, batch.id())
            .header("idempotency-key", batch.id())
            .body(document::of(batch));
        judge(&http::send(&request)?)
    }
}

/// What an answer means. Only a success is durable; what the receiver calls wrong is never sent to it again unchanged.
fn judge(answer: &Response) -> Result<Receipt, Failure> {
    let code = || format!("http-{}", answer.status());
    match answer.status() {
        200..=299 => Ok(Receipt::durable()),
        // Following it would take batches to a place that no grant names.
        300..=399 => Err(Failure::halt("http-redirect")),
        429 | 503 => Err(match pause::asked(answer) {
            Some(ms) => Failure::retry(code()).after_ms(ms),
            None => Failure::retry(code()),
        }),
        // The request did not come whole, or came too early: it is as good as before.
        408 | 425 | 500..=599 => Err(Failure::retry(code())),
        400..=499 => Err(Failure::reject(code())),
        _ => Err(Failure::halt("http-status")),
    }
}

export_sink!(Webhook);

#[cfg(test)]
mod tests;
