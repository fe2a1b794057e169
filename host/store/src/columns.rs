//! Our types as columns: positions, counts, and bytes that no log may show.
//!
//! Holds: checked conversions. Refuses to know which table a column is in. Read next: [`crate::commit`].

use std::error::Error;
use std::fmt;

use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, PgLsn, ToSql, Type, to_sql_checked};
use walgate_core::Lsn;

use crate::error::{Kind, StoreError};

/// A position as the column type `pg_lsn`.
pub(crate) fn to_pg(lsn: Lsn) -> PgLsn {
    PgLsn::from(lsn.get())
}

/// A position read from a `pg_lsn` column.
pub(crate) fn from_pg(lsn: PgLsn) -> Lsn {
    Lsn::new(lsn.into())
}

/// A count as `bigint`. A count above 2^63 is a defect of the caller.
pub(crate) fn to_bigint(count: u64, what: &'static str) -> Result<i64, StoreError> {
    i64::try_from(count).map_err(|_| Kind::Range { what }.into())
}

/// A count read from `bigint`. A number that does not fit was not written by walgate.
pub(crate) fn from_bigint<T: TryFrom<i64>>(number: i64, what: &'static str) -> Result<T, StoreError> {
    T::try_from(number).map_err(|_| {
        Kind::Schema {
            doing: "reading the state database",
            detail: format!("column {what} holds a number out of range"),
        }
        .into()
    })
}

/// A parameter whose content is a plugin's own: the driver logs parameters through `Debug` at level debug, and these
/// must not be seen there.
pub(crate) struct Hidden<T>(pub(crate) T);

impl<T> fmt::Debug for Hidden<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("hidden")
    }
}

impl<T: ToSql> ToSql for Hidden<T> {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        self.0.to_sql(ty, out)
    }

    fn accepts(ty: &Type) -> bool {
        T::accepts(ty)
    }

    to_sql_checked!();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_parameters_do_not_show() {
        assert_eq!(format!("{:?}", Hidden(vec!["a plugin's own"])), "hidden");
    }

    #[test]
    fn numbers_are_checked_both_ways() {
        assert_eq!(to_bigint(u64::MAX >> 1, "n").unwrap(), i64::MAX);
        assert_eq!(to_bigint(u64::MAX, "n").unwrap_err().halt_name(), "checkpoint_store(write)");
        assert_eq!(from_bigint::<u32>(-1, "n").unwrap_err().halt_name(), "checkpoint_store(schema)");
        assert_eq!(from_pg(to_pg(Lsn::new(u64::MAX))), Lsn::new(u64::MAX));
    }
}
