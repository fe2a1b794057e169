//! Tables with every family of types, and values in them that are known wherever they turn up.
//!
//! Holds: schema, work, needles. A marker is a text that no program would print by itself. Values too short to be told from
//! chance, a smallint for example, are there to be carried and are not looked for. Never knows: who handles them.

use anyhow::Result;
use walgate_harness::Needles;

use crate::scene::Scene;

/// What no output may hold. `5ecre7` begins every text of the rows, keys and labels included, so that one cut short is
/// found, too.
const MARKERS: [&str; 19] = [
    "5ecre7",
    "7040111222",
    "1704011223",
    "98765432101234",
    "1.7040112",
    "170401.1223344",
    "7043-11-29",
    "17:04:11.223344",
    "19:04:11.223344",
    "7044-05-06",
    "7045-05-06",
    "5ec2e700-dead-4bee-8f00-5ec2e7005ec2",
    "5ec2e700dead4bee8f005ec2e7005ec2",
    "1704 days",
    "203.0.113.77",
    "5e:c2:e7:5e:c2:e7",
    "01011110110000101110011101011110",
    "170401.25",
    "1704011299",
];

/// Markers that stand in the output of a plugin that writes every value in its own way: dates, times and one form of the
/// uuid are spelled by it.
pub(super) const VISIBLE: [&str; 16] = [
    "5ecre7",
    "7040111222",
    "1704011223",
    "98765432101234",
    "1.7040112",
    "170401.1223344",
    "7043-11-29",
    "17:04:11.223344",
    "19:04:11.223344",
    "7044-05-06",
    "7045-05-06",
    "5ec2e700-dead-4bee-8f00-5ec2e7005ec2",
    "1704 days",
    "203.0.113.77",
    "5e:c2:e7:5e:c2:e7",
    "170401.25",
];

/// The value of `txt`, which the targets of the suite refuse.
pub(super) const TEXT: &str = "5ecre7_text";

pub(super) const TYPES: &str = "
    CREATE TYPE mood AS ENUM ('5ecre7_label', '5ecre7_other');
    CREATE TYPE tame AS ENUM ('calm');
    CREATE DOMAIN odd AS text CHECK (VALUE <> '5ecre7_never');
    CREATE TYPE pair AS (a text, b int);";

const COLUMNS: &str = "
    id bigint, k text, txt text, s smallint, i int, o oid, n numeric, f real, d double precision, day date, t time, tt timetz,
    ts timestamp, tz timestamptz, u uuid, raw bytea, v varchar(40), c char(20), nm name, j json, jb jsonb, a text[], m mood,
    ms mood[], p odd, r pair, iv interval, ip inet, mac macaddr, bits bit(32), rng int4range, pt point, vec tsvector, big text,
    PRIMARY KEY (id, k)";

/// A scene with the tables `hostile`, identified by its key, and `whole`, by the whole row.
pub(super) async fn scene(cluster: walgate_harness::Cluster) -> Result<Scene> {
    let tables = format!(
        "{TYPES} CREATE TABLE hostile ({COLUMNS}); CREATE TABLE whole ({COLUMNS});
         ALTER TABLE hostile ALTER big SET STORAGE EXTERNAL; ALTER TABLE whole ALTER big SET STORAGE EXTERNAL;
         ALTER TABLE whole REPLICA IDENTITY FULL; CREATE PUBLICATION shop FOR TABLE hostile, whole"
    );
    cluster.execute("postgres", &tables).await?;
    Scene::bare(cluster)
}

/// Grants of both tables.
pub(super) const TABLES: &str = "[[grant.table]]\nschema = \"public\"\nname = \"hostile\"\ncolumns = \"*\"\n\
    [[grant.table]]\nschema = \"public\"\nname = \"whole\"\ncolumns = \"*\"\n";

/// A row with a marker in every column; `poison` in its key, for the guests that wait for it.
fn row(table: &str, round: u32) -> String {
    let id = 7_040_111_222_000_u64 + u64::from(round);
    format!(
        "INSERT INTO {table} VALUES ({id}, '5ecre7_poison_key', '{TEXT}', 31337, 1704011223, 1704011223, 98765432101234.5678,
         1.7040112e30, 170401.1223344, '7043-11-29', '17:04:11.223344', '19:04:11.223344+03', '7044-05-06 07:08:09.101112',
         '7045-05-06 07:08:09.101112+00', '5ec2e700-dead-4bee-8f00-5ec2e7005ec2', '\\x00ff'::bytea || '5ecre7_bytes',
         '5ecre7_varchar', '5ecre7_char', '5ecre7_name', '{{\"5ecre7_key\": \"5ecre7_value\"}}',
         '{{\"5ecre7_bkey\": [\"5ecre7_bvalue\"]}}', '{{5ecre7_element,\"5ecre7, quoted\"}}', '5ecre7_label',
         '{{5ecre7_label}}', '5ecre7_domain', ROW('5ecre7_field', 1704011223), '1704 days 17:04:11', '203.0.113.77',
         '5e:c2:e7:5e:c2:e7', x'5EC2E75E'::bit(32), '[1704011223,1704011299)', '(170401.25,1)', '''5ecre7_lexeme'':1',
         (SELECT string_agg('5ecre7_large' || g, ' ') FROM generate_series(1, 1000) g))"
    )
}

/// One round of work in several transactions: rows, changes with and without the key and the large value, deletes, a logical
/// message, and a truncate. A row of `hostile` stays.
pub(super) async fn work(scene: &Scene, round: u32) -> Result<()> {
    for sql in [
        row("hostile", round),
        format!("{}; UPDATE whole SET v = '5ecre7_new'; UPDATE whole SET k = '5ecre7_new_key'", row("whole", round)),
        "UPDATE hostile SET v = '5ecre7_new', s = 1".to_owned(),
        "SELECT pg_logical_emit_message(true, '5ecre7_prefix', '5ecre7_content')".to_owned(),
        "SELECT pg_logical_emit_message(false, '5ecre7_prefix', '5ecre7_content')".to_owned(),
        "DELETE FROM whole".to_owned(),
        format!("{}; DELETE FROM hostile WHERE id % 1000 = 999", row("hostile", 999)),
        "TRUNCATE whole".to_owned(),
    ] {
        scene.execute(&sql).await?;
    }
    Ok(())
}

/// A transaction that came from another server, by the name of its origin.
pub(super) async fn replayed(scene: &Scene, round: u32) -> Result<()> {
    scene.execute("SELECT pg_replication_origin_create('5ecre7_origin')").await?;
    scene
        .execute(&format!("SELECT pg_replication_origin_session_setup('5ecre7_origin'); {}", row("hostile", round)))
        .await
}

/// The search for all of it.
pub(super) fn needles() -> Result<Needles> {
    Needles::new(MARKERS)
}
