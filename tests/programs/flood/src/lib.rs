//! Hands the host more than it takes, through the call that the setting `where` names, and passes on what it is answered.
//!
//! | `where` | does |
//! |---|---|
//! | `metric-names` | counts under a thousand names |
//! | `metric-values` | observes NaN and infinity ten thousand times |
//! | `state-keys` | sets keys without end |
//! | `state-key` | sets one key of a mebibyte |
//! | `state-value` | sets one value of sixteen mebibytes |
//! | `state-total` | sets values of 64 KiB without end |
//! | `output` | appends 64 KiB without end |
//! | `output-deaf` | the same, whatever it is answered |
//! | `host-call` | appends sixteen mebibytes in one call |

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink, host};

const OUTPUT: &str = "lines";

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        ["metrics", "state", "output:lines"]
            .into_iter()
            .fold(Description::new("flood", "0.0.0").table(TableRequest::all()), Description::capability)
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        let piece = vec![b'x'; 64 << 10];
        let numbers = 0u64..;
        match host::setting("where").unwrap_or_default().as_str() {
            "metric-names" => (0..1_000).for_each(|n| host::metrics::count(&format!("flood_{n}"), 1)),
            "metric-values" => (0..10_000).for_each(|_| {
                host::metrics::observe("flood", f64::NAN);
                host::metrics::observe("flood", f64::INFINITY);
            }),
            "state-keys" => {
                for n in numbers {
                    host::state::set(&n.to_string(), b"")?;
                }
            }
            "state-key" => host::state::set(&"k".repeat(1 << 20), b"")?,
            "state-value" => host::state::set("flood", &vec![b'x'; 16 << 20])?,
            "state-total" => {
                for n in numbers {
                    host::state::set(&n.to_string(), &piece)?;
                }
            }
            "output" => {
                for _ in numbers {
                    host::output::append(OUTPUT, &piece)?;
                }
            }
            "output-deaf" => {
                for _ in numbers {
                    let _ = host::output::append(OUTPUT, &piece);
                }
            }
            "host-call" => host::output::append(OUTPUT, &vec![b'x'; 16 << 20])?,
            _ => return Err(Failure::halt("unknown-place")),
        }
        Ok(Receipt::durable())
    }
}

export_sink!(Program);
