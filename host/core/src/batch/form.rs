//! The members of an image, as they stand in its JSON.
//!
//! Holds: names and nesting of the form, and the translation of what can be translated member by member. Refuses to know
//! what must hold between members (see [`super::image`]). No `Debug`: rows and messages are values.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Operation, Transaction};
use crate::Lsn;
use crate::relation::{ProjectedColumn, ProjectedRelation, ReplicaIdentity, SchemaVersion};

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ImageForm {
    #[serde(rename = "walgate_image")]
    pub(super) version: u64,
    pub(super) id: String,
    pub(super) attempt: u32,
    pub(super) reaches: CursorForm,
    pub(super) bytes: u64,
    pub(super) relations: Vec<RelationForm>,
    pub(super) transactions: Vec<TransactionForm>,
    pub(super) groups: Vec<GroupForm>,
    pub(super) messages: Vec<MessageForm>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CursorForm {
    #[serde(with = "position")]
    pub(super) end: Lsn,
    #[serde(with = "position")]
    pub(super) commit: Lsn,
    pub(super) ordinal: u32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RelationForm {
    id: u32,
    namespace: String,
    name: String,
    #[serde(with = "position")]
    version_commit: Lsn,
    #[serde(with = "position")]
    version_message: Lsn,
    identity: String,
    columns: Vec<ColumnInfoForm>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ColumnInfoForm {
    name: String,
    type_name: String,
    type_oid: u32,
    type_modifier: i32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_position: Option<u16>,
    treatment: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TransactionForm {
    xid: u32,
    #[serde(with = "position")]
    commit: Lsn,
    #[serde(with = "position")]
    end: Lsn,
    commit_time_us: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    origin: Option<String>,
    first_ordinal: u32,
    change_count: u32,
    source_ordinal: u32,
    part: u32,
    last_part: bool,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct GroupForm {
    pub(super) relation: u32,
    pub(super) operation: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) after: Vec<ColumnForm>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) before: Vec<ColumnForm>,
    pub(super) rows: Vec<RowForm>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ColumnForm {
    pub(super) name: String,
    pub(super) kind: String,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RowForm {
    pub(super) ordinal: u32,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(super) after: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    pub(super) before: Map<String, Value>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MessageForm {
    pub(super) ordinal: u32,
    pub(super) transactional: bool,
    pub(super) prefix: String,
    pub(super) content: String,
}

/// A position, as Postgres prints it.
mod position {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use crate::Lsn;

    pub(super) fn serialize<S: Serializer>(lsn: &Lsn, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(lsn)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Lsn, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

pub(super) fn write_relation(relation: &ProjectedRelation) -> RelationForm {
    let column = |column: &ProjectedColumn| ColumnInfoForm {
        name: column.name.clone(),
        type_name: column.type_name.clone(),
        type_oid: column.type_oid,
        type_modifier: column.type_modifier,
        key_position: column.key_position,
        treatment: column.treatment.clone(),
    };
    RelationForm {
        id: relation.id,
        namespace: relation.namespace.clone(),
        name: relation.name.clone(),
        version_commit: relation.version.commit,
        version_message: relation.version.message,
        identity: relation.identity.name().to_owned(),
        columns: relation.columns.iter().map(column).collect(),
    }
}

/// None when there is no such identity.
pub(super) fn read_relation(form: RelationForm) -> Option<ProjectedRelation> {
    let identities =
        [ReplicaIdentity::Default, ReplicaIdentity::Nothing, ReplicaIdentity::Full, ReplicaIdentity::Index];
    let column = |form: ColumnInfoForm| ProjectedColumn {
        name: form.name,
        type_name: form.type_name,
        type_oid: form.type_oid,
        type_modifier: form.type_modifier,
        key_position: form.key_position,
        treatment: form.treatment,
    };
    Some(ProjectedRelation {
        id: form.id,
        namespace: form.namespace,
        name: form.name,
        version: SchemaVersion { commit: form.version_commit, message: form.version_message },
        identity: identities.into_iter().find(|identity| identity.name() == form.identity)?,
        columns: form.columns.into_iter().map(column).collect(),
    })
}

pub(super) fn write_transaction(transaction: &Transaction) -> TransactionForm {
    TransactionForm {
        xid: transaction.xid,
        commit: transaction.commit,
        end: transaction.end,
        commit_time_us: transaction.commit_time_us,
        origin: transaction.origin.clone(),
        first_ordinal: transaction.first_ordinal,
        change_count: transaction.change_count,
        source_ordinal: transaction.source_ordinal,
        part: transaction.part,
        last_part: transaction.last_part,
    }
}

pub(super) fn read_transaction(form: TransactionForm) -> Transaction {
    Transaction {
        xid: form.xid,
        commit: form.commit,
        end: form.end,
        commit_time_us: form.commit_time_us,
        origin: form.origin,
        first_ordinal: form.first_ordinal,
        change_count: form.change_count,
        source_ordinal: form.source_ordinal,
        part: form.part,
        last_part: form.last_part,
    }
}

/// None when there is no such operation.
pub(super) fn read_operation(name: &str) -> Option<Operation> {
    let operations = [Operation::Read, Operation::Insert, Operation::Update, Operation::Delete, Operation::Truncate];
    operations.into_iter().find(|operation| operation.name() == name)
}
