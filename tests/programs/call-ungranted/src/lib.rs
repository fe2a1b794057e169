//! Asks for nothing but metrics and tries every other call; counts each that was denied.

use walgate_sdk::{Batch, Context, Description, Failure, Opened, Receipt, Sink, TableRequest, export_sink, host};

struct Program;

fn count(name: &str, denied: bool) {
    host::metrics::count(&format!("{name}_{}", if denied { "denied" } else { "allowed" }), 1);
}

impl Sink for Program {
    fn describe() -> Description {
        Description::new("call-ungranted", "0.0.0").table(TableRequest::all()).capability("metrics")
    }

    fn open(_: &Context) -> Result<Opened<Self>, Failure> {
        Ok(Program.into())
    }

    fn deliver(&mut self, _: &Batch) -> Result<Receipt, Failure> {
        let denied = "not-granted";
        let no_answer = |lookup| matches!(lookup, host::replica::Lookup::SourceUnavailable(code) if code == denied);
        count("state_get", host::state::get("k").is_err_and(|fault| fault.code == denied));
        count("state_set", host::state::set("k", b"v").is_err_and(|fault| fault.code == denied));
        count("state_delete", host::state::delete("k").is_err_and(|fault| fault.code == denied));
        count("output", host::output::append("changes", b"x").is_err_and(|fault| fault.code == denied));
        count("secret", host::secret("token").is_err_and(|fault| fault.code == denied));
        let request = host::http::Request::new(host::http::Method::Get, "https://hooks.example.com/");
        count("http", host::http::send(&request).is_err_and(|fault| fault.code == denied));
        count("rows", host::rows::apply(&[]).is_err_and(|fault| fault.code == denied));
        count("replica_key", no_answer(host::replica::by_key("tenants", "1")));
        count("replica_field", no_answer(host::replica::by_field("tenants", "slug", "a")));
        Ok(Receipt::durable())
    }
}

export_sink!(Program);
