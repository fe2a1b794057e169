//! Each way to say no: who acts, what it is called, what is named, and that no value is.

use walgate_core::batch::Operation;
use walgate_core::rows::RowSet;
use walgate_store::{Class, RowsError, RowsSink, RowsTable, RowsTargets};

use crate::rows::{V, far, keyed, rest, rows, set, sink, text, work};
use crate::{PLUGIN, Place, SECRET, check_silent, on_both};

on_both! { rows_are_refused_without_their_values targets_have_to_fit malformed_sets_are_refused
a_grant_restricts_columns rights_are_the_operators a_database_that_is_away_is_waited_for
a_trigger_cannot_smuggle_a_value_into_an_error }

fn insert(target: &str, columns: &[(&str, V)]) -> RowSet {
    let columns: Vec<_> = columns.iter().map(|(name, cell)| (*name, vec![cell.clone()])).collect();
    set(target, Operation::Insert, &[0], &[], &columns)
}

#[track_caller]
fn check(error: &RowsError, class: Class, halt_name: &str, refusal: bool, named: &[&str]) {
    assert_eq!((error.class(), error.halt_name(), error.refusal()), (class, halt_name, refusal), "{error}");
    for name in named {
        assert!(error.to_string().contains(name), "{name} is not named: {error}");
    }
    check_silent(error);
}

#[track_caller]
fn check_refused(error: &RowsError, named: &[&str]) {
    check(error, Class::Operator, "rows_refused", true, named);
}

#[track_caller]
fn check_target(error: &RowsError, named: &[&str]) {
    check(error, Class::Operator, "rows_target", false, named);
}

async fn rows_are_refused_without_their_values(major: u32) {
    let place = Place::make(major).await;
    place
        .execute(&format!(
            "CREATE TABLE t (id text PRIMARY KEY, u text UNIQUE, n int, c text CHECK (c <> '{SECRET}'), m text NOT NULL
                 DEFAULT '', v varchar(5), j jsonb, p text REFERENCES t);
             CREATE TABLE l (n int, v varchar(5), u text UNIQUE); INSERT INTO t VALUES ('other', '{SECRET}');
             INSERT INTO l VALUES (0, '', '{SECRET}')"
        ))
        .await;
    let mut sink = sink(&place, rest("public")).await;
    let id = ("id", text(SECRET));
    let secret = || text(SECRET);
    let cases: Vec<(RowSet, &[&str])> = vec![
        (insert("t", &[id.clone(), ("u", secret())]), &["23505", "\"t\"", PLUGIN]),
        (insert("t", &[id.clone(), ("n", secret())]), &["22P02"]),
        (insert("t", &[id.clone(), ("c", secret())]), &["23514"]),
        (insert("t", &[id.clone(), ("m", V::Null)]), &["23502", "column \"m\""]),
        (insert("t", &[id.clone(), ("v", secret())]), &["22001"]),
        (insert("t", &[id.clone(), ("j", secret())]), &["22P02"]),
        (insert("t", &[id.clone(), ("p", text("nobody"))]), &["23503"]),
        (insert("t", &[id.clone(), ("n", V::I8(1 << 40))]), &["22003"]),
        (insert("t", &[id.clone(), ("c", V::Text(format!("{SECRET}\0")))]), &["22021"]),
        (insert("t", &[("id", V::Null), ("c", secret())]), &["column \"id\"", "NULL"]),
        (insert("t", &[("c", secret())]), &["column \"id\"", "missing"]),
        (set("t", Operation::Delete, &[0], &[("id", vec![V::Null])], &[]), &["column \"id\""]),
        (set("t", Operation::Delete, &[0], &[("c", vec![secret()])], &[]), &["column \"id\"", "missing"]),
        (insert("l", &[("n", V::I4(1)), ("v", secret())]), &["22001", "\"l\""]),
        (insert("l", &[("n", V::I4(1)), ("u", secret())]), &["23505"]),
    ];
    for (refused, named) in cases {
        // With a good row before it, which must not stay.
        let good = insert("l", &[("n", V::I4(7))]);
        let error = sink.commit(&work(0x200, vec![vec![good], vec![refused]])).await.unwrap_err();
        check_refused(&error, named);
    }
    assert_eq!(rows(&place, "SELECT count(*) FROM l").await, ["(1)"]);
    assert_eq!(rows(&place, "SELECT count(*) FROM t").await, ["(1)"]);
}

