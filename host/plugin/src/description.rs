//! What a plugin says it is and what it asks for, and the host interfaces that can be asked for and granted.
//!
//! Holds: the description in the host's own types, and the set of capabilities. Refuses to know the syntax of
//! plugin.toml (see [`crate::Manifest`]) and of WIT (see `adapter/`).

use std::collections::BTreeSet;

use walgate_core::grant::TableRequest;

/// What `describe` answered, checked for size and shape. It was made without any row in reach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Description {
    /// The plugin's own name.
    pub name: String,
    /// Its own version.
    pub version: String,
    /// The tables it asks for.
    pub tables: Vec<TableRequest>,
    /// The host interfaces it asks for, in its own words: `state`, `output:NAME`, ….
    pub capabilities: Vec<String>,
    /// A JSON Schema of its settings, or empty.
    pub settings_schema: String,
}

/// A capability that cannot be asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The contract has no such capability.
    #[error(
        "the plugin asks for capability {0:?}, which does not exist; known are log, metrics, state, http, output:NAME and rows:NAME"
    )]
    Unknown(String),
    /// The contract has it, this version of walgate does not serve it.
    #[error("the plugin asks for capability {0:?}, which this version of walgate does not offer yet")]
    NotYet(String),
}

/// A set of host interfaces. Settings are not in it: every plugin may read its own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Capabilities {
    /// Lines for the operator.
    pub log: bool,
    /// Numbers for the operator.
    pub metrics: bool,
    /// A small durable map.
    pub state: bool,
    /// Named outputs.
    pub outputs: BTreeSet<String>,
    /// Targets of rows. `*` stands for every granted one in what is asked, and for every table of a schema in a grant.
    pub rows: BTreeSet<String>,
    /// Requests over HTTP.
    pub http: bool,
}

impl Capabilities {
    /// What a plugin asks for, from the words of its description.
    ///
    /// # Errors
    /// On the first word that cannot be granted by any plugin.toml.
    pub fn parse(asked: &[String]) -> Result<Self, AskError> {
        let mut set = Self::default();
        for word in asked {
            match word.split_once(':') {
                None if word == "log" => set.log = true,
                None if word == "metrics" => set.metrics = true,
                None if word == "state" => set.state = true,
                None if word == "settings" => {}
                Some(("output", name)) if output_name(name) => {
                    set.outputs.insert(name.to_owned());
                }
                Some(("rows", name)) if name == EVERY_TARGET || target_name(name) => {
                    set.rows.insert(name.to_owned());
                }
                None if word == HTTP => set.http = true,
                Some(("replica" | "secrets", _)) => return Err(AskError::NotYet(word.clone())),
                _ => return Err(AskError::Unknown(word.clone())),
            }
        }
        Ok(set)
    }

    /// What both sets have. `*` of either side has every target of the other.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self {
            log: self.log && other.log,
            metrics: self.metrics && other.metrics,
            state: self.state && other.state,
            outputs: self.outputs.intersection(&other.outputs).cloned().collect(),
            rows: shared_targets(&self.rows, &other.rows),
            http: self.http && other.http,
        }
    }

    /// What is in this set and not in the other. Asking for `*` lacks something only where there is no target at all.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self {
            log: self.log && !other.log,
            metrics: self.metrics && !other.metrics,
            state: self.state && !other.state,
            outputs: self.outputs.difference(&other.outputs).cloned().collect(),
            rows: missing_targets(&self.rows, &other.rows),
            http: self.http && !other.http,
        }
    }

    /// What either set has.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self {
            log: self.log || other.log,
            metrics: self.metrics || other.metrics,
            state: self.state || other.state,
            outputs: self.outputs.union(&other.outputs).cloned().collect(),
            rows: self.rows.union(&other.rows).cloned().collect(),
            http: self.http || other.http,
        }
    }

    /// True when nothing is in it.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The words that stand in `capabilities = [...]` of plugin.toml; outputs, targets and http have sections of their own.
    pub fn words(&self) -> Vec<&'static str> {
        let all = [(self.log, "log"), (self.metrics, "metrics"), (self.state, "state")];
        all.into_iter().filter_map(|(has, word)| has.then_some(word)).collect()
    }
}

