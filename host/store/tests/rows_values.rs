//! Every kind of value, to the ends of its range, into columns of its own type and of others.

use walgate_core::batch::Operation;

use crate::rows::{V, rest, rows, set, sink, text, work};
use crate::{Place, on_both};

on_both! { every_kind_arrives_as_it_is text_is_read_as_the_type_of_its_column values_of_one_kind_fit_columns_of_another
text_is_read_the_same_whatever_the_role_prefers }

const MIDNIGHT: i64 = 86_400_000_000;

async fn every_kind_arrives_as_it_is(major: u32) {
    let place = Place::make(major).await;
    let columns =
        "b bool, i2 int2, i4 int4, i8 int8, f4 float4, f8 float8, d date, t time, ts timestamp, tz timestamptz,
                   u uuid, y bytea, x text";
    // With a key the rows are staged, without one they are copied straight in.
    place.execute(&format!("CREATE TABLE k (id int PRIMARY KEY, {columns}); CREATE TABLE n (id int, {columns})")).await;
    let mut sink = sink(&place, rest("public")).await;
    let all = |id: i32, cells: [V; 13]| {
        let names = ["b", "i2", "i4", "i8", "f4", "f8", "d", "t", "ts", "tz", "u", "y", "x"];
        let mut columns = vec![("id", vec![V::I4(id)])];
        columns.extend(names.into_iter().zip(cells.map(|cell| vec![cell])));
        columns
    };
    let highest = [
        V::Bool(1),
        V::I2(i16::MAX),
        V::I4(i32::MAX),
        V::I8(i64::MAX),
        V::F4(f32::INFINITY),
        V::F8(f64::NAN),
        V::Date(i32::MAX),
        V::Time(MIDNIGHT),
        V::Stamp(i64::MAX),
        V::Stamp(9_223_371_331_199_999_999),
        V::Uuid([0xFF; 16]),
        V::Bytes(vec![0, 255, 0]),
        text("über\n\t\\N\"'"),
    ];
    let lowest = [
        V::Bool(0),
        V::I2(i16::MIN),
        V::I4(i32::MIN),
        V::I8(i64::MIN),
        V::F4(f32::from_bits(1)),
        V::F8(-0.0),
        V::Date(-2_451_507),
        V::Time(0),
        V::Stamp(-211_813_488_000_000_000),
        V::Stamp(i64::MIN),
        V::Uuid([0; 16]),
        V::Bytes(Vec::new()),
        text(""),
    ];
    let nothing = std::array::from_fn(|_| V::Null);
    for table in ["k", "n"] {
        let sets = (0..)
            .zip([&highest, &lowest, &nothing])
            .map(|(id, cells)| set(table, Operation::Insert, &[id as u32], &[], &all(id, cells.clone())));
        let end = if table == "k" { 0x200 } else { 0x300 };
        sink.commit(&work(end, vec![sets.collect()])).await.unwrap();
        let right = format!(
            "SELECT bool_and(ok) FROM (
             SELECT (b, i2, i4, i8, f4, f8, d, t, ts, tz, u, y, x) IS NOT DISTINCT FROM
               (true, 32767::int2, 2147483647, 9223372036854775807, 'Infinity'::float4, 'NaN'::float8, 'infinity'::date,
                '24:00'::time, 'infinity'::timestamp, '294276-12-31 23:59:59.999999+00'::timestamptz,
                'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid, '\\x00ff00'::bytea, E'über\\n\\t\\\\N\"''') ok
               FROM {table} WHERE id = 0
             UNION ALL SELECT (b, i2, i4, i8, f4, f8, d, t, ts, tz, u, y, x) IS NOT DISTINCT FROM
               (false, (-32768)::int2, -2147483648, -9223372036854775808, '1e-45'::float4, '-0'::float8,
                '4713-01-01 BC'::date, '00:00'::time, '4714-11-24 BC'::timestamp, '-infinity'::timestamptz,
                '00000000-0000-0000-0000-000000000000'::uuid, ''::bytea, '') AND f8::text = '-0'
               FROM {table} WHERE id = 1
             UNION ALL SELECT num_nulls(b, i2, i4, i8, f4, f8, d, t, ts, tz, u, y, x) = 13 FROM {table} WHERE id = 2) q"
        );
        assert_eq!(rows(&place, &right).await, ["(t)"], "{table}");
        assert_eq!(rows(&place, &format!("SELECT count(*) FROM {table}")).await, ["(3)"]);
    }
}

