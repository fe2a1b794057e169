//! Guests that tests of the pipeline are built on: each does what its page says.

use walgate_core::Cursor;
use walgate_plugin::Disposition;

use super::*;

/// Three inserted rows, the one at ordinal 1 with `poison` in its text.
fn poisoned() -> Batch {
    let mut batch = batch();
    let group = &mut batch.groups[0];
    group.ordinals = vec![0, 1, 2];
    group.after[0].values = Values::Int32(vec![1, 2, 3]);
    let text = TextValues { ends: vec![2, 11, 13], data: "okxpoisonedok".to_owned() };
    group.after[1].values = Values::Text(text);
    batch.transactions[0].change_count = 3;
    batch
}

fn lines(staged: &walgate_plugin::Staged) -> usize {
    staged.outputs.iter().flat_map(|(_, bytes)| bytes).filter(|byte| **byte == b'\n').count()
}

async fn poison(name: &str) -> Delivery {
    let worker = start(name);
    open(&worker, name).await;
    let good = deliver(&worker).await;
    assert!(good.outcome.is_ok(), "{name}: {:?}", good.outcome);
    assert_eq!(lines(&good.staged), 2, "{name}");
    worker.deliver(poisoned()).await
}

#[tokio::test]
async fn poison_traps_halts_and_is_rejected() {
    let trapped = poison("trap-on-poison").await;
    assert_eq!(trapped.outcome, Err(CallError::Trapped(TrapCause::Unreachable)));
    assert!(trapped.staged.is_empty());
    let expect =
        [("reject-poison-batch", Disposition::Reject, "poison-batch"), ("halt-on-poison", Disposition::Halt, "poison")];
    for (name, disposition, code) in expect {
        let failed = poison(name).await;
        assert!(failed.staged.is_empty(), "{name}");
        let Err(CallError::Refused(failure)) = failed.outcome else { panic!("{name}: {:?}", failed.outcome) };
        assert_eq!((failure.disposition, failure.code.as_str()), (disposition, code), "{name}");
    }
    let rows = poison("reject-poison-rows").await;
    assert_eq!(lines(&rows.staged), 2);
    let rejected = rows.outcome.expect("a receipt").rejected;
    assert_eq!(rejected.iter().map(|r| (r.ordinal, r.code.as_str())).collect::<Vec<_>>(), [(1, "poison-row")]);
}

#[tokio::test]
async fn stuck() {
    let worker = start("stuck");
    open(&worker, "stuck").await;
    for _ in 0..3 {
        let Err(CallError::Refused(failure)) = deliver(&worker).await.outcome else { panic!("it was not refused") };
        assert_eq!((failure.disposition, failure.retry_after_ms), (Disposition::Retry, Some(50)));
    }
}

#[tokio::test]
async fn flush_later() {
    let worker = start("flush-later");
    open(&worker, "flush-later").await;
    for _ in 0..2 {
        let delivery = deliver(&worker).await;
        assert!(delivery.outcome.is_ok_and(|receipt| !receipt.durable));
        assert!(delivery.staged.is_empty());
    }
    assert_eq!(lines(&worker.flush().await.expect("it flushes")), 4);
    assert!(worker.flush().await.expect("it flushes again").is_empty());
}

#[tokio::test]
async fn own_position() {
    let name = "own-position";
    let worker = start(name);
    let mut state = BTreeMap::new();
    assert_eq!(worker.open(context(name, state.clone())).await, Ok(None), "nothing written, nothing to say");
    worker.relation_changed(&relation(), None).await.expect("it accepts");
    let mut keep = |staged: walgate_plugin::Staged| {
        state.extend(staged.state.into_iter().filter_map(|(key, value)| Some((key, value?))));
        state.clone()
    };
    let first = deliver(&worker).await;
    assert_eq!(lines(&first.staged), 2);
    let kept = keep(first.staged);
    assert_eq!(kept.get("position"), Some(&b"20 0 0".to_vec()));
    assert_eq!(worker.open(context(name, kept)).await, Ok(Some(Cursor::at(Lsn::new(20)))));
    worker.relation_changed(&relation(), None).await.expect("it accepts");

    // A part of a transaction is counted from the end of the one before.
    let mut part = batch();
    let transaction = &mut part.transactions[0];
    (transaction.commit, transaction.end, transaction.part) = (Lsn::new(30), Lsn::new(0), 1);
    (transaction.last_part, transaction.source_ordinal) = (false, 100);
    let kept = keep(worker.deliver(part).await.staged);
    let within = Cursor { end: Lsn::new(20), commit: Lsn::new(30), ordinal: 102 };
    assert_eq!(worker.open(context(name, kept.clone())).await, Ok(Some(within)));

    let text = "[grant]\ncapabilities = [\"state\"]\n[settings]\nlie = \"ahead\"\n";
    let liar = Manifest::parse("plugin.toml".as_ref(), text).expect("a manifest").policy(name);
    let worker = Worker::start(load(name), liar).expect("a thread");
    let answer = worker.open(context(name, kept)).await.expect("it opens").expect("a position");
    assert!(answer.end > Lsn::new(1 << 60), "{answer:?}");
}
