//! `[settings]`: strings the operator gives a plugin.
//!
//! Holds: the pairs, and that their values never print, in errors neither. Refuses to know what they mean.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, de};

/// The settings of one plugin. Values never print.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Settings(BTreeMap<String, String>);

impl Settings {
    /// The value of that name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// All pairs, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }
}

impl FromIterator<(String, String)> for Settings {
    fn from_iter<I: IntoIterator<Item = (String, String)>>(pairs: I) -> Self {
        Self(pairs.into_iter().collect())
    }
}

impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// One value of the section.
pub(crate) struct Setting(pub(crate) String);

impl<'de> Deserialize<'de> for Setting {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer)? {
            toml::Value::String(value) => Ok(Self(value)),
            // The stock error would repeat the value.
            _ => Err(de::Error::custom("a setting must be a string in quotes")),
        }
    }
}
