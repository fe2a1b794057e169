//! Dead letters: kept with the cursors or not at all, delivered again in order, never removed in silence, never shown.

use std::collections::BTreeMap;
use std::time::Duration;

use walgate_core::Lsn;
use walgate_store::{Checkpoint, Class, DeadLetter, DeadLetterLoss, NewDeadLetter, Store, StoreError, StoreReader};

use crate::{PIPELINE, PLUGIN, Place, SECRET, check, check_silent, lineage, on_both, started, to};

on_both! { letters_commit_with_cursors a_failed_commit_keeps_no_letter a_repeated_commit_keeps_each_once
letters_are_taken_or_refused_again order_is_kept_by_tables a_letter_refused_again_holds_later_ones_back
an_answer_is_bounded losses_are_counted old_letters_expire forgetting_leaves_letters images_are_never_shown
a_reader_reads_letters_where_walgate_never_ran plugins_keep_their_own_order }

/// A letter of 3 rows at 0x180 whose image is the secret.
pub(crate) fn letter(batch: &str, tables: &[&str]) -> NewDeadLetter {
    NewDeadLetter {
        plugin: PLUGIN.into(),
        generation: 7,
        batch_id: batch.into(),
        commit: Lsn::new(0x180),
        end: Lsn::new(0x190),
        source_ordinal: place_of(batch),
        class: "plugin".into(),
        code: "bad-row".into(),
        tables: tables.iter().map(|&table| table.to_owned()).collect(),
        rows: 3,
        image: SECRET.as_bytes().to_vec(),
    }
}

/// A place in the source for each batch, because a place has one letter; that of `b1` is the last there can be.
fn place_of(batch: &str) -> u32 {
    let number = |text: &str| text.bytes().fold(0_u32, |sum, byte| sum * 31 % 65_521 + u32::from(byte));
    u32::MAX - (number(batch) + 65_521 * 2 - number("b1")) % (65_521 * 2)
}

/// A checkpoint that only keeps letters.
fn keeping(letters: Vec<NewDeadLetter>) -> Checkpoint {
    Checkpoint { acked: Lsn::new(0x100), dead_letters: letters, ..Checkpoint::default() }
}

async fn commit(store: &mut Store, checkpoint: &Checkpoint) {
    store.commit(PIPELINE, &lineage(), checkpoint).await.unwrap();
}

/// Keeps a letter for each list of tables, and answers their ids.
async fn kept(store: &mut Store, place: &Place, tables: &[&[&str]]) -> Vec<i64> {
    let numbered = tables.iter().enumerate();
    commit(store, &keeping(numbered.map(|(n, tables)| letter(&format!("b{n}"), tables)).collect())).await;
    all(place).await.iter().map(|letter| letter.id).collect()
}

async fn reader(place: &Place) -> StoreReader {
    StoreReader::connect(place.config(), None).await.unwrap()
}

async fn all(place: &Place) -> Vec<DeadLetter> {
    reader(place).await.dead_letters(PIPELINE, None).await.unwrap()
}

async fn requested(store: &mut Store) -> Vec<i64> {
    store.requested_letters(PIPELINE, PLUGIN).await.unwrap().iter().map(|(letter, _)| letter.id).collect()
}

/// What was lost, without its time.
fn counted(loss: &DeadLetterLoss) -> (&str, &str, u64, u64, Lsn) {
    (&loss.plugin, &loss.reason, loss.letters, loss.rows, loss.up_to)
}

