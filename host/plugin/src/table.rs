//! `[[grant.table]]`: a table a plugin may see, and how it is handed over.
//!
//! Holds: the section of plugin.toml, its checks, what leaving a key out means. Refuses to know what the rules do (see
//! `walgate_core::grant::rules`) and whether they fit the table of today: the minimizer says so before the first row.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use walgate_core::grant::filter::Filter;
use walgate_core::grant::rules::{Before, EmptyUpdates, OnMissing, Rules, Treatment, Untouched};
use walgate_core::grant::{Columns, TableGrant};

use crate::manifest::{ColumnsWord, Wrong, operations};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TableSection {
    schema: String,
    name: String,
    columns: ColumnsWord,
    except: Option<Vec<String>>,
    operations: Option<Vec<String>>,
    new_columns: Option<NewColumns>,
    #[serde(default)]
    treatments: BTreeMap<String, String>,
    row_filter: Option<String>,
    #[serde(default)]
    before: BeforeWord,
    #[serde(default)]
    key: Vec<String>,
    #[serde(default)]
    changed_only: bool,
    #[serde(default)]
    deliver_empty: bool,
    #[serde(default)]
    on_missing: OnMissingWord,
}

#[derive(Deserialize, PartialEq, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum NewColumns {
    Withhold,
    Allow,
}

#[derive(Deserialize, Clone, Copy, Default)]
#[serde(rename_all = "kebab-case")]
enum BeforeWord {
    None,
    Key,
    #[default]
    Granted,
}

#[derive(Deserialize, Clone, Copy, Default)]
#[serde(rename_all = "kebab-case")]
enum OnMissingWord {
    #[default]
    Halt,
    Omit,
}

/// All sections, checked, each table once. `hash_key` tells whether the plugin has one.
pub(crate) fn tables(sections: Vec<TableSection>, hash_key: bool) -> Result<Vec<TableGrant>, Wrong> {
    let mut tables: Vec<TableGrant> = Vec::with_capacity(sections.len());
    for section in sections {
        let table = section.check()?;
        let place = format!("grant.table {:?}.{:?}", table.namespace, table.name);
        if tables.iter().any(|t| t.namespace == table.namespace && t.name == table.name) {
            return Err(Wrong::new(place, "is granted twice; make it one section"));
        }
        if table.rules.hashes() && !hash_key {
            let message = "hashes a column without a key; to name one, a [secrets.NAME] of walgate.toml:\n\
                           [grant]\nhash_key = \"NAME\"";
            return Err(Wrong::new(place + " treatments", message));
        }
        tables.push(table);
    }
    Ok(tables)
}

impl TableSection {
    fn check(self) -> Result<TableGrant, Wrong> {
        let (schema, name) = (&self.schema, &self.name);
        let key = |key: &str| format!("grant.table {schema:?}.{name:?} {key}");
        let all = matches!(self.columns, ColumnsWord::All);
        if !all && self.except.is_some() {
            return Err(Wrong::new(key("except"), "stands only beside columns = \"*\""));
        }
        if !all && self.new_columns.is_some() {
            return Err(Wrong::new(key("new_columns"), "stands only beside columns = \"*\""));
        }
        let operations = operations(self.operations.as_deref(), || key("operations"))?;
        let columns = match self.columns {
            ColumnsWord::All => Columns::AllExcept(self.except.unwrap_or_default()),
            ColumnsWord::Only(names) => {
                let mut met = BTreeSet::new();
                if let Some(twice) = names.iter().find(|name| !met.insert(*name)) {
                    return Err(Wrong::new(key("columns"), format!("names column {twice:?} twice")));
                }
                Columns::Only(names)
            }
        };
        let treatments = treatments(self.treatments, &columns, &self.key, &key("treatments"))?;
        if let Some(column) = self.key.iter().find(|column| !columns.contains(column)) {
            return Err(Wrong::new(key("key"), format!("names column {column:?}, which the section does not grant")));
        }
        let filter = self.row_filter.as_deref().map(Filter::parse).transpose();
        let filter = filter.map_err(|error| Wrong::new(key("row_filter"), format!("is not a condition: {error}")))?;
        let rules = Rules {
            treatments,
            filter,
            before: match self.before {
                BeforeWord::None => Before::None,
                BeforeWord::Key => Before::Key,
                BeforeWord::Granted => Before::Granted,
            },
            key: self.key,
            untouched: if self.changed_only { Untouched::Withhold } else { Untouched::Deliver },
            // An update of which only hidden columns are different tells a plugin nothing but that there was one.
            empty_updates: if self.deliver_empty { EmptyUpdates::Deliver } else { EmptyUpdates::Drop },
            on_missing: match self.on_missing {
                OnMissingWord::Halt => OnMissing::Halt,
                OnMissingWord::Omit => OnMissing::Omit,
            },
        };
        Ok(TableGrant {
            allow_new_columns: self.new_columns == Some(NewColumns::Allow),
            columns,
            // What must be there is what the plugin asks for; the effective grant fills this in.
            required: Vec::new(),
            operations,
            rules,
            namespace: self.schema,
            name: self.name,
        })
    }
}

