//! Never comes back from the call that the setting `where` names: `relation-changed`, `flush` or `close`.
//!
//! The setting `how` says in what: `loop`, in its own code, or `sleep`, for a day in a host call. In `open`, `describe` and
//! `deliver` there are programs of their own: `loop-in-…` and `sleep-in-deliver`.

use walgate_sdk::{
    Batch, Context, Description, Failure, Opened, Receipt, Relation, Sink, TableRequest, Verdict, export_sink, host,
};

mod wasi {
    //! The two calls of WASI 0.2 that sleeping takes.
    wit_bindgen::generate!({ path: "../sleep-in-deliver/wit", world: "local:sleep/sleeper", generate_all });
}

/// One day in nanoseconds.
const DAY_NS: u64 = 86_400_000_000_000;

struct Program;

impl Sink for Program {
    fn describe() -> Description {
        Description::new("never-answers", "0.0.0").table(TableRequest::all())
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn relation_changed(&mut self, _: &Relation, _: Option<&Relation>) -> Result<Verdict, Failure> {
        stay("relation-changed");
        Ok(Verdict::Accept)
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        // Only what is not durable is flushed.
        Ok(if is_here("flush") { Receipt::accepted() } else { Receipt::durable() })
    }

    fn flush(&mut self) -> Result<(), Failure> {
        stay("flush");
        Ok(())
    }

    fn close(&mut self) {
        stay("close");
    }
}

fn is_here(call: &str) -> bool {
    host::setting("where").is_some_and(|place| place == call)
}

fn stay(call: &str) {
    if !is_here(call) {
        return;
    }
    if host::setting("how").is_some_and(|how| how == "sleep") {
        wasi::wasi::clocks::monotonic_clock::subscribe_duration(DAY_NS).block();
        return;
    }
    let mut n = 0u64;
    loop {
        n = std::hint::black_box(n.wrapping_add(1));
    }
}

export_sink!(Program);
