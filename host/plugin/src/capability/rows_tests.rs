//! Tests of what a call of `apply` may do: grants, phases, limits, staging, and that nothing of a refused call stays.

use std::path::Path;

use super::*;
use crate::capability::test_state;
use crate::limits::Limits;
use crate::manifest::{Manifest, Policy};
use crate::test_guest::logged;

const GRANTS: &str = "[grant.rows.orders]\nschema = \"mirror\"\ncolumns = [\"id\", \"note\"]\nkey = [\"id\"]\n\
    operations = [\"insert\", \"delete\"]\n[grant.rows.items]\nschema = \"mirror\"\n";

fn host_of(text: &str, asked: &[&str], limits: Limits) -> HostState {
    let policy = Manifest::parse(Path::new("plugin.toml"), text).unwrap().policy("p");
    let asked = Capabilities { rows: asked.iter().map(|name| (*name).to_owned()).collect(), ..Capabilities::default() };
    let granted = asked.intersection(&policy.capabilities);
    let mut host = test_state(Policy { limits, ..policy }, granted);
    host.begin(Phase::Deliver);
    host
}

fn host() -> HostState {
    host_of(GRANTS, &["*"], Limits::default())
}

fn column(name: &str, values: &[&str]) -> WitCells {
    let ends = values.iter().scan(0, |end, text| {
        *end += u32::try_from(text.len()).unwrap();
        Some(*end)
    });
    let values = wit::Values::Text(wit::TextValues { ends: ends.collect(), data: values.concat() });
    WitCells { name: name.into(), presence: None, values }
}

fn set(target: &str, operation: wit::Operation, ordinals: &[u32], after: Vec<WitCells>) -> WitRowSet {
    WitRowSet { target: target.into(), operation, ordinals: ordinals.into(), after, before: Vec::new() }
}

fn insert(target: &str, ordinals: &[u32], column_name: &str) -> WitRowSet {
    set(target, wit::Operation::Insert, ordinals, vec![column(column_name, &vec!["v"; ordinals.len()])])
}

fn apply(host: &mut HostState, sets: Vec<WitRowSet>) -> Result<u64, String> {
    host.apply(sets).map_err(|fault| {
        assert!(!fault.retryable);
        fault.code
    })
}

#[test]
fn calls_are_kept_in_order_and_handed_over_once() {
    let mut host = host();
    assert_eq!(apply(&mut host, vec![insert("orders", &[1, 4], "id"), insert("items", &[2], "any")]), Ok(3));
    let mut deletes = set("orders", wit::Operation::Delete, &[9], vec![]);
    deletes.before = vec![column("id", &["é"])];
    assert_eq!(apply(&mut host, vec![deletes]), Ok(1));
    host.begin(Phase::Flush);
    assert_eq!(apply(&mut host, vec![]), Ok(0));
    let staged = host.take_staged();
    assert!(!staged.is_empty());
    let [first, second, third] = &staged.rows[..] else { panic!("{staged:?}") };
    assert_eq!(
        first.iter().map(|set| (&*set.target, &*set.ordinals)).collect::<Vec<_>>(),
        [("orders", &[1, 4][..]), ("items", &[2])]
    );
    let text = TextValues { ends: vec![2], data: "é".into() };
    assert_eq!(second[0].before, [Cells { name: "id".into(), presence: None, values: Values::Text(text) }]);
    assert_eq!((second[0].operation, third.len()), (Operation::Delete, 0));
    assert!(host.take_staged().is_empty());
}

#[test]
fn a_failed_call_leaves_what_was_before() {
    let mut host = host();
    apply(&mut host, vec![insert("items", &[1], "a")]).unwrap();
    let (before, bytes) = (host.begin(Phase::Deliver), host.rows.bytes);
    apply(&mut host, vec![insert("items", &[2], "a")]).unwrap();
    assert!(host.rows.bytes > bytes);
    host.roll_back(before);
    assert_eq!(host.rows.bytes, bytes);
    let staged = host.take_staged();
    assert_eq!((staged.rows.len(), &*staged.rows[0][0].ordinals, host.rows.bytes), (1, &[1][..], 0));
}

#[test]
fn a_refused_call_keeps_none_of_its_sets() {
    for (bad, code) in [
        (insert("nope", &[2], "id"), NOT_GRANTED),
        (insert("*", &[2], "id"), NOT_GRANTED),
        (set("orders", wit::Operation::Update, &[2], vec![]), NOT_GRANTED),
        (set("orders", wit::Operation::Truncate, &[2], vec![]), NOT_GRANTED),
        (insert("orders", &[2], "secret"), NOT_GRANTED),
        (insert("orders", &[1], "id"), INVALID_ROWS),
        (insert("orders", &[3, 2], "id"), INVALID_ROWS),
        (set("items", wit::Operation::Insert, &[2], vec![column("a", &[])]), INVALID_ROWS),
    ] {
        let mut host = host();
        let what = format!("{} {:?}", bad.target, bad.operation);
        assert_eq!(apply(&mut host, vec![insert("orders", &[1], "id"), bad]), Err(code.into()), "{what}");
        assert!(host.take_staged().is_empty(), "{what}");
        assert_eq!(host.rows.bytes, 0, "{what}");
    }
    let mut host = host();
    let mut deletes = set("orders", wit::Operation::Delete, &[2], vec![]);
    deletes.before = vec![column("secret", &["x"])];
    assert_eq!(apply(&mut host, vec![deletes]), Err(NOT_GRANTED.into()), "a column of `before`");
}

