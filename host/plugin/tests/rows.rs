//! Guests that hand over rows: one that breaks every rule, and the mirror.

use walgate_plugin::Disposition;

use super::*;

/// What the guest `rows-liar` expects.
const ORDERS: &str = "[grant.rows.orders]\nschema = \"mirror\"\ncolumns = [\"id\", \"note\"]\n\
    operations = [\"insert\", \"delete\"]\n[limits]\nrows_bytes_per_call = 524288\nmemory_mib = 64\n";

async fn start_with(name: &str, grants: &str, setting: Option<(&str, &str)>) -> Worker {
    let settings = setting.map(|(key, value)| format!("[settings]\n{key} = \"{value}\"\n")).unwrap_or_default();
    let manifest = Manifest::parse("plugin.toml".as_ref(), &format!("{grants}{settings}")).expect("a manifest");
    Worker::start(load(name), manifest.policy(name)).expect("a thread")
}

#[tokio::test]
async fn every_lie_is_answered_with_its_code_and_keeps_nothing() {
    let invalid = [
        "column-twice",
        "slots",
        "presence-length",
        "presence-code",
        "ends-fall",
        "ends-beyond",
        "end-in-character",
        "boolean",
        "uuid",
        "ordinals-fall",
        "ordinal-twice",
        "after-of-delete",
    ]
    .map(|lie| (lie, "invalid-rows"));
    let denied = ["target", "operation", "column", "column-of-before"].map(|lie| (lie, "not-granted"));
    let over = ["rows", "bytes"].map(|lie| (lie, "over-limit"));
    for (lie, code) in invalid.into_iter().chain(denied).chain(over) {
        let grants = if lie == "rows" { ORDERS.replace("524288", "67108864") } else { ORDERS.to_owned() };
        let worker = start_with("rows-liar", &grants, Some(("lie", lie))).await;
        open(&worker, "rows-liar").await;
        let delivery = deliver(&worker).await;
        let Err(CallError::Refused(failure)) = &delivery.outcome else { panic!("{lie}: {:?}", delivery.outcome) };
        assert_eq!((failure.disposition, failure.code.as_str()), (Disposition::Halt, code), "{lie}");
        assert!(delivery.staged.is_empty(), "{lie}");
    }
    let worker = start_with("rows-liar", ORDERS, Some(("lie", "in-open"))).await;
    let answer = worker.open(context("rows-liar", BTreeMap::new())).await;
    let Err(CallError::Refused(failure)) = answer else { panic!("{answer:?}") };
    assert_eq!(failure.code, "outside-delivery");
}

#[tokio::test]
async fn good_rows_are_staged_in_the_order_of_their_sets() {
    let worker = start_with("rows-liar", ORDERS, None).await;
    open(&worker, "rows-liar").await;
    let delivery = deliver(&worker).await;
    assert!(delivery.outcome.is_ok(), "{:?}", delivery.outcome);
    let [call] = delivery.staged.rows.as_slice() else { panic!("{:?}", delivery.staged) };
    let ids: Vec<_> = call.iter().map(|set| (set.ordinals.clone(), set.after[0].values.clone())).collect();
    assert_eq!(ids, [(vec![0], Values::Int64(vec![6])), (vec![1, 2], Values::Int64(vec![7, 8]))]);
}

#[tokio::test]
async fn mirror_rust() {
    let worker = start_with("mirror-rust", "[grant.rows.\"*\"]\nschema = \"mirror\"\n", None).await;
    open(&worker, "mirror-rust").await;
    let delivery = deliver(&worker).await;
    assert!(delivery.outcome.is_ok_and(|receipt| receipt.durable));
    let [call] = delivery.staged.rows.as_slice() else { panic!("{:?}", delivery.staged) };
    let [set] = call.as_slice() else { panic!("{call:?}") };
    let columns: Vec<_> = set.after.iter().map(|cells| (cells.name.as_str(), &cells.values)).collect();
    let group = &batch().groups[0];
    assert_eq!(columns, [("id", &group.after[0].values), ("name", &group.after[1].values)]);
    assert_eq!((set.target.as_str(), set.operation, &set.ordinals), ("t", Operation::Insert, &group.ordinals));

    for grants in [
        "[grant.rows.elsewhere]\nschema = \"mirror\"\n",
        "[grant.rows.t]\nschema = \"mirror\"\ncolumns = [\"id\"]\n",
        "[grant.rows.t]\nschema = \"mirror\"\noperations = []\n",
    ] {
        let worker = start_with("mirror-rust", grants, None).await;
        worker.open(context("mirror-rust", BTreeMap::new())).await.expect("it opens");
        assert_eq!(worker.relation_changed(&relation(), None).await, Ok(Verdict::Decline), "{grants}");
    }
}