async fn letters_commit_with_cursors(major: u32) {
    let (place, mut store) = started(major).await;
    let mut checkpoint = to(0x200);
    let mut large = letter("b2", &[]);
    (large.image, large.rows, large.generation) = (vec![0; 1 << 20], u32::MAX, 8);
    checkpoint.dead_letters = vec![letter("b1", &["public.orders", "a\"b.ü,{}"]), large];
    commit(&mut store, &checkpoint).await;

    let letters = all(&place).await;
    let [first, second] = letters.as_slice() else { panic!("{} letters", letters.len()) };
    let expected = DeadLetter {
        id: first.id,
        plugin: PLUGIN.into(),
        generation: 7,
        batch_id: "b1".into(),
        commit: Lsn::new(0x180),
        end: Lsn::new(0x190),
        source_ordinal: u32::MAX,
        class: "plugin".into(),
        code: "bad-row".into(),
        tables: vec!["public.orders".into(), "a\"b.ü,{}".into()],
        rows: 3,
        bytes: SECRET.len() as u64,
        created_at: first.created_at,
        attempts: 1,
        requested: false,
    };
    assert_eq!(*first, expected);
    assert!(first.id < second.id, "ids rise in the order of the checkpoint");
    assert_eq!((second.generation, second.rows, second.bytes, second.tables.len()), (8, u32::MAX, 1 << 20, 0));
    let size = (1 << 20) + SECRET.len() as u64;
    let mut reader = reader(&place).await;
    assert_eq!(store.dead_letter_bytes(PIPELINE).await.unwrap(), size);
    assert_eq!(reader.dead_letter_bytes(PIPELINE).await.unwrap(), size);
    assert_eq!(reader.dead_letter(PIPELINE, second.id).await.unwrap().as_ref(), Some(second));
    assert_eq!(reader.dead_letter("another", second.id).await.unwrap(), None);
    assert_eq!(reader.dead_letters(PIPELINE, Some("stranger")).await.unwrap(), []);
    // One transaction wrote the letters and the cursor.
    let writers = "SELECT count(DISTINCT x) FROM (SELECT xmin::text x FROM walgate.dead_letters
        UNION ALL SELECT xmin::text FROM walgate.checkpoints) t";
    assert_eq!(place.client().await.query_one(writers, &[]).await.unwrap().get::<_, i64>(0), 1);
}

/// Whichever half is refused, neither is there.
async fn a_failed_commit_keeps_no_letter(major: u32) {
    let (place, mut store) = started(major).await;
    let ids = kept(&mut store, &place, &[&["t"], &["t"]]).await;
    store.request_redrive(PIPELINE, None, None).await.unwrap();
    let before = all(&place).await;
    let mut next = to(0x200);
    next.dead_letters = vec![letter("next", &["t"])];
    (next.redriven, next.refused_again) = (vec![ids[0]], vec![ids[1]]);
    for (table, rule) in [("checkpoints", "end_lsn <= '0/100'"), ("dead_letters", "batch_id <> 'next'")] {
        let add = format!("ALTER TABLE walgate.{table} ADD CONSTRAINT fault CHECK ({rule}) NOT VALID");
        place.execute(&add).await;
        let refused = store.commit(PIPELINE, &lineage(), &next).await;
        check_silent(&check(refused, Class::Retry, "checkpoint_store(write)"));
        assert_eq!(all(&place).await, before, "fault in {table}");
        assert_eq!(store.load(PIPELINE).await.unwrap().unwrap().acked, Lsn::new(0x100), "fault in {table}");
        place.execute(&format!("ALTER TABLE walgate.{table} DROP CONSTRAINT fault")).await;
    }
    let mut back = next.clone();
    back.acked = Lsn::new(0xFF);
    check(store.commit(PIPELINE, &lineage(), &back).await, Class::Bug, "checkpoint_store(regress)");
    assert_eq!(all(&place).await, before);
    commit(&mut store, &next).await;
    assert_eq!(all(&place).await.len(), 2, "one taken, one refused again, one new");
}

/// As after a lost answer, with everything a checkpoint can say of letters.
async fn a_repeated_commit_keeps_each_once(major: u32) {
    let (place, mut store) = started(major).await;
    let ids = kept(&mut store, &place, &[&["t"], &["u"]]).await;
    store.request_redrive(PIPELINE, None, None).await.unwrap();
    let mut checkpoint = keeping(vec![letter("same", &["t"]), letter("same", &["t"])]);
    // Another place in another batch or in the same one is another letter; other bytes at the same place replace it.
    checkpoint.dead_letters.extend([letter("other", &["t"]), letter("same", &["t"]), letter("same", &["t"])]);
    checkpoint.dead_letters[3].commit = Lsn::new(0x188);
    checkpoint.dead_letters[4].image = vec![0, 255];
    (checkpoint.redriven, checkpoint.refused_again) = (vec![ids[0]], vec![ids[1]]);
    commit(&mut store, &checkpoint).await;
    let once = all(&place).await;
    assert_eq!((once.len(), once[0].id, once[0].attempts), (4, ids[1], 2));
    commit(&mut store, &checkpoint).await;
    assert_eq!(all(&place).await, once);
}