#[test]
fn a_star_covers_every_table_and_a_name_only_itself() {
    let every = "[grant.rows.\"*\"]\nschema = \"mirror\"\n";
    let mut host = host_of(every, &["*"], Limits::default());
    assert_eq!(apply(&mut host, vec![insert("Order Lines", &[1], "a")]), Ok(1));
    for name in ["*", "", "a\nb", &"x".repeat(64)] {
        assert_eq!(apply(&mut host, vec![insert(name, &[1], "a")]), Err(NOT_GRANTED.into()), "{name:?}");
    }
    let mut host = host_of(every, &["orders"], Limits::default());
    assert_eq!(apply(&mut host, vec![insert("orders", &[1], "a")]), Ok(1));
    assert_eq!(apply(&mut host, vec![insert("items", &[1], "a")]), Err(NOT_GRANTED.into()));
    // A section with a name of its own counts before the star.
    let mut host = host_of(&format!("{GRANTS}{every}"), &["*"], Limits::default());
    assert_eq!(apply(&mut host, vec![insert("orders", &[1], "secret")]), Err(NOT_GRANTED.into()));
    assert_eq!(apply(&mut host, vec![insert("elsewhere", &[1], "secret")]), Ok(1));
}

#[test]
fn only_deliver_and_flush_write() {
    for (phase, expect) in [
        (Phase::Describe, Err(OUTSIDE_DELIVERY.to_owned())),
        (Phase::Open, Err(OUTSIDE_DELIVERY.to_owned())),
        (Phase::RelationChanged, Err(OUTSIDE_DELIVERY.to_owned())),
        (Phase::Deliver, Ok(1)),
        (Phase::Flush, Ok(1)),
        (Phase::Close, Err(OUTSIDE_DELIVERY.to_owned())),
    ] {
        let mut host = host();
        host.begin(phase);
        assert_eq!(apply(&mut host, vec![insert("items", &[1], "a")]), expect, "{phase:?}");
        // The grant is looked at first, so that a plugin can ask for it at any time.
        assert_eq!(apply(&mut host, vec![insert("orders", &[], "secret")]), Err(NOT_GRANTED.into()), "{phase:?}");
    }
}

#[test]
fn bytes_are_limited_until_they_are_handed_over_and_rows_by_call() {
    let call = || vec![insert("items", &[1], "a")];
    let one = row_set::bytes(&call().into_iter().map(row_set).collect());
    let mut host = host_of(GRANTS, &["*"], Limits { rows_bytes_per_call: 2 * one as u64, ..Limits::default() });
    for expect in [Ok(1), Ok(1), Err(OVER_LIMIT.to_owned())] {
        assert_eq!(apply(&mut host, call()), expect);
    }
    assert_eq!(host.take_staged().rows.len(), 2);
    assert_eq!(apply(&mut host, call()), Ok(1));

    let mut host = self::host();
    let truncates = |rows: u32| vec![set("items", wit::Operation::Truncate, &(0..rows).collect::<Vec<_>>(), vec![])];
    assert_eq!(apply(&mut host, truncates(1_000_000)), Ok(1_000_000));
    assert_eq!(apply(&mut host, truncates(1_000_001)), Err(OVER_LIMIT.into()));
}

#[test]
fn a_denial_names_the_line_and_nothing_of_the_guest() {
    let mut host = host();
    let text = logged(|| {
        let mut deny = |bad: WitRowSet| apply(&mut host, vec![bad]).unwrap_err();
        assert_eq!(deny(insert("alice-target", &[1], "id")), NOT_GRANTED);
        assert_eq!(deny(insert("orders", &[1], "alice-column")), NOT_GRANTED);
        assert_eq!(deny(set("orders", wit::Operation::Truncate, &[1], vec![])), NOT_GRANTED);
        assert_eq!(
            deny(set("items", wit::Operation::Insert, &[1], vec![column("a", &["alice", "bob"])])),
            INVALID_ROWS
        );
        assert_eq!(
            deny(set("items", wit::Operation::Insert, &[1], vec![column("a", &["alice", "bob"])])),
            INVALID_ROWS
        );
    });
    for line in [
        "[grant.rows.NAME]\nschema = \"SCHEMA\"",
        "[grant.rows.orders]\ncolumns = [\"id\", \"note\", \"COLUMN\"]",
        "[grant.rows.orders]\noperations = [\"insert\", \"delete\", \"truncate\"]",
        "set=0 column=0",
    ] {
        assert!(text.contains(line), "{line} is missing in: {text}");
    }
    assert!(!text.contains("alice"), "{text}");
    assert_eq!(text.matches("break the contract").count(), 1, "{text}");
}

#[test]
fn what_was_not_asked_for_is_denied_although_allowed() {
    let mut host = host_of(GRANTS, &[], Limits::default());
    let text = logged(|| assert_eq!(apply(&mut host, vec![insert("items", &[1], "a")]), Err(NOT_GRANTED.into())));
    assert!(text.contains("ask for it in describe"), "{text}");
}
