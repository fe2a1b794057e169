//! What a plugin says it is and what it asks for, and the host interfaces that can be asked for and granted.
//!
//! Holds: the description in the host's own types, and the set of capabilities. Refuses to know the syntax of
//! plugin.toml (see [`crate::Manifest`]) and of WIT (see `adapter_v0_1.rs`).

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
        "the plugin asks for capability {0:?}, which does not exist; known are log, metrics, state and output:NAME"
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
                None if word == "http" => return Err(AskError::NotYet(word.clone())),
                Some(("rows" | "replica" | "secrets" | "http", _)) => return Err(AskError::NotYet(word.clone())),
                _ => return Err(AskError::Unknown(word.clone())),
            }
        }
        Ok(set)
    }

    /// What both sets have.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self {
            log: self.log && other.log,
            metrics: self.metrics && other.metrics,
            state: self.state && other.state,
            outputs: self.outputs.intersection(&other.outputs).cloned().collect(),
        }
    }

    /// What is in this set and not in the other.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self {
            log: self.log && !other.log,
            metrics: self.metrics && !other.metrics,
            state: self.state && !other.state,
            outputs: self.outputs.difference(&other.outputs).cloned().collect(),
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
        }
    }

    /// True when nothing is in it.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// The words that stand in `capabilities = [...]` of plugin.toml; outputs have sections of their own.
    pub(crate) fn words(&self) -> Vec<&'static str> {
        let all = [(self.log, "log"), (self.metrics, "metrics"), (self.state, "state")];
        all.into_iter().filter_map(|(has, word)| has.then_some(word)).collect()
    }
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
        assert_eq!(parse(&["rows:main"]), Err(AskError::NotYet("rows:main".into())));
        assert_eq!(parse(&["http"]), Err(AskError::NotYet("http".into())));
        for unknown in ["sockets", "output:", "output:../x", "log:x", "output"] {
            assert_eq!(parse(&[unknown]), Err(AskError::Unknown(unknown.into())));
        }
    }

    #[test]
    fn sets_behave_like_sets() {
        let (a, b) = (parse(&["log", "output:x"]).unwrap(), parse(&["log", "state", "output:y"]).unwrap());
        assert_eq!(a.intersection(&b), parse(&["log"]).unwrap());
        assert_eq!(a.without(&b), parse(&["output:x"]).unwrap());
        assert_eq!(a.union(&b), parse(&["log", "state", "output:x", "output:y"]).unwrap());
        assert!(a.without(&a).is_empty());
    }
}
