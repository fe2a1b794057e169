//! Lines as people and machines get them, with values that are hostile on purpose.
//!
//! Holds: what must not be printed, and what must not be taken for another line. Read next: `../captured.rs`.

use proptest::prelude::*;

use super::super::captured::captured;
use super::*;

#[test]
fn a_foreign_key_and_a_hostile_value_are_withheld_and_counted() {
    let secret = "alice@example.com";
    for json in [false, true] {
        let captured = captured(json, || {
            tracing::warn!(customer = secret, "one");
            tracing::warn!(plugin = secret, slot = secret, to = %secret, code = secret, rows = secret, "two");
            tracing::warn!(class = secret, sqlstate = secret, listen = secret, interface = secret, "three");
            tracing::warn!(rows = true, bytes = 0.5, attempt = u128::MAX, "four");
            tracing::warn!(table = "x".repeat(256), "five");
        });
        assert!(!captured.log.contains("alice") && !captured.log.contains("xxx"), "{}", captured.log);
        assert_eq!(captured.log.matches(WITHHELD).count(), 14, "{}", captured.log);
        assert_eq!(captured.violations(), 14);
        assert_eq!(captured.log.lines().count(), 5);
    }
}

#[test]
fn json_has_the_same_keys_for_everyone() {
    let captured = captured(true, || {
        let error = std::io::Error::other("no \"space\"\n2026-01-01T00:00:00Z ERROR walgate: forged");
        tracing::warn!(target: "walgate::guest", plugin = "p", rows = 3, to = "0/1F", error = &error as &dyn std::error::Error, "a {}", "b");
    });
    let lines = captured.json();
    let [line] = lines.as_slice() else { panic!("{}", captured.log) };
    let line = line.as_object().unwrap();
    assert_eq!(line["level"], "WARN");
    assert_eq!(line["target"], "walgate::guest");
    assert_eq!(line["message"], "a b");
    assert_eq!((&line["plugin"], &line["rows"], &line["to"]), (&"p".into(), &3.into(), &"0/1F".into()));
    assert_eq!(line["error"], "no \"space\"\n2026-01-01T00:00:00Z ERROR walgate: forged");
    assert!(line["timestamp"].as_str().is_some_and(|at| at.ends_with('Z') && at.len() == 27), "{line:?}");
    assert_eq!((line.len(), captured.violations()), (8, 0));
}

#[test]
fn text_is_one_line_whatever_is_said() {
    let captured = captured(false, || {
        let forged = "x\n2026-01-01T00:00:00Z ERROR walgate: forged\u{1b}[31m\u{202e}";
        tracing::info!(plugin = "p", attempt = 2, cause = forged, path = "a b", "said: {forged}");
    });
    assert_eq!(captured.log.lines().count(), 1, "{}", captured.log);
    assert!(!captured.log.contains(['\u{1b}', '\u{202e}']), "{}", captured.log);
    assert!(captured.log.contains(" INFO walgate::telemetry"), "{}", captured.log);
    assert!(captured.log.contains("said: x\\n2026"), "{}", captured.log);
    assert!(captured.log.contains(" plugin=p attempt=2 cause=\"x\\n2026"), "{}", captured.log);
    assert!(captured.log.ends_with("\\u{1b}[31m\\u{202e}\" path=\"a b\"\n"), "{}", captured.log);
    assert_eq!(captured.violations(), 0);
}

#[test]
fn lines_of_a_value_are_indented_in_text_and_escaped_in_json() {
    let work =
        || tracing::warn!(plugin = "p", allow = "[grant]\ncapabilities = [\"log\"]\r", interface = "log", "denied");
    let text = captured(false, work);
    let expected = "denied plugin=p interface=log allow:\n    [grant]\n    capabilities = [\"log\"]\\r\n";
    assert!(text.log.ends_with(expected), "{}", text.log);
    let json = captured(true, work);
    assert_eq!(json.json()[0]["allow"], "[grant]\ncapabilities = [\"log\"]\r");
    assert_eq!(text.violations() + json.violations(), 0);
}

#[test]
fn long_text_is_cut_and_long_names_are_withheld() {
    let captured = captured(true, || tracing::warn!(plugin = "p".repeat(3000), "{}", "é".repeat(3000)));
    let message = captured.json()[0]["message"].as_str().unwrap().to_owned();
    assert!(message.ends_with(CUT) && message.len() == 2048 + CUT.len(), "{}", message.len());
    assert_eq!(captured.json()[0]["plugin"], WITHHELD);
}

#[test]
fn spans_are_not_printed() {
    let captured = captured(true, || {
        let _span = tracing::error_span!("delivery", customer = "alice@example.com").entered();
        tracing::error!("inside");
    });
    assert!(captured.log.contains("inside") && !captured.log.contains("alice"), "{}", captured.log);
}

proptest! {
    /// Whatever a peer says, an event stays one line, and JSON gives back what was said up to the bound.
    #[test]
    fn anything_stays_one_line(said in any::<String>()) {
        let text = captured(false, || tracing::warn!(cause = said, "{said}"));
        prop_assert_eq!(text.log.lines().count(), 1);
        prop_assert!(!text.log.trim_end_matches('\n').contains(is_control));
        let json = captured(true, || tracing::warn!(cause = said, "{said}"));
        prop_assert_eq!(json.log.matches('\n').count(), 1);
        let lines = json.json();
        prop_assert_eq!(&lines[0]["cause"], &lines[0]["message"]);
        if said.len() <= 2048 {
            prop_assert_eq!(lines[0]["cause"].as_str(), Some(said.as_str()));
        }
    }
}