async fn letters_are_taken_or_refused_again(major: u32) {
    let (place, mut store) = started(major).await;
    let ids = kept(&mut store, &place, &[&["t"], &["u"], &["v"]]).await;
    assert_eq!(requested(&mut store).await, Vec::<i64>::new());
    assert_eq!(store.request_redrive(PIPELINE, None, Some(&ids[..2])).await.unwrap(), 2);
    let marked = store.requested_letters(PIPELINE, PLUGIN).await.unwrap();
    assert_eq!(marked.iter().map(|(letter, _)| letter.id).collect::<Vec<_>>(), ids[..2]);
    assert!(marked.iter().all(|(letter, image)| letter.requested && image == SECRET.as_bytes()));

    let mut outcome = keeping(Vec::new());
    (outcome.redriven, outcome.refused_again) = (vec![ids[0]], vec![ids[1], ids[2]]);
    commit(&mut store, &outcome).await;
    let left: Vec<_> = all(&place).await.iter().map(|l| (l.id, l.attempts, l.requested)).collect();
    assert_eq!(left, [(ids[1], 2, false), (ids[2], 1, false)], "one that was not marked was not delivered either");
    assert_eq!(reader(&place).await.dead_letter_losses(PIPELINE).await.unwrap(), [], "what was taken is not lost");
    // Letters of another pipeline are out of reach.
    store.adopt("another", &lineage(), Lsn::new(0x100)).await.unwrap();
    outcome.redriven = vec![ids[1]];
    store.commit("another", &lineage(), &outcome).await.unwrap();
    assert_eq!(store.drop_letters("another", &ids).await.unwrap(), 0);
    assert_eq!(store.request_redrive("another", None, Some(&ids)).await.unwrap(), 0);
    assert_eq!(all(&place).await.len(), 2);
}

async fn order_is_kept_by_tables(major: u32) {
    let (place, mut store) = started(major).await;
    let ids = kept(&mut store, &place, &[&["a"], &["a", "b"], &["b"], &["c"]]).await;
    let refused = store.request_redrive(PIPELINE, None, Some(&[ids[2]])).await;
    let error = check(refused, Class::Operator, "dead_letters(order)");
    assert!(error.to_string().contains(&format!(": {};", ids[1])), "it names the older one alone: {error}");
    let refused = store.request_redrive(PIPELINE, Some(PLUGIN), Some(&[ids[1], ids[2], ids[3]])).await;
    let error = check(refused, Class::Operator, "dead_letters(order)");
    assert!(error.to_string().contains(&format!(": {};", ids[0])), "{error}");
    assert_eq!(requested(&mut store).await, Vec::<i64>::new(), "a refusal marks nothing, not even what could be");

    // Another table is no matter; together, and after the older one is gone, they may.
    assert_eq!(store.request_redrive(PIPELINE, None, Some(&[ids[3]])).await.unwrap(), 1);
    assert_eq!(store.request_redrive(PIPELINE, None, Some(&[ids[0]])).await.unwrap(), 1);
    assert_eq!(store.request_redrive(PIPELINE, None, Some(&[ids[1]])).await.unwrap(), 1, "the older one is marked");
    assert_eq!(requested(&mut store).await, [ids[0], ids[1], ids[3]]);
    assert_eq!(store.request_redrive(PIPELINE, None, None).await.unwrap(), 4);
    assert_eq!(requested(&mut store).await, ids);
}

/// What shares a table with it was not tried and waits for the operator, too; nothing overtakes either of them.
async fn a_letter_refused_again_holds_later_ones_back(major: u32) {
    let (place, mut store) = started(major).await;
    let ids = kept(&mut store, &place, &[&["a"], &["a", "b"], &["b"], &["c"]]).await;
    store.request_redrive(PIPELINE, None, None).await.unwrap();
    let mut outcome = keeping(Vec::new());
    outcome.refused_again = vec![ids[0]];
    commit(&mut store, &outcome).await;
    assert_eq!(requested(&mut store).await, [ids[3]], "the third shares no table with the first, but with the second");
    assert_eq!(store.drop_letters(PIPELINE, &[ids[0]]).await.unwrap(), 1);
    assert_eq!(requested(&mut store).await, [ids[3]], "dropping the first asks for nothing");
    store.request_redrive(PIPELINE, None, None).await.unwrap();
    assert_eq!(requested(&mut store).await, ids[1..]);
}

