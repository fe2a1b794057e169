//! `[settings]` held against the schema that a plugin publishes, before it is opened.
//!
//! Holds: the part of JSON Schema that says something of strings under fixed names: `required`, `properties` and
//! `additionalProperties: false` of the whole; `enum`, `const`, `pattern`, `minLength` and `maxLength` of each. A schema is
//! guest text: whole validators follow references and take exponential time where one asks for it; this part is done after
//! one look at each word. What is not understood is left to the plugin's own `open`. No value is ever in an error.

use std::collections::BTreeMap;

use regex::RegexBuilder;
use serde::Deserialize;
use serde_json::Value;

use crate::settings::Settings;

/// Largest schema, in bytes.
const MAX_BYTES: usize = 64 << 10;
/// Largest compiled pattern, in bytes.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// Settings that do not fit, or a schema that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SchemaError {
    /// The plugin needs it.
    #[error("the plugin needs the setting {0:?}; add it to plugin.toml:\n[settings]\n{0} = \"…\"")]
    Missing(String),
    /// The plugin does not know it.
    #[error("settings.{name} is not a setting of the plugin; {known}")]
    Unknown {
        /// The setting.
        name: String,
        /// Those there are.
        known: String,
    },
    /// It breaks a rule.
    #[error("settings.{name} does not fit the plugin's schema: {rule}")]
    Unfit {
        /// The setting.
        name: String,
        /// The rule, in the words of the schema.
        rule: String,
    },
    /// The plugin's schema cannot be used.
    #[error("the plugin publishes a schema of its settings that is none ({0}); report it to its author")]
    Schema(String),
}

#[derive(Deserialize)]
struct Schema {
    #[serde(default)]
    properties: BTreeMap<String, Property>,
    #[serde(default)]
    required: Vec<String>,
    #[serde(default, rename = "additionalProperties")]
    additional: Option<Value>,
}

#[derive(Deserialize)]
struct Property {
    #[serde(rename = "enum")]
    one_of: Option<Vec<Value>>,
    #[serde(rename = "const")]
    constant: Option<Value>,
    pattern: Option<String>,
    #[serde(rename = "minLength")]
    min_length: Option<u64>,
    #[serde(rename = "maxLength")]
    max_length: Option<u64>,
}

/// Whether settings fit a schema; an empty schema says nothing.
///
/// # Errors
/// The first rule that is broken, by the name of the setting.
pub(crate) fn check(schema: &str, settings: &Settings) -> Result<(), SchemaError> {
    if schema.is_empty() {
        return Ok(());
    }
    if schema.len() > MAX_BYTES {
        return Err(SchemaError::Schema(format!("it is longer than {MAX_BYTES} bytes")));
    }
    let none = |error: serde_json::Error| SchemaError::Schema(format!("line {}", error.line()));
    let schema: Schema = serde_json::from_str(schema).map_err(none)?;
    if let Some(name) = schema.required.iter().find(|name| settings.get(name).is_none()) {
        return Err(SchemaError::Missing(name.clone()));
    }
    for (name, value) in settings.iter() {
        match schema.properties.get(name) {
            Some(property) => property.check(name, value)?,
            None if schema.additional == Some(Value::Bool(false)) => {
                let names: Vec<&str> = schema.properties.keys().map(String::as_str).collect();
                let known =
                    if names.is_empty() { "it has none".to_owned() } else { format!("it has {}", names.join(", ")) };
                return Err(SchemaError::Unknown { name: name.to_owned(), known });
            }
            None => {}
        }
    }
    Ok(())
}

impl Property {
    fn check(&self, name: &str, value: &str) -> Result<(), SchemaError> {
        let unfit = |rule: String| SchemaError::Unfit { name: name.to_owned(), rule };
        if let Some(all) = &self.one_of
            && !all.iter().any(|one| one.as_str() == Some(value))
        {
            let words: Vec<String> = all.iter().map(Value::to_string).collect();
            return Err(unfit(format!("it has to be one of {}", words.join(", "))));
        }
        if let Some(constant) = &self.constant
            && constant.as_str() != Some(value)
        {
            return Err(unfit(format!("it has to be {constant}")));
        }
        let length = value.chars().count() as u64;
        if self.min_length.is_some_and(|least| length < least) || self.max_length.is_some_and(|most| length > most) {
            let (least, most) = (self.min_length.unwrap_or(0), self.max_length.unwrap_or(u64::MAX));
            return Err(unfit(format!("it has to have {least} to {most} characters")));
        }
        if let Some(pattern) = &self.pattern {
            let bad = |_| SchemaError::Schema(format!("the pattern of {name:?} cannot be used"));
            let regex = RegexBuilder::new(pattern).size_limit(MAX_PATTERN_BYTES).build().map_err(bad)?;
            if !regex.is_match(value) {
                return Err(unfit(format!("it has to match {pattern:?}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEMA: &str = r#"{"type": "object", "required": ["url"], "additionalProperties": false, "properties": {
        "url": {"type": "string", "pattern": "^https://", "description": "where"},
        "format": {"enum": ["json", "text"]}, "label": {"minLength": 2, "maxLength": 3}}}"#;

    fn told(schema: &str, pairs: &[(&str, &str)]) -> String {
        let settings = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        check(schema, &settings).map_or_else(|error| error.to_string(), |()| "fits".to_owned())
    }

    #[test]
    fn each_rule_is_told_by_name_and_without_the_value() {
        let url = ("url", "https://s3cret");
        assert_eq!(told(SCHEMA, &[url, ("format", "json"), ("label", "äöü")]), "fits");
        for (pairs, words) in [
            (&[][..], "\"url\""),
            (&[("url", "ftp://s3cret")], "^https://"),
            (&[url, ("format", "s3cret")], "\"json\", \"text\""),
            (&[url, ("label", "s3cret")], "2 to 3 characters"),
            (&[url, ("labl", "s3cret")], "it has format, label, url"),
        ] {
            let error = told(SCHEMA, pairs);
            assert!(error.contains(words) && !error.contains("s3cret"), "{error}");
        }
    }

    #[test]
    fn a_schema_is_hostile_text() {
        assert_eq!(told("", &[("any", "thing")]), "fits");
        assert_eq!(told("{}", &[("any", "thing")]), "fits");
        assert_eq!(told(r##"{"$ref": "#", "allOf": [{"$ref": "#"}]}"##, &[("any", "thing")]), "fits");
        let deep = "[".repeat(50_000);
        let large = format!("{{\"description\": \"{}\"}}", "x".repeat(MAX_BYTES));
        for schema in ["null", "{\"required\": 1}", "not json", &deep, &large] {
            assert!(told(schema, &[]).contains("report it to its author"), "{}", &schema[..schema.len().min(40)]);
        }
        let bomb = r#"{"properties": {"a": {"pattern": "(((x{100}){100}){100}){100}"}}}"#;
        assert!(told(bomb, &[("a", "x")]).contains("cannot be used"));
        // Exponential where matching backtracks.
        let slow = r#"{"properties": {"a": {"pattern": "^(x+x+)+y$"}}}"#;
        assert!(told(slow, &[("a", &"x".repeat(200))]).contains("has to match"));
    }
}