async fn targets_have_to_fit(major: u32) {
    let place = Place::make(major).await;
    place
        .execute(
            "CREATE TABLE nokey (a int, b int); CREATE TABLE t (id int PRIMARY KEY, a int, b point);
             CREATE VIEW seen AS SELECT * FROM t; CREATE TABLE later (id int PRIMARY KEY DEFERRABLE);
             CREATE TABLE g (id int PRIMARY KEY, a int GENERATED ALWAYS AS (id) STORED)",
        )
        .await;
    let mut sink = sink(&place, rest("public")).await;
    let id = ("id", V::I4(1));
    let delete = |table: &str| set(table, Operation::Delete, &[0], &[("a", vec![V::I4(1)])], &[]);
    let cases: Vec<(RowSet, &[&str])> = vec![
        (insert("absent", std::slice::from_ref(&id)), &["\"absent\"", "create it"]),
        (insert("seen", std::slice::from_ref(&id)), &["not a table"]),
        (insert("t", &[id.clone(), ("zzz", V::I4(1))]), &["column \"zzz\""]),
        (insert("t", &[id.clone(), ("b", V::I4(1))]), &["42846"]),
        (delete("nokey"), &["primary key"]),
        (insert("later", std::slice::from_ref(&id)), &["NOT DEFERRABLE"]),
    ];
    for (bad, named) in cases {
        check_target(&sink.commit(&work(0x200, vec![vec![bad]])).await.unwrap_err(), named);
    }
    for (targets, named) in [
        (keyed("x", "nokey", &["b", "a"]), "CREATE UNIQUE INDEX ON \"public\".\"nokey\" (\"b\", \"a\")"),
        (keyed("x", "nokey", &["zzz"]), "column \"zzz\""),
        (keyed("x", "g", &["a"]), "generated"),
        (RowsTargets::default(), "target \"x\""),
    ] {
        let mut sink = crate::rows::sink(&place, targets).await;
        let error = sink.commit(&work(0x200, vec![vec![insert("x", &[("a", V::I4(1))])]])).await.unwrap_err();
        check_target(&error, &[named]);
    }
    // The operator's fix is seen without a restart.
    place.execute("CREATE UNIQUE INDEX ON nokey (b, a)").await;
    let mut sink = crate::rows::sink(&place, keyed("x", "nokey", &["a", "b"])).await;
    sink.commit(&work(0x200, vec![vec![insert("x", &[("a", V::I4(1)), ("b", V::I4(1))])]])).await.unwrap();
}

async fn malformed_sets_are_refused(major: u32) {
    let place = Place::make(major).await;
    place.execute("CREATE TABLE t (id int PRIMARY KEY, a text)").await;
    let mut sink = sink(&place, rest("public")).await;
    let whole = || insert("t", &[("id", V::I4(1)), ("a", text(SECRET))]);
    let breaks: [fn(&mut RowSet); 7] = [
        |set| set.ordinals.push(1),
        |set| set.after[1].presence = Some(vec![0, 0]),
        |set| set.after[1].presence = Some(vec![4]),
        |set| set.after[1].values = walgate_core::batch::Values::Uuid(vec![0; 15]),
        |set| {
            let ends = vec![99];
            set.after[1].values =
                walgate_core::batch::Values::Text(walgate_core::batch::TextValues { ends, data: SECRET.into() });
        },
        |set| set.after.push(set.after[1].clone()),
        |set| set.after.push(set.after[0].clone()),
    ];
    for damage in breaks {
        let mut bad = whole();
        damage(&mut bad);
        check_refused(&sink.commit(&work(0x200, vec![vec![bad]])).await.unwrap_err(), &["\"t\""]);
    }
    let mut forms = whole();
    forms.ordinals = vec![1];
    let other = insert("t", &[("id", text(SECRET)), ("a", text("a"))]);
    let error = sink.commit(&work(0x200, vec![vec![other, forms]])).await.unwrap_err();
    check_refused(&error, &["two forms", "column \"id\""]);
    let mut stranger = work(0x200, vec![vec![whole()]]);
    stranger.cursor.plugin = "stranger".into();
    assert_eq!(sink.commit(&stranger).await.unwrap_err().class(), Class::Bug);
    assert_eq!(rows(&place, "SELECT * FROM t").await, [""; 0]);
}

