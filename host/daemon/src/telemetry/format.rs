//! How a log line looks: text for people, JSON for machines, with the same keys.
//!
//! Holds: the one place where an event becomes bytes. A key that is not on the list, or a value of another shape than its
//! key's, is replaced and counted; control characters are escaped, so that one event is one line and nothing that a peer or
//! a guest says can pretend to be another. Refuses to know which keys there are: see `allow.rs`.

use std::fmt::{self, Write};

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use super::allow::{Clipped, MESSAGE, Shape, Value, shape_of};
use super::recorder::violated;

/// Stands for what is not printed.
const WITHHELD: &str = "<withheld>";
/// Stands for the end of a text that was too long.
const CUT: &str = "…";
/// Before each line of a value that has several. No line of ours begins like that, so none can be forged.
const INDENT: &str = "\n    ";

/// Prints events of the closed set.
pub(super) struct ClosedFormat {
    json: bool,
}

impl ClosedFormat {
    /// JSON for machines, or text for people.
    pub(super) fn new(json: bool) -> Self {
        Self { json }
    }
}

impl<S, N> FormatEvent<S, N> for ClosedFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    // Spans are left out: what they carry was never checked.
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        if self.json { json(&mut writer, event, &fields) } else { text(&mut writer, event, &fields) }
    }
}

/// What is printed of one field.
enum Printed {
    Integer(i128),
    Text(Clipped, Shape),
    Withheld,
}

/// The fields of one event, the message apart.
#[derive(Default)]
struct Fields {
    message: Option<Printed>,
    others: Vec<(&'static str, Printed)>,
}

impl Fields {
    fn take(&mut self, field: &Field, value: Value) {
        let key = field.name();
        let printed = match (shape_of(key).filter(|shape| shape.admits(&value)), value) {
            (Some(_), Value::Integer(number)) => Printed::Integer(number),
            (Some(shape), Value::Text(text)) => Printed::Text(text, shape),
            (None, _) | (_, Value::Other) => {
                violated();
                Printed::Withheld
            }
        };
        if key == MESSAGE {
            self.message = Some(printed);
        } else {
            self.others.push((key, printed));
        }
    }

    fn take_text(&mut self, field: &Field, text: fmt::Arguments<'_>) {
        let mut clipped = Clipped::default();
        // Its only error is that the text was cut, which it remembers itself.
        let _ = clipped.write_fmt(text);
        self.take(field, Value::Text(clipped));
    }
}

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.take_text(field, format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.take_text(field, format_args!("{value}"));
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.take_text(field, format_args!("{value}"));
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.take(field, Value::Integer(value.into()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.take(field, Value::Integer(value.into()));
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.take(field, Value::Integer(value));
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.take(field, i128::try_from(value).map_or(Value::Other, Value::Integer));
    }

    fn record_bool(&mut self, field: &Field, _: bool) {
        self.take(field, Value::Other);
    }

    fn record_f64(&mut self, field: &Field, _: f64) {
        self.take(field, Value::Other);
    }
}

fn json(writer: &mut Writer<'_>, event: &Event<'_>, fields: &Fields) -> fmt::Result {
    writer.write_str("{\"timestamp\":\"")?;
    SystemTime.format_time(writer)?;
    write!(writer, "\",\"level\":\"{}\",\"target\":\"", event.metadata().level())?;
    json_text(writer, event.metadata().target())?;
    writer.write_char('"')?;
    let message = fields.message.as_ref().map(|message| (MESSAGE, message));
    for (key, printed) in message.into_iter().chain(fields.others.iter().map(|(key, printed)| (*key, printed))) {
        writer.write_str(",\"")?;
        json_text(writer, key)?;
        writer.write_str("\":")?;
        match printed {
            Printed::Integer(number) => write!(writer, "{number}")?,
            Printed::Withheld => write!(writer, "\"{WITHHELD}\"")?,
            Printed::Text(text, _) => {
                writer.write_char('"')?;
                json_text(writer, &text.text)?;
                writer.write_str(if text.cut { CUT } else { "" })?;
                writer.write_char('"')?;
            }
        }
    }
    writer.write_str("}\n")
}

fn text(writer: &mut Writer<'_>, event: &Event<'_>, fields: &Fields) -> fmt::Result {
    SystemTime.format_time(writer)?;
    write!(writer, " {:>5} {}:", event.metadata().level(), event.metadata().target())?;
    match &fields.message {
        Some(Printed::Text(text, _)) => {
            writer.write_char(' ')?;
            escaped(writer, &text.text)?;
            writer.write_str(if text.cut { CUT } else { "" })?;
        }
        Some(_) => write!(writer, " {WITHHELD}")?,
        None => {}
    }
    let in_lines = |printed: &Printed| matches!(printed, Printed::Text(_, Shape::Lines));
    for (key, printed) in fields.others.iter().filter(|(_, printed)| !in_lines(printed)) {
        write!(writer, " {key}=")?;
        match printed {
            Printed::Integer(number) => write!(writer, "{number}")?,
            Printed::Withheld => writer.write_str(WITHHELD)?,
            Printed::Text(text, _) => quoted(writer, text)?,
        }
    }
    for (key, printed) in &fields.others {
        if let Printed::Text(text, Shape::Lines) = printed {
            write!(writer, " {key}:")?;
            for line in text.text.lines() {
                writer.write_str(INDENT)?;
                escaped(writer, line)?;
            }
            writer.write_str(if text.cut { CUT } else { "" })?;
        }
    }
    writer.write_char('\n')
}

/// A value of a text line: bare when that leaves no doubt where it ends.
fn quoted(writer: &mut Writer<'_>, text: &Clipped) -> fmt::Result {
    let bare = |c: char| !c.is_whitespace() && !is_control(c) && !matches!(c, '"' | '\\' | '=');
    if !text.cut && !text.text.is_empty() && text.text.chars().all(bare) {
        return writer.write_str(&text.text);
    }
    writer.write_char('"')?;
    for c in text.text.chars() {
        if matches!(c, '"' | '\\') {
            writer.write_char('\\')?;
        }
        escaped_char(writer, c)?;
    }
    writer.write_str(if text.cut { CUT } else { "" })?;
    writer.write_char('"')
}

fn escaped(writer: &mut Writer<'_>, text: &str) -> fmt::Result {
    text.chars().try_for_each(|c| escaped_char(writer, c))
}

fn escaped_char(writer: &mut Writer<'_>, c: char) -> fmt::Result {
    if is_control(c) { write!(writer, "{}", c.escape_default()) } else { writer.write_char(c) }
}

/// The inside of a JSON string, with everything escaped that a terminal or a viewer would obey.
fn json_text(writer: &mut Writer<'_>, text: &str) -> fmt::Result {
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(writer, "\\{c}")?,
            '\n' => writer.write_str("\\n")?,
            c if is_control(c) => write!(writer, "\\u{:04x}", u32::from(c))?,
            c => writer.write_char(c)?,
        }
    }
    Ok(())
}

/// Ends or moves a line, colours a terminal, or turns text around. All of them are below U+10000.
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests;
