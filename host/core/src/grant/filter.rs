//! A row filter: a condition over columns that says which rows a plugin sees.
//!
//! Holds: the tree, bounded, and its form as SQL. The columns need not be granted: those that are not are looked at and never
//! handed over. Refuses to know the types of columns (see [`crate::minimize`]) and the text it is read from (see
//! [`super::syntax`]). Invariant: `Debug` tells the form of a filter, never the values in it, which may be personal data.

use std::fmt;

use super::syntax::{self, FilterSyntax};

/// Columns one filter may look at.
pub const MAX_COLUMNS: usize = 16;

/// How two values stand to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the cases are the six signs")]
pub enum Comparison {
    Equal,
    Different,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

impl Comparison {
    const fn sign(self) -> &'static str {
        match self {
            Self::Equal => "=",
            Self::Different => "<>",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
        }
    }
}

/// A value the operator wrote.
#[derive(Clone, PartialEq, Eq)]
pub enum Literal {
    /// Digits, with sign, point and exponent as written.
    Number(String),
    /// What stands in quotes.
    Text(String),
    /// `true` or `false`.
    Boolean(bool),
}

impl fmt::Debug for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Number(_) => "Number",
            Self::Text(_) => "Text",
            Self::Boolean(_) => "Boolean",
        })
    }
}

/// A condition. Columns are numbered as in [`Filter::columns`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Condition {
    /// A column against a value.
    Compare(usize, Comparison, Literal),
    /// A column against several values.
    In(usize, Vec<Literal>),
    /// Whether a column is NULL.
    IsNull(usize),
    /// All of them; at least one.
    All(Vec<Condition>),
    /// Any of them; at least one.
    Any(Vec<Condition>),
    /// The opposite.
    Not(Box<Condition>),
}

/// Which rows a plugin sees: those for which the condition is true, as in SQL not those for which it is unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    columns: Vec<String>,
    condition: Condition,
}

impl Filter {
    /// Reads a condition as it stands in plugin.toml: `tenant_id = 7 and (state in ('new', 'open') or closed_at is null)`.
    ///
    /// # Errors
    /// Says where it is not a condition. No value of the text is repeated.
    pub fn parse(text: &str) -> Result<Self, FilterSyntax> {
        syntax::parse(text)
    }

    pub(super) fn new(columns: Vec<String>, condition: Condition) -> Self {
        Self { columns, condition }
    }

    /// The columns it looks at, each once, at most [`MAX_COLUMNS`].
    pub fn columns(&self) -> &[String] {
        &self.columns
    }

    /// The condition.
    pub fn condition(&self) -> &Condition {
        &self.condition
    }

    /// The condition as Postgres reads it, for a publication. Holds the operator's values.
    pub fn sql(&self) -> String {
        let mut out = String::new();
        self.write(&self.condition, &mut out);
        out
    }

    fn write(&self, condition: &Condition, out: &mut String) {
        match condition {
            Condition::Compare(column, comparison, literal) => {
                self.name(*column, out);
                out.push_str(&format!(" {} ", comparison.sign()));
                quote(literal, out);
            }
            Condition::In(column, literals) => {
                self.name(*column, out);
                out.push_str(" IN (");
                for (at, literal) in literals.iter().enumerate() {
                    out.push_str(if at > 0 { ", " } else { "" });
                    quote(literal, out);
                }
                out.push(')');
            }
            Condition::IsNull(column) => {
                self.name(*column, out);
                out.push_str(" IS NULL");
            }
            Condition::All(conditions) => self.join(conditions, " AND ", out),
            Condition::Any(conditions) => self.join(conditions, " OR ", out),
            Condition::Not(condition) => {
                out.push_str("NOT (");
                self.write(condition, out);
                out.push(')');
            }
        }
    }

    fn join(&self, conditions: &[Condition], word: &str, out: &mut String) {
        for (at, condition) in conditions.iter().enumerate() {
            out.push_str(if at > 0 { word } else { "" });
            out.push('(');
            self.write(condition, out);
            out.push(')');
        }
    }

    fn name(&self, column: usize, out: &mut String) {
        enclose(self.columns.get(column).map_or("", String::as_str), '"', out);
    }
}

/// Numbers too: a text in quotes is read as the type of the column, as the host does.
fn quote(literal: &Literal, out: &mut String) {
    match literal {
        Literal::Number(text) | Literal::Text(text) => enclose(text, '\'', out),
        Literal::Boolean(value) => out.push_str(if *value { "true" } else { "false" }),
    }
}

/// A name as SQL reads it.
pub(crate) fn quoted_name(name: &str) -> String {
    let mut out = String::with_capacity(name.len() + 2);
    enclose(name, '"', &mut out);
    out
}

fn enclose(text: &str, mark: char, out: &mut String) {
    out.push(mark);
    for c in text.chars() {
        out.push(c);
        if c == mark {
            out.push(mark);
        }
    }
    out.push(mark);
}