fn treatments(
    words: BTreeMap<String, String>,
    columns: &Columns,
    key: &[String],
    place: &str,
) -> Result<BTreeMap<String, Treatment>, Wrong> {
    let check = |(column, word): (String, String)| {
        let wrong = |message: &str| Wrong::new(format!("{place}.{column:?}"), message);
        if !columns.contains(&column) {
            return Err(wrong("treats a column that the section does not grant; add it to columns, or drop the line"));
        }
        let treatment = Treatment::parse(&word)
            .ok_or_else(|| wrong("must be of plain, masked, hashed, truncated(N) and nulled, N from 1"))?;
        if key.contains(&column) && !treatment.keeps_apart() {
            return Err(wrong("must be plain or hashed: the column is in key, and rows could not be told apart"));
        }
        Ok((column, treatment))
    };
    words.into_iter().map(check).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::manifest::{Manifest, ManifestError};

    const TABLE: &str = "[[grant.table]]\nschema = \"s\"\nname = \"t\"\n";

    fn parse(text: &str) -> Result<Manifest, ManifestError> {
        Manifest::parse(Path::new("plugin.toml"), text)
    }

    fn rules(rest: &str) -> Rules {
        parse(&format!("[grant]\nhash_key = \"pseudonyms\"\n{TABLE}{rest}")).unwrap().allowed.tables.remove(0).rules
    }

    #[test]
    fn reads_every_rule() {
        let rules = rules(
            "columns = [\"id\", \"email\", \"name\", \"note\", \"zip\"]\nkey = [\"id\"]\nbefore = \"key\"\n\
             treatments = { id = \"hashed\", email = \"masked\", name = \"truncated(3)\", note = \"nulled\", zip = \"plain\" }\n\
             row_filter = \"tenant_id = 7 and deleted_at is null\"\nchanged_only = true\ndeliver_empty = true\n\
             on_missing = \"omit\"",
        );
        let words: Vec<String> = rules.treatments.iter().map(|(column, word)| format!("{column} {word}")).collect();
        assert_eq!(words, ["email masked", "id hashed", "name truncated(3)", "note nulled", "zip plain"]);
        assert_eq!(rules.filter.as_ref().unwrap().columns(), ["tenant_id", "deleted_at"]);
        assert_eq!((rules.before, rules.untouched), (Before::Key, Untouched::Withhold));
        assert_eq!((rules.empty_updates, rules.on_missing), (EmptyUpdates::Deliver, OnMissing::Omit));
        assert_eq!(rules.key, ["id"]);
    }

    #[test]
    fn a_table_without_rules_hands_over_all_but_empty_updates() {
        let expect = Rules { empty_updates: EmptyUpdates::Drop, ..Rules::default() };
        assert_eq!(rules("columns = \"*\""), expect);
    }

    #[track_caller]
    fn refuses(rest: &str, words: &[&str]) {
        let error = parse(&format!("{TABLE}columns = [\"id\", \"a\"]\n{rest}")).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{word} is missing in: {error}");
        }
        assert!(!error.contains("s3cret"), "{error}");
    }

    #[test]
    fn refusals_name_the_place_and_what_is_allowed() {
        refuses("treatments = { b = \"hashed\" }", &["\"s\".\"t\" treatments.\"b\"", "does not grant"]);
        refuses("treatments = { a = \"null\" }", &["treatments.\"a\"", "truncated(N)", "nulled"]);
        refuses("treatments = { a = \"hashed\" }", &["treatments", "[grant]\nhash_key = \"NAME\"", "[secrets.NAME]"]);
        refuses("key = [\"id\"]\ntreatments = { id = \"masked\" }", &["treatments.\"id\"", "plain or hashed"]);
        refuses("key = [\"b\"]", &["\"s\".\"t\" key", "\"b\""]);
        refuses("row_filter = \"a = 's3cret\"", &["\"s\".\"t\" row_filter", "at character 5", "not closed"]);
        refuses("row_filter = 7", &["expected a string"]);
        refuses("before = \"old\"", &["`none`", "`key`", "`granted`"]);
        refuses("on_missing = \"ignore\"", &["`halt`", "`omit`"]);
        refuses("changed_only = \"s3cret\"", &["boolean"]);
    }

    #[test]
    fn a_treatment_under_a_wildcard_must_not_be_excepted() {
        let text = format!("{TABLE}columns = \"*\"\nexcept = [\"a\"]\ntreatments = {{ a = \"masked\" }}");
        assert!(parse(&text).unwrap_err().to_string().contains("does not grant"));
    }

    #[test]
    fn no_value_of_a_filter_prints() {
        let manifest = parse(&format!("{TABLE}columns = \"*\"\nrow_filter = \"a = 's3cret'\"")).unwrap();
        assert!(!format!("{manifest:?}").contains("s3cret"));
    }
}
