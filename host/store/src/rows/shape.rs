//! What a target looks like today: its columns, its key, and how its key values compare.
//!
//! Holds: what the catalogs say, looked up by equality of names. Refuses to know rows.
//! Invariant: a shape with a key has a unique index behind it that `ON CONFLICT` can use. Read next: [`super::view`].

use std::collections::HashMap;
use std::sync::Arc;

use tokio_postgres::types::Type;
use tokio_postgres::{Error as PgError, Row, Transaction};
use walgate_core::value::Kind as ValueKind;

use super::error::{At, Kind, RowsError};
use super::target::{RowsTable, qualified, quoted};

/// One column of a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ShapeColumn {
    /// Its name.
    pub(super) name: String,
    /// Its number in the catalog.
    number: i16,
    /// Object id of its type, of the base type for a domain.
    base: u32,
    /// That type as SQL spells it, without a modifier: a cast with one would cut values silently, the assignment to the
    /// column refuses them.
    pub(super) cast: String,
    /// The base type is an enum.
    is_enum: bool,
    /// GENERATED ALWAYS AS IDENTITY: writable on insert alone.
    pub(super) identity_always: bool,
    /// GENERATED ALWAYS AS an expression: never writable.
    pub(super) generated: bool,
    /// Equal text is equal bytes.
    deterministic: bool,
}

/// One column of the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyColumn {
    /// Its place among the columns of the shape.
    pub(super) column: usize,
    /// The equality that the index uses, as SQL spells it.
    pub(super) equals: String,
    /// ` COLLATE …` of the index, or nothing.
    pub(super) collate: String,
}

/// A target as the catalogs describe it.
#[derive(Debug)]
pub(super) struct Shape {
    /// Where errors say it is.
    pub(super) at: At,
    /// Schema and table as SQL spells them.
    pub(super) table: String,
    /// Its columns, in table order.
    pub(super) columns: Vec<ShapeColumn>,
    by_name: HashMap<String, usize>,
    /// Empty for a table that takes inserts only.
    pub(super) key: Vec<KeyColumn>,
    /// A foreign key from or to it changes rows when others go: what that does depends on the order of rows.
    pub(super) cascades: bool,
    granted: Option<Vec<String>>,
}

/// A failure while the shape was read: the server's, or what the shape itself is.
pub(super) enum Failure {
    Server(At, PgError),
    Rows(RowsError),
}

const TABLE: &str = "SELECT c.oid, EXISTS (
        SELECT FROM pg_constraint f
         WHERE c.oid IN (f.conrelid, f.confrelid) AND f.contype = 'f'
           AND (f.confdeltype IN ('c', 'n', 'd') OR f.confupdtype IN ('c', 'n', 'd')))
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = $1 AND c.relname = $2 AND c.relkind IN ('r', 'p')";

const COLUMNS: &str = "SELECT a.attname::text, a.attnum, b.oid, format_type(b.oid, -1), b.typtype = 'e',
        a.attidentity = 'a', a.attgenerated <> '', coalesce(l.collisdeterministic, true)
    FROM pg_attribute a
    CROSS JOIN LATERAL (
        WITH RECURSIVE step(oid, typtype, typbasetype) AS (
            SELECT t.oid, t.typtype, t.typbasetype FROM pg_type t WHERE t.oid = a.atttypid
            UNION ALL
            SELECT t.oid, t.typtype, t.typbasetype FROM step JOIN pg_type t ON t.oid = step.typbasetype
             WHERE step.typtype = 'd')
        SELECT step.oid, step.typtype FROM step WHERE step.typtype <> 'd') b
    LEFT JOIN pg_collation l ON l.oid = a.attcollation
    WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum";

/// Unique indexes over whole rows and plain columns.
const INDEXES: &str =
    "SELECT i.indkey::int2[], i.indnkeyatts, i.indclass::oid[], i.indcollation::oid[], i.indisprimary,
        i.indisvalid AND m.amname = 'btree', i.indimmediate
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
    WHERE i.indrelid = $1 AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
    ORDER BY i.indisprimary DESC, i.indexrelid";

const COMPARISON: &str = "SELECT n.nspname::text, o.oprname::text, ln.nspname::text, l.collname::text
    FROM pg_opclass k
    JOIN pg_amop a ON a.amopfamily = k.opcfamily AND a.amoplefttype = k.opcintype AND a.amoprighttype = k.opcintype
     AND a.amopstrategy = 3
    JOIN pg_operator o ON o.oid = a.amopopr JOIN pg_namespace n ON n.oid = o.oprnamespace
    LEFT JOIN pg_collation l ON l.oid = $2 LEFT JOIN pg_namespace ln ON ln.oid = l.collnamespace
    WHERE k.oid = $1";

struct Index {
    columns: Vec<i16>,
    classes: Vec<u32>,
    collations: Vec<u32>,
    primary: bool,
    usable: bool,
    immediate: bool,
}