/// The word for requests over HTTP.
pub(crate) const HTTP: &str = "http";

/// Every target, in what a plugin asks for and in plugin.toml.
pub(crate) const EVERY_TARGET: &str = "*";

/// Whether a target may have this name. Under `*` it is the name of a table, so it may be whatever Postgres allows.
pub(crate) fn target_name(name: &str) -> bool {
    name != EVERY_TARGET && (1..=63).contains(&name.len()) && !name.chars().any(char::is_control)
}

fn shared_targets(a: &BTreeSet<String>, b: &BTreeSet<String>) -> BTreeSet<String> {
    let reachable = |from: &BTreeSet<String>, to: &BTreeSet<String>| -> BTreeSet<String> {
        from.iter().filter(|name| to.contains(*name) || to.contains(EVERY_TARGET)).cloned().collect()
    };
    let mut shared = reachable(a, b);
    shared.extend(reachable(b, a));
    shared
}

fn missing_targets(asked: &BTreeSet<String>, granted: &BTreeSet<String>) -> BTreeSet<String> {
    let missing = |name: &&String| match name.as_str() {
        EVERY_TARGET => granted.is_empty(),
        name => !granted.contains(name) && !granted.contains(EVERY_TARGET),
    };
    asked.iter().filter(missing).cloned().collect()
}

/// Whether an output may have this name: it becomes part of a key in the state database and of `status`.
pub(crate) fn output_name(name: &str) -> bool {
    (1..=40).contains(&name.len())
        && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Capabilities, AskError> {
        Capabilities::parse(&words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn knows_its_words_and_refuses_the_rest_by_name() {
        let set = parse(&["log", "state", "output:changes", "settings"]).unwrap();
        assert_eq!(set.words(), ["log", "state"]);
        assert!(set.outputs.contains("changes"));
        assert_eq!(parse(&["replica:main"]), Err(AskError::NotYet("replica:main".into())));
        assert_eq!(parse(&["rows:orders", "rows:*"]).unwrap().rows, ["*".to_owned(), "orders".to_owned()].into());
        assert_eq!(parse(&["http"]).unwrap(), Capabilities { http: true, ..Capabilities::default() });
        for unknown in ["sockets", "http:x", "output:", "output:../x", "log:x", "output", "rows", "rows:", "rows:a\nb"]
        {
            assert_eq!(parse(&[unknown]), Err(AskError::Unknown(unknown.into())));
        }
    }

    #[test]
    fn sets_behave_like_sets() {
        let a = parse(&["log", "output:x", "http"]).unwrap();
        let b = parse(&["log", "state", "output:y"]).unwrap();
        assert_eq!(a.intersection(&b), parse(&["log"]).unwrap());
        assert_eq!(a.intersection(&a), a);
        assert_eq!(a.without(&b), parse(&["output:x", "http"]).unwrap());
        assert_eq!(b.union(&a), parse(&["log", "state", "output:x", "output:y", "http"]).unwrap());
        assert!(a.without(&a).is_empty());
    }

    #[test]
    fn a_star_is_every_target() {
        let set = |words: &[&str]| {
            parse(
                &words
                    .iter()
                    .map(|word| format!("rows:{word}"))
                    .collect::<Vec<_>>()
                    .iter()
                    .map(String::as_str)
                    .collect::<Vec<_>>(),
            )
            .unwrap()
        };
        for (asked, granted, both, missing) in [
            (&["*"][..], &["a", "b"][..], &["a", "b"][..], &[][..]),
            (&["*"], &["a", "*"], &["a", "*"], &[]),
            (&["*"], &[], &[], &["*"]),
            (&["a"], &["*"], &["a"], &[]),
            (&["a", "c"], &["a", "b"], &["a"], &["c"]),
            (&[], &["*"], &[], &[]),
        ] {
            assert_eq!(set(asked).intersection(&set(granted)), set(both), "{asked:?} {granted:?}");
            assert_eq!(set(asked).without(&set(granted)), set(missing), "{asked:?} {granted:?}");
        }
    }
}