async fn a_grant_restricts_columns(major: u32) {
    let place = Place::make(major).await;
    place.execute("CREATE TABLE t (id int PRIMARY KEY, a text, b text)").await;
    let table = |columns: &[&str]| {
        let columns = Some(columns.iter().map(|name| (*name).to_owned()).collect());
        let table = RowsTable { schema: "public".into(), table: "t".into(), columns, key: None };
        RowsTargets { named: [("x".to_owned(), table)].into(), rest: None }
    };
    let mut sink = crate::rows::sink(&place, table(&["a"])).await;
    sink.commit(&work(0x200, vec![vec![insert("x", &[("id", V::I4(1)), ("a", text("a"))])]])).await.unwrap();
    let error = sink.commit(&work(0x300, vec![vec![insert("x", &[("id", V::I4(1)), ("b", text(SECRET))])]])).await;
    check_target(&error.unwrap_err(), &["column \"b\"", "not granted"]);
    let mut sink = crate::rows::sink(&place, table(&["a", "typo"])).await;
    let error = sink.commit(&work(0x300, vec![vec![insert("x", &[("id", V::I4(1))])]])).await.unwrap_err();
    check_target(&error, &["column \"typo\""]);
}

async fn rights_are_the_operators(major: u32) {
    let place = Place::make(major).await;
    let role = format!("writer_{}", place.database);
    place
        .execute(&format!(
            "CREATE TABLE t (id int PRIMARY KEY, a text); CREATE ROLE {role} LOGIN; GRANT SELECT ON t TO {role}"
        ))
        .await;
    let connect = || RowsSink::connect(place.config_as(&role), None, PLUGIN, rest("public"), far(1));
    let mut sink = connect().await.unwrap();
    check_target(&sink.open().await.unwrap_err(), &["42501", "walgate_target"]);
    place.execute(&format!("GRANT CREATE ON DATABASE {} TO {role}", place.database)).await;
    sink.open().await.unwrap();
    let add = || work(0x200, vec![vec![insert("t", &[("id", V::I4(1)), ("a", text(SECRET))])]]);
    check_target(&sink.commit(&add()).await.unwrap_err(), &["42501", "\"t\"", "INSERT"]);
    place.execute(&format!("GRANT INSERT, UPDATE ON t TO {role}")).await;
    sink.commit(&add()).await.unwrap();
    let nobody = RowsSink::connect(place.config_as("nobody_at_all"), None, PLUGIN, rest("public"), far(1)).await;
    check_target(&nobody.err().unwrap(), &["28000"]);
}

async fn a_database_that_is_away_is_waited_for(major: u32) {
    let place = Place::make(major).await;
    let mut config = place.config();
    let port = walgate_harness::free_port().unwrap();
    config =
        format!("host=127.0.0.1 port={port} user=postgres dbname={}", config.get_dbname().unwrap()).parse().unwrap();
    let error = RowsSink::connect(config, None, PLUGIN, rest("public"), far(1)).await.err().unwrap();
    check(&error, Class::Retry, "rows_unavailable", false, &[]);
    // A lock that someone else holds passes, too.
    place.execute("CREATE TABLE t (id int PRIMARY KEY)").await;
    let mut sink = sink(&place, rest("public")).await;
    sink.commit(&work(0x200, vec![vec![insert("t", &[("id", V::I4(1))])]])).await.unwrap();
    place.execute(&format!("ALTER DATABASE {} SET default_transaction_read_only = on", place.database)).await;
    let mut sink = RowsSink::connect(place.config(), None, PLUGIN, rest("public"), far(1)).await.unwrap();
    let error = sink.commit(&work(0x300, vec![vec![insert("t", &[("id", V::I4(2))])]])).await.unwrap_err();
    check(&error, Class::Retry, "rows_unavailable", false, &["25006"]);
}

async fn a_trigger_cannot_smuggle_a_value_into_an_error(major: u32) {
    let place = Place::make(major).await;
    place
        .execute(
            "CREATE TABLE t (id int PRIMARY KEY, a text);
             CREATE FUNCTION shout() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 RAISE EXCEPTION USING MESSAGE = NEW.a, DETAIL = NEW.a, HINT = NEW.a, COLUMN = NEW.a, TABLE = NEW.a,
                     SCHEMA = NEW.a, CONSTRAINT = NEW.a, DATATYPE = NEW.a;
             END $$;
             CREATE TRIGGER shout BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION shout()",
        )
        .await;
    let mut sink = sink(&place, rest("public")).await;
    let error = sink.commit(&work(0x200, vec![vec![insert("t", &[("id", V::I4(1)), ("a", text(SECRET))])]])).await;
    check_refused(&error.unwrap_err(), &["P0001", "\"t\""]);
}
