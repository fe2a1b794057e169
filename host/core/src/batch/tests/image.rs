//! Images of dead letters: exact, readable, and hard to deceive.

use std::fmt::Debug;

use serde_json::{Value, json};

use super::*;
use crate::batch::image::{ImageError, read, write};
use crate::fuzzing;

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_image_reads_back_to_the_bit((batch, relations) in batches()) {
        let image = write(&batch, &relations);
        let (found, known) = read(&image).unwrap();
        assert_same(&found, &batch);
        prop_assert_eq!(&known, &relations);
        fuzzing::dead_letter_image(&image);
        for letter in batch.only(&[0, 2, 3, 5, 8]) {
            let (found, _) = read(&write(&letter, &relations)).unwrap();
            assert_same(&found, &letter);
        }
    }

    #[test]
    fn keys_may_come_in_any_order((batch, relations) in batches()) {
        let image: Value = serde_json::from_slice(&write(&batch, &relations)).unwrap();
        assert_same(&read(image.to_string().as_bytes()).unwrap().0, &batch);
    }

    #[test]
    fn damage_is_no_panic_and_tells_no_value(
        (batch, relations) in batches(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut: prop::sample::Index,
    ) {
        let image = write(&batch, &relations);
        no_value(&read(&image[..cut.index(image.len())]));
        let mut damaged = image;
        for (at, byte) in edits {
            let at = at.index(damaged.len());
            damaged[at] = byte;
        }
        no_value(&read(&damaged));
        fuzzing::dead_letter_image(&damaged);
    }

    #[test]
    fn a_swapped_member_is_no_panic_and_tells_no_value(
        (batch, relations) in batches(),
        at: prop::sample::Index,
        kind in 0..7_usize,
    ) {
        let mut image: Value = serde_json::from_slice(&write(&batch, &relations)).unwrap();
        let mut count = 0;
        each(&mut image, &mut |_| count += 1);
        let (at, mut next) = (at.index(count), 0);
        let with = [json!(null), json!(-1), json!(u64::MAX), json!(CANARY), json!([CANARY]), json!({CANARY: 1}), json!(true)];
        each(&mut image, &mut |value| {
            if next == at {
                *value = with[kind].clone();
            }
            next += 1;
        });
        let bytes = image.to_string().into_bytes();
        // Where a name was swapped, the image may be a good one with another name, which may be shown.
        let outcome = read(&bytes);
        if outcome.is_err() {
            no_value(&outcome);
        }
        fuzzing::dead_letter_image(&bytes);
    }

    #[test]
    fn any_bytes_are_no_panic(bytes: Vec<u8>) {
        fuzzing::dead_letter_image(&bytes);
    }
}

/// Every value in a JSON text, the outer before the inner.
fn each(value: &mut Value, f: &mut impl FnMut(&mut Value)) {
    f(value);
    match value {
        Value::Array(values) => values.iter_mut().for_each(|value| each(value, f)),
        Value::Object(values) => values.values_mut().for_each(|value| each(value, f)),
        _ => {}
    }
}

#[track_caller]
fn no_value<T: Debug>(result: &Result<T, ImageError>) {
    let printed = match result {
        Ok(read) => format!("{read:?}"),
        Err(error) => format!("{error} {error:?}"),
    };
    assert!(!printed.contains(CANARY), "{printed}");
}

/// An update of two rows: a NULL, an unchanged value, and a before image that only the second row has.
fn sample() -> Value {
    json!({
        "walgate_image": 1, "id": "l1100-0-100-2", "attempt": 2, "bytes": 30,
        "reaches": {"end": "0/110", "commit": "0/0", "ordinal": 0},
        "relations": [{
            "id": 7, "namespace": "public", "name": "t", "version_commit": "0/100", "version_message": "0/0",
            "identity": "default",
            "columns": [
                {"name": "id", "type_name": "int8", "type_oid": 20, "type_modifier": -1, "key_position": 0, "treatment": "plain"},
                {"name": "f", "type_name": "float8", "type_oid": 701, "type_modifier": -1, "treatment": "plain"},
                {"name": "t", "type_name": "text", "type_oid": 25, "type_modifier": -1, "treatment": "plain"}]}],
        "transactions": [{
            "xid": 5, "commit": "0/100", "end": "0/110", "commit_time_us": 1, "first_ordinal": 0, "change_count": 2,
            "source_ordinal": 0, "part": 0, "last_part": true}],
        "groups": [{
            "relation": 7, "operation": "update",
            "after": [{"name": "id", "kind": "int64"}, {"name": "f", "kind": "float64"}, {"name": "t", "kind": "text"}],
            "before": [{"name": "id", "kind": "int64"}],
            "rows": [
                {"ordinal": 0, "after": {"id": i64::MAX, "f": "-0.0", "t": null}},
                {"ordinal": 1, "after": {"id": 2, "f": "NaN:7ff8000000000001", "t": {"unchanged": true}}, "before": {"id": 3}}]}],
        "messages": [{"ordinal": 9, "transactional": false, "prefix": "p", "content": "\\x00ff"}]
    })
}