impl Index {
    fn read(row: &Row) -> Result<Self, PgError> {
        let kept = usize::try_from(row.try_get::<_, i16>(1)?).unwrap_or_default();
        let mut columns: Vec<i16> = row.try_get(0)?;
        columns.truncate(kept);
        Ok(Self {
            columns,
            classes: row.try_get(2)?,
            collations: row.try_get(3)?,
            primary: row.try_get(4)?,
            usable: row.try_get(5)?,
            immediate: row.try_get(6)?,
        })
    }
}

impl Shape {
    /// Reads the shape of a target.
    pub(super) async fn load(
        transaction: &Transaction<'_>,
        plugin: &str,
        target: &str,
        table: &RowsTable,
    ) -> Result<Arc<Self>, Failure> {
        let mut at = At {
            plugin: plugin.to_owned(),
            target: target.to_owned(),
            table: qualified(&table.schema, &table.table),
            doing: "reading the shape of the table",
            columns: Arc::default(),
        };
        let server = |error| Failure::Server(at.clone(), error);
        let found = transaction
            .query_typed_opt(TABLE, &[(&table.schema, Type::TEXT), (&table.table, Type::TEXT)])
            .await
            .map_err(server)?;
        let Some(found) = found else { return Err(Kind::NoTable { at }.into()) };
        let oid: u32 = found.try_get(0).map_err(server)?;
        let cascades = found.try_get(1).map_err(server)?;
        let rows = transaction.query_typed(COLUMNS, &[(&oid, Type::OID)]).await.map_err(server)?;
        let columns = rows.iter().map(ShapeColumn::read).collect::<Result<Vec<_>, _>>().map_err(server)?;
        let rows = transaction.query_typed(INDEXES, &[(&oid, Type::OID)]).await.map_err(server)?;
        let indexes = rows.iter().map(Index::read).collect::<Result<Vec<_>, _>>().map_err(server)?;
        at.columns = columns.iter().map(|column| column.name.clone()).collect();

        let mut shape = Self {
            table: at.table.clone(),
            by_name: columns.iter().enumerate().map(|(index, column)| (column.name.clone(), index)).collect(),
            columns,
            key: Vec::new(),
            cascades,
            granted: table.columns.clone(),
            at,
        };
        for name in shape.granted.iter().flatten().chain(table.key.iter().flatten()) {
            shape.writable_name(name)?;
        }
        for (column, class, collation) in shape.key_columns(table, &indexes)? {
            let key = shape.compare(transaction, column, class, collation).await?;
            shape.key.push(key);
        }
        Ok(Arc::new(shape))
    }

    /// The same place while something else is done there.
    pub(super) fn at(&self, doing: &'static str) -> At {
        At { doing, ..self.at.clone() }
    }

    /// A column that the grant names has to exist and to be writable.
    fn writable_name(&self, name: &str) -> Result<usize, Kind> {
        let Some((index, column)) = self.by_name.get(name).and_then(|at| Some((*at, self.columns.get(*at)?))) else {
            return Err(Kind::NoColumn { at: self.at.clone(), column: name.to_owned() });
        };
        if column.generated {
            return Err(Kind::Generated { at: self.at.clone(), column: name.to_owned() });
        }
        Ok(index)
    }

    /// The key columns with operator class and collation of the index behind them.
    fn key_columns(&self, table: &RowsTable, indexes: &[Index]) -> Result<Vec<(usize, u32, u32)>, Kind> {
        let number = |index: usize| self.columns.get(index).map_or(0, |column| column.number);
        let wanted: Vec<usize> = match &table.key {
            Some(names) => names.iter().map(|name| self.writable_name(name)).collect::<Result<_, _>>()?,
            None => {
                let Some(primary) = indexes.iter().find(|index| index.primary) else { return Ok(Vec::new()) };
                primary
                    .columns
                    .iter()
                    .filter_map(|wanted| self.columns.iter().position(|column| column.number == *wanted))
                    .collect()
            }
        };
        if let Some(generated) = wanted.iter().filter_map(|at| self.columns.get(*at)).find(|column| column.generated) {
            return Err(Kind::Generated { at: self.at.clone(), column: generated.name.clone() });
        }
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        let backs = |index: &&Index| {
            index.usable
                && index.columns.len() == wanted.len()
                && wanted.iter().all(|column| index.columns.contains(&number(*column)))
        };
        // The server takes every index on these columns into account, and one that waits makes it refuse them all.
        if indexes.iter().filter(backs).any(|index| !index.immediate) {
            return Err(Kind::Deferrable { at: self.at.clone() });
        }
        let Some(index) = indexes.iter().find(backs) else {
            let names: Vec<String> =
                wanted.iter().filter_map(|at| self.columns.get(*at)).map(|column| quoted(&column.name)).collect();
            let line = format!("CREATE UNIQUE INDEX ON {} ({})", self.table, names.join(", "));
            return Err(Kind::NoUnique { at: self.at.clone(), line });
        };
        let place = |column: usize| index.columns.iter().position(|wanted| *wanted == number(column)).unwrap_or(0);
        let oid = |list: &[u32], column| list.get(place(column)).copied().unwrap_or_default();
        Ok(wanted.iter().map(|at| (*at, oid(&index.classes, *at), oid(&index.collations, *at))).collect())
    }