async fn text_is_read_as_the_type_of_its_column(major: u32) {
    let place = Place::make(major).await;
    place
        .execute(
            "CREATE TYPE mood AS ENUM ('sad', 'so ''so'''); CREATE DOMAIN short AS varchar(3) CHECK (VALUE <> 'bad');
             CREATE DOMAIN shorter AS short; CREATE TYPE place AS (x int, y text)",
        )
        .await;
    let mut sink = sink(&place, rest("public")).await;
    let cases = [
        ("numeric", "NaN"),
        ("numeric", "-Infinity"),
        ("numeric(20,3)", "12345678901234567.500"),
        ("jsonb", "{\"a\": [1, null]}"),
        ("json", "{\"a\":   1}"),
        ("int[]", "{{1,2},{NULL,4}}"),
        ("text[]", "{\"a,b\",NULL,\"NULL\",\"\"}"),
        ("mood", "so 'so'"),
        ("mood[]", "{sad,\"so 'so'\"}"),
        ("shorter", "abc"),
        ("shorter[]", "{abc,NULL}"),
        ("place", "(1,\"a \"\"b\"\"\")"),
        ("interval", "-1 days +02:03:00"),
        ("timetz", "24:00:00-15:59"),
        ("int4range", "[1,5)"),
        ("inet", "10.0.0.1/8"),
        ("bit(3)", "101"),
        ("char(4)", "ab  "),
        ("xml", "<a>1</a>"),
        ("point", "(1.5,-2)"),
        ("\"char\"", "x"),
        ("money", "$1.50"),
        ("pg_lsn", "16/B374D848"),
        ("tsvector", "'a':1 'b':2"),
    ];
    let mut end = 0x200;
    for (index, (of, value)) in cases.into_iter().enumerate() {
        for key in ["id int PRIMARY KEY", "id int"] {
            let table = format!("t{index}_{}", key.len());
            place.execute(&format!("CREATE TABLE {table} ({key}, v {of})")).await;
            let columns = [("id", vec![V::I4(1)]), ("v", vec![text(value)])];
            end += 0x100;
            let inserted =
                sink.commit(&work(end, vec![vec![set(&table, Operation::Insert, &[0], &[], &columns)]])).await;
            inserted.unwrap_or_else(|error| panic!("{of}: {error}"));
            let quoted = value.replace('\'', "''");
            let right = format!("SELECT v::text = '{quoted}'::{of}::text FROM {table}");
            assert_eq!(rows(&place, &right).await, ["(t)"], "{of}");
        }
    }
    // A modifier refuses what is too long: a cast would have cut it.
    for (table, of) in [("long1", "varchar(3)"), ("long2", "char(3)"), ("long3", "bit(3)"), ("long4", "shorter")] {
        place.execute(&format!("CREATE TABLE {table} (id int PRIMARY KEY, v {of})")).await;
        let columns = [("id", vec![V::I4(1)]), ("v", vec![text("1010")])];
        let refused =
            sink.commit(&work(end + 0x100, vec![vec![set(table, Operation::Insert, &[0], &[], &columns)]])).await;
        assert!(refused.unwrap_err().refusal(), "{of}");
    }
}

async fn values_of_one_kind_fit_columns_of_another(major: u32) {
    let place = Place::make(major).await;
    place
        .execute("CREATE TABLE t (id numeric PRIMARY KEY, a bigint, b text, c numeric, d oid, e timestamptz, f text)")
        .await;
    let mut sink = sink(&place, rest("public")).await;
    let columns = [
        ("id", vec![V::I4(7)]),
        ("a", vec![V::I2(-3)]),
        ("b", vec![V::I8(5)]),
        ("c", vec![V::F8(0.25)]),
        ("d", vec![V::I8(4_294_967_295)]),
        ("e", vec![V::Stamp(0)]),
        ("f", vec![V::Date(0)]),
    ];
    sink.commit(&work(0x200, vec![vec![set("t", Operation::Insert, &[0], &[], &columns)]])).await.unwrap();
    let got = rows(&place, "SELECT id, a, b, c, d, e AT TIME ZONE 'UTC', f FROM t").await;
    assert_eq!(got, ["(7,-3,5,0.25,4294967295,\"2000-01-01 00:00:00\",2000-01-01)"]);
}

async fn text_is_read_the_same_whatever_the_role_prefers(major: u32) {
    let place = Place::make(major).await;
    place
        .execute(&format!(
            "CREATE TABLE t (id int PRIMARY KEY, d date, i interval, z timetz);
             ALTER DATABASE {0} SET DateStyle = 'SQL, DMY'; ALTER DATABASE {0} SET IntervalStyle = 'sql_standard';
             ALTER DATABASE {0} SET TimeZone = 'America/New_York'",
            place.database
        ))
        .await;
    let mut sink = sink(&place, rest("public")).await;
    let columns = [
        ("id", vec![V::I4(1)]),
        ("d", vec![text("2020-02-03")]),
        ("i", vec![text("-1 days +02:03:00")]),
        ("z", vec![text("12:00:00+00")]),
    ];
    sink.commit(&work(0x200, vec![vec![set("t", Operation::Insert, &[0], &[], &columns)]])).await.unwrap();
    let right = "SELECT d = make_date(2020, 2, 3), i = make_interval(days => -1, hours => 2, mins => 3), z FROM t";
    assert_eq!(rows(&place, right).await, ["(t,t,12:00:00+00)"]);
}