async fn plugins_keep_their_own_order(major: u32) {
    let (place, mut store) = started(major).await;
    let mut second = letter("b1", &["t"]);
    second.plugin = "second".into();
    commit(&mut store, &keeping(vec![letter("b1", &["t"]), second])).await;
    assert_eq!(store.request_redrive(PIPELINE, Some("second"), None).await.unwrap(), 1);
    assert_eq!(requested(&mut store).await, Vec::<i64>::new());
    assert_eq!(store.requested_letters(PIPELINE, "second").await.unwrap().len(), 1);
    assert_eq!(all(&place).await.len(), 2);
}

async fn an_answer_is_bounded(major: u32) {
    let (place, mut store) = started(major).await;
    let large = |n: u32, size: usize| {
        let mut letter = letter(&format!("b{n}"), &["t"]);
        letter.image = vec![b'x'; size];
        letter
    };
    commit(&mut store, &keeping(vec![large(0, 33 << 20), large(1, 16 << 20), large(2, 16 << 20), large(3, 1)])).await;
    store.request_redrive(PIPELINE, None, None).await.unwrap();
    let ids: Vec<i64> = all(&place).await.iter().map(|letter| letter.id).collect();
    assert_eq!(requested(&mut store).await, ids[..1], "one that is too large alone comes alone");
    store.drop_letters(PIPELINE, &ids[..1]).await.unwrap();
    assert_eq!(requested(&mut store).await, ids[1..3], "no smaller one overtakes");
    store.drop_letters(PIPELINE, &ids).await.unwrap();

    commit(&mut store, &keeping((0..1_001).map(|n| large(n, 1)).collect())).await;
    assert_eq!(store.request_redrive(PIPELINE, None, None).await.unwrap(), 1_001);
    assert_eq!(requested(&mut store).await.len(), 1_000);
}

async fn losses_are_counted(major: u32) {
    let (place, mut store) = started(major).await;
    let mut further = letter("b9", &["t"]);
    (further.plugin, further.end, further.rows) = ("second".into(), Lsn::new(0x999), 5);
    commit(&mut store, &keeping(vec![letter("b1", &["t"]), letter("b2", &["t"]), further, letter("b3", &["t"])])).await;
    let ids: Vec<i64> = all(&place).await.iter().map(|letter| letter.id).collect();
    assert_eq!(store.drop_letters(PIPELINE, &[ids[0], ids[2], i64::MAX]).await.unwrap(), 2);
    assert_eq!(store.drop_letters(PIPELINE, &[ids[0], ids[1]]).await.unwrap(), 1, "one is gone already");
    let losses = reader(&place).await.dead_letter_losses(PIPELINE).await.unwrap();
    let expected = [("second", "dropped", 1, 5, Lsn::new(0x999)), (PLUGIN, "dropped", 2, 6, Lsn::new(0x190))];
    assert_eq!(losses.iter().map(counted).collect::<Vec<_>>(), expected);
    assert!(losses[0].at < losses[1].at);
    assert_eq!(all(&place).await.len(), 1);
    // The count and the deletion are one: where one cannot be, the other is not.
    place.execute("ALTER TABLE walgate.dead_letter_losses ADD CONSTRAINT fault CHECK (letters < 3) NOT VALID").await;
    check(store.drop_letters(PIPELINE, &ids).await, Class::Retry, "checkpoint_store(write)");
    assert_eq!(all(&place).await.len(), 1);
}

async fn old_letters_expire(major: u32) {
    let (place, mut store) = started(major).await;
    let ids = kept(&mut store, &place, &[&["t"], &["u"], &["v"]]).await;
    store.take_over(PIPELINE, "host:1").await.unwrap();
    store.request_redrive(PIPELINE, None, Some(&[ids[0]])).await.unwrap();
    let age = format!("UPDATE walgate.dead_letters SET created_at = now() - interval '1 day' WHERE id <= {}", ids[1]);
    place.execute(&age).await;
    for patient in [Duration::from_secs(86_400 + 3_600), Duration::MAX] {
        assert_eq!(store.expire_letters(PIPELINE, patient).await.unwrap(), []);
    }
    assert_eq!(reader(&place).await.dead_letter_losses(PIPELINE).await.unwrap(), []);
    let lost = store.expire_letters(PIPELINE, Duration::from_secs(86_400 - 3_600)).await.unwrap();
    let expected = [(PLUGIN, "expired", 2, 6, Lsn::new(0x190))];
    assert_eq!(lost.iter().map(counted).collect::<Vec<_>>(), expected, "a mark does not keep a letter");
    assert_eq!(reader(&place).await.dead_letter_losses(PIPELINE).await.unwrap(), lost);
    assert_eq!(all(&place).await.iter().map(|letter| letter.id).collect::<Vec<_>>(), ids[2..]);
    // A later one answers what it removed itself, and the account has the sum.
    place.execute("UPDATE walgate.dead_letters SET created_at = now() - interval '1 day'").await;
    let lost = store.expire_letters(PIPELINE, Duration::ZERO).await.unwrap();
    assert_eq!(lost[0].letters, 1);
    assert_eq!(reader(&place).await.dead_letter_losses(PIPELINE).await.unwrap()[0].letters, 3);
}