    /// How the index compares one column. The path of the session holds built-in operators alone, and a collation that
    /// is not named would be ambiguous between the table and what is staged.
    async fn compare(
        &self,
        transaction: &Transaction<'_>,
        column: usize,
        class: u32,
        collation: u32,
    ) -> Result<KeyColumn, Failure> {
        let server = |error| Failure::Server(self.at.clone(), error);
        let row = transaction
            .query_typed_one(COMPARISON, &[(&class, Type::OID), (&collation, Type::OID)])
            .await
            .map_err(server)?;
        let text = |index| row.try_get::<_, Option<String>>(index).map_err(server).map(Option::unwrap_or_default);
        let equals = format!("OPERATOR({}.{})", quoted(&text(0)?), text(1)?);
        let (schema, name) = (text(2)?, text(3)?);
        let collate = if name.is_empty() { String::new() } else { format!(" COLLATE {}", qualified(&schema, &name)) };
        Ok(KeyColumn { column, equals, collate })
    }

    /// The column that a cell is for; `None` for a generated one, which is not written.
    pub(super) fn writable(&self, name: &str) -> Result<Option<usize>, Kind> {
        let Some(index) = self.by_name.get(name).copied() else {
            return Err(Kind::NoColumn { at: self.at.clone(), column: name.to_owned() });
        };
        if self.columns.get(index).is_some_and(|column| column.generated) {
            return Ok(None);
        }
        let granted = match &self.granted {
            None => true,
            Some(names) => names.iter().any(|granted| granted == name) || self.key_place(index).is_some(),
        };
        if granted {
            Ok(Some(index))
        } else {
            Err(Kind::ColumnNotGranted { at: self.at.clone(), column: name.to_owned() })
        }
    }

    /// Whether this is the name of a column.
    pub(super) fn names(&self, column: usize, name: &str) -> bool {
        self.columns.get(column).is_some_and(|column| column.name == name)
    }

    /// The place of a column in the key.
    pub(super) fn key_place(&self, column: usize) -> Option<usize> {
        self.key.iter().position(|key| key.column == column)
    }
}

impl ShapeColumn {
    fn read(row: &Row) -> Result<Self, PgError> {
        Ok(Self {
            name: row.try_get(0)?,
            number: row.try_get(1)?,
            base: row.try_get(2)?,
            cast: row.try_get(3)?,
            is_enum: row.try_get(4)?,
            identity_always: row.try_get(5)?,
            generated: row.try_get(6)?,
            deterministic: row.try_get(7)?,
        })
    }

    /// The type in which values of a kind are staged for this column.
    pub(super) fn staged(&self, kind: ValueKind) -> &'static str {
        match kind {
            ValueKind::Boolean => "bool",
            ValueKind::Int16 => "int2",
            ValueKind::Int32 => "int4",
            ValueKind::Int64 => "int8",
            ValueKind::Float32 => "float4",
            ValueKind::Float64 => "float8",
            ValueKind::DateDays => "date",
            ValueKind::TimeUs => "time",
            // Both count microseconds; a zone is only how they are shown.
            ValueKind::TimestampUs if self.base == 1184 => "timestamptz",
            ValueKind::TimestampUs => "timestamp",
            ValueKind::Uuid => "uuid",
            ValueKind::Bytes => "bytea",
            ValueKind::Text => "text",
        }
    }

    /// Whether two values of a kind are one to the column exactly when their bytes are equal. Numbers as text have
    /// several spellings, and so have texts that are compared without regard to case.
    pub(super) fn is_exact(&self, kind: ValueKind) -> bool {
        use ValueKind as V;
        match (kind, self.base) {
            (V::Text, 25 | 1043) => self.deterministic,
            (V::Text, _) => self.is_enum,
            (V::Int16 | V::Int32 | V::Int64, 20 | 21 | 23 | 1700) => true,
            _ => self.is_binary(kind),
        }
    }

    /// Whether values of a kind are what the column's own type reads in binary form.
    pub(super) fn is_binary(&self, kind: ValueKind) -> bool {
        use ValueKind as V;
        matches!(
            (kind, self.base),
            (V::Text, 25 | 1043)
                | (V::Boolean, 16)
                | (V::Int16, 21)
                | (V::Int32, 23)
                | (V::Int64, 20)
                | (V::DateDays, 1082)
                | (V::TimeUs, 1083)
                | (V::TimestampUs, 1114 | 1184)
                | (V::Uuid, 2950)
                | (V::Bytes, 17)
        )
    }
}
