//! A guest that puts a value wherever a guest can put a text: it shows in no log, error, metric or name.

use super::*;
use crate::logged::Log;

const GRANTS: &str = "[grant]\ncapabilities = [\"log\", \"metrics\", \"state\"]\n[grant.output.lines]\nkind = \"stdout\"\n\
    [grant.rows.orders]\nschema = \"mirror\"\ncolumns = [\"id\"]\n[limits]\ncall_deadline_ms = 20000\n";

/// Places of the guest, and whether the value may be in what was staged: state and outputs are where rows are meant to go.
const PLACES: [(&str, bool); 20] = [
    ("log-code", false),
    ("log-message", false),
    ("metric-count", false),
    ("metric-observe", false),
    ("failure-code", false),
    ("failure-message", false),
    ("reject-code", false),
    ("reject-batch", false),
    ("retry", false),
    ("output-name", false),
    ("output", true),
    ("state-key", true),
    ("state-value", true),
    ("rows-target", false),
    ("rows-column", false),
    ("secret", false),
    ("replica", false),
    ("panic", false),
    ("stdout", false),
    ("stderr", false),
];

/// The name of a person with a character that no code, name of an output or metric has.
const VALUE: &str = "alice@example.com";

fn hostile() -> Batch {
    let mut batch = batch();
    let texts = TextValues { ends: vec![17, 20], data: format!("{VALUE}bob") };
    batch.groups[0].after[1].values = Values::Text(texts);
    batch
}

#[tokio::test]
async fn a_value_leaves_through_no_surface() {
    let log = Log::of_process();
    for (place, staged) in PLACES {
        let text = format!("{GRANTS}[settings]\nwhere = \"{place}\"\n");
        let manifest = Manifest::parse("plugin.toml".as_ref(), &text).expect("a manifest");
        let worker = Worker::start(load("leak-everything"), manifest.policy("leak-everything")).expect("a thread");
        open(&worker, "leak-everything").await;
        let delivery = worker.deliver(hostile()).await;
        let flushed = worker.flush().await;
        let mut shown = format!("{:?} {:?} {flushed:?} {:?}", delivery.outcome, delivery.staged, worker.metrics());
        if let Err(error) = &delivery.outcome {
            shown.push_str(&format!(" {error} {}", error.code()));
        }
        assert!(!shown.contains("alice"), "{place}: {shown}");
        let names = delivery.staged.outputs.iter().map(|(name, _)| name.as_str());
        assert!(names.into_iter().all(|name| name == "lines"), "{place}");
        let kept = delivery.staged.state.iter().any(|(key, value)| {
            key.contains("alice") || value.as_ref().is_some_and(|value| value.starts_with(b"alice"))
        }) || delivery.staged.outputs.iter().any(|(_, bytes)| bytes.starts_with(b"alice"));
        assert_eq!(kept, staged, "{place}: the guest did not do what it is for");
    }
    let text = log.text();
    assert!(text.contains("[grant.rows.NAME]") && text.contains("leak-everything"), "the log is not captured: {text}");
    assert!(!text.contains("alice"), "{text}");
}