async fn forgetting_leaves_letters(major: u32) {
    let (place, mut store) = started(major).await;
    let ids = kept(&mut store, &place, &[&["t"], &["u"]]).await;
    store.drop_letters(PIPELINE, &ids[..1]).await.unwrap();
    assert!(store.forget(PIPELINE).await.unwrap());
    assert_eq!(all(&place).await.iter().map(|letter| letter.id).collect::<Vec<_>>(), ids[1..]);
    assert_eq!(store.drop_letters(PIPELINE, &ids).await.unwrap(), 1);
    let losses = reader(&place).await.dead_letter_losses(PIPELINE).await.unwrap();
    assert_eq!(losses[0].letters, 2);
}

/// Whatever goes wrong with a table of letters, no image and no key is in the error; and no debug form has one.
async fn images_are_never_shown(major: u32) {
    let (place, mut store) = started(major).await;
    commit(&mut store, &keeping(vec![letter("b1", &["t"])])).await;
    let shown = format!("{:?}", all(&place).await);
    assert!(!shown.contains(SECRET) && shown.contains("b1"), "{shown}");
    let ids: Vec<i64> = all(&place).await.iter().map(|letter| letter.id).collect();
    let mut next = keeping(vec![letter("b2", &["t"])]);
    next.dead_letters[0].image = format!("{{\"key\":\"{SECRET}\"}}").into_bytes();
    let mut errors: BTreeMap<&str, StoreError> = BTreeMap::new();
    // A trigger of someone else that puts the row into its message and detail.
    let leak = "CREATE FUNCTION public.leak() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            RAISE EXCEPTION USING MESSAGE = convert_from(coalesce(NEW.image, OLD.image), 'UTF8'),
                DETAIL = convert_from(coalesce(NEW.image, OLD.image), 'UTF8'), ERRCODE = TG_ARGV[0];
        END $$";
    place.execute(leak).await;
    for code in ["WG003", "WG004", "WG007", "WG999", "23514", "P0001"] {
        let add = format!(
            "CREATE TRIGGER leak BEFORE INSERT OR UPDATE OR DELETE ON walgate.dead_letters
             FOR EACH ROW EXECUTE FUNCTION public.leak('{code}')"
        );
        place.execute(&add).await;
        errors.insert("commit", store.commit(PIPELINE, &lineage(), &next).await.unwrap_err());
        errors.insert("request", store.request_redrive(PIPELINE, None, None).await.unwrap_err());
        errors.insert("drop", store.drop_letters(PIPELINE, &ids).await.unwrap_err());
        errors.insert("expire", store.expire_letters(PIPELINE, Duration::ZERO).await.unwrap_err());
        for (_, error) in std::mem::take(&mut errors) {
            check_silent(&error);
        }
        place.execute("DROP TRIGGER leak ON walgate.dead_letters").await;
    }
    let again = store.commit(PIPELINE, &lineage(), &next).await;
    again.unwrap();
}

async fn a_reader_reads_letters_where_walgate_never_ran(major: u32) {
    let place = Place::make(major).await;
    let mut reader = reader(&place).await;
    assert_eq!(reader.dead_letters(PIPELINE, None).await.unwrap(), []);
    assert_eq!(reader.dead_letter(PIPELINE, 1).await.unwrap(), None);
    assert_eq!(reader.dead_letter_losses(PIPELINE).await.unwrap(), []);
    assert_eq!(reader.dead_letter_bytes(PIPELINE).await.unwrap(), 0);
}