#[test]
fn an_image_names_columns_and_tells_absences_apart() {
    let (batch, relations) = read(sample().to_string().as_bytes()).unwrap();
    let update = &batch.groups[0];
    assert_eq!(update.after[2].presence, Some(vec![NULL, UNCHANGED]));
    assert_eq!(update.before[0].presence, Some(vec![NOT_SENT, VALUE]));
    assert_eq!(update.after[0].values, Values::Int64(vec![i64::MAX, 2]));
    let Values::Float64(floats) = &update.after[1].values else { panic!("not floats") };
    assert_eq!(floats.iter().map(|f| f.to_bits()).collect::<Vec<_>>(), [1 << 63, 0x7FF8_0000_0000_0001]);
    assert_eq!((batch.rows, batch.messages[0].content.as_slice()), (3, &[0, 255][..]));
    // The form is fixed: letters outlive the walgate that wrote them.
    assert_eq!(serde_json::from_slice::<Value>(&write(&batch, &relations)).unwrap(), sample());
}

#[track_caller]
fn refuses(place: &str, with: Value, expect: &str) {
    let mut image = sample();
    *image.pointer_mut(place).unwrap() = with;
    let error = read(image.to_string().as_bytes()).unwrap_err().to_string();
    assert!(error.contains(expect), "{place}: {error}");
}

#[test]
fn a_contradiction_is_refused_by_place() {
    refuses("/walgate_image", json!(2), "version 2");
    refuses("/id", json!("a/b"), "id: ");
    refuses("/id", json!("a".repeat(65)), "id: ");
    refuses("/reaches/ordinal", json!(1), "reaches: ");
    refuses("/reaches/end", json!("x"), "line 1, column");
    refuses("/relations", json!([]), "group 1: a relation that");
    refuses("/relations/0/identity", json!("x"), "relation 1: an identity");
    refuses("/relations/0/columns/1/name", json!("t"), "relation 1: two columns");
    refuses("/transactions/0/end", json!("0/0"), "transaction 1: only a last part");
    refuses("/transactions/0/change_count", json!(1), "group 1, row 2: an ordinal that belongs to no");
    refuses("/transactions/0/first_ordinal", json!(u32::MAX), "transaction 1: more ordinals");
    refuses("/groups/0/operation", json!("upsert"), "group 1: an operation");
    refuses("/groups/0/rows/1/ordinal", json!(0), "group 1, row 2: ordinals do not rise");
    refuses("/groups/0/after/1/name", json!("x"), "group 1: a column that");
    refuses("/groups/0/after/1/name", json!("id"), "group 1: a column that");
    refuses("/groups/0/after/1/kind", json!("decimal"), "group 1: a column that");
    refuses("/groups/0/rows/0/after", json!({"id": 1, "x": 1}), "group 1, row 1: a column that the group does not");
    let cell = |value: Value, expect: &str| refuses("/groups/0/rows/1/after/id", value, expect);
    let expect = "group 1, row 2, after, column 1 of the group: not a value";
    cell(json!("2"), expect);
    cell(json!(1.5), expect);
    cell(json!(u64::MAX), expect);
    cell(json!({"unchanged": false}), expect);
    refuses("/groups/0/rows/1/after/f", json!("NaN:0"), "column 2 of the group");
    refuses("/groups/0/rows/1/after/f", json!("nan"), "column 2 of the group");
    refuses("/messages/0/content", json!("00"), "message 1: content");
    refuses("/messages/0/transactional", json!(true), "message 1: an ordinal");
}

#[test]
fn a_short_text_cannot_ask_for_much_memory() {
    let columns: Vec<Value> = (0..1_000)
        .map(|at| {
            json!({"name": format!("c{at}"), "type_name": "", "type_oid": 25,
        "type_modifier": -1, "treatment": "plain"})
        })
        .collect();
    let heads: Vec<Value> = (0..1_000).map(|at| json!({"name": format!("c{at}"), "kind": "uuid"})).collect();
    let rows: Vec<Value> = (0..10_000).map(|at| json!({"ordinal": at})).collect();
    let mut image = sample();
    image["relations"][0]["columns"] = json!(columns);
    image["transactions"][0]["change_count"] = json!(10_000);
    image["groups"][0] = json!({"relation": 7, "operation": "delete", "before": heads, "rows": rows});
    let error = read(image.to_string().as_bytes()).unwrap_err().to_string();
    assert!(error.contains("groups: more columns and rows"), "{error}");
}
