//! The text of a row filter, read by recursive descent.
//!
//! Holds: the grammar. Refuses to know tables and types. Invariant: whatever the text, it comes back; depth, length and the
//! number of columns are bounded; an error tells the place and what may stand there, never a value of the text.
//!
//! ```text
//! any   = all { or all }            all  = not { and not }
//! not   = not not | ( any ) | test
//! test  = column ( = | <> | != | < | <= | > | >= ) value
//!       | column [ not ] in ( value { , value } )
//!       | column is [ not ] null
//! ```
//! A column is a name in lower case or stands in double quotes; a value is a number, a text in single quotes, true or false.

use super::filter::{Comparison, Condition, Filter, Literal, MAX_COLUMNS};

/// Longest filter, in bytes. Thousands of values under `in` fit.
const MAX_BYTES: usize = 64 << 10;
/// Deepest nesting of parentheses and `not`.
const MAX_DEPTH: usize = 32;

/// A text that is not a row filter.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at character {at}: {problem}")]
pub struct FilterSyntax {
    /// The place, from 1.
    pub at: usize,
    /// What is wrong there, and what may stand there.
    pub problem: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Token<'a> {
    /// A name or a keyword, not in quotes.
    Word(&'a str),
    /// A name in double quotes.
    Name(String),
    Text(String),
    Number(&'a str),
    Sign(Comparison),
    Open,
    Close,
    Comma,
    End,
}

impl Token<'_> {
    fn is(&self, keyword: &str) -> bool {
        matches!(self, Self::Word(word) if word.eq_ignore_ascii_case(keyword))
    }
}

const KEYWORDS: [&str; 8] = ["and", "or", "not", "in", "is", "null", "true", "false"];

struct Parser<'a> {
    text: &'a str,
    /// What comes after `next`.
    rest: &'a str,
    next: Token<'a>,
    /// Bytes of `text` before `next`.
    at: usize,
    columns: Vec<String>,
    depth: usize,
}

pub(super) fn parse(text: &str) -> Result<Filter, FilterSyntax> {
    if text.len() > MAX_BYTES {
        return Err(FilterSyntax { at: 1, problem: "the filter is longer than 65536 bytes" });
    }
    let mut parser = Parser { text, rest: text, next: Token::End, at: 0, columns: Vec::new(), depth: 0 };
    parser.advance()?;
    let condition = parser.any()?;
    if parser.next != Token::End {
        return Err(parser.wrong("expected and, or, or the end"));
    }
    Ok(Filter::new(parser.columns, condition))
}

impl<'a> Parser<'a> {
    fn wrong(&self, problem: &'static str) -> FilterSyntax {
        let before = self.text.get(..self.at).unwrap_or(self.text);
        FilterSyntax { at: before.chars().count() + 1, problem }
    }

    /// Reads the next token; gives the one before.
    fn advance(&mut self) -> Result<Token<'a>, FilterSyntax> {
        self.rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        self.at = self.text.len() - self.rest.len();
        let (token, length) = self.token()?;
        self.rest = self.rest.get(length..).unwrap_or_default();
        Ok(std::mem::replace(&mut self.next, token))
    }

    fn token(&self) -> Result<(Token<'a>, usize), FilterSyntax> {
        let sign = |comparison, length| Ok((Token::Sign(comparison), length));
        let (two, mut characters) = (self.rest.get(..2), self.rest.chars());
        match two {
            Some("<>" | "!=") => return sign(Comparison::Different, 2),
            Some("<=") => return sign(Comparison::LessOrEqual, 2),
            Some(">=") => return sign(Comparison::GreaterOrEqual, 2),
            _ => {}
        }
        let Some(first) = characters.next() else { return Ok((Token::End, 0)) };
        match first {
            '=' => sign(Comparison::Equal, 1),
            '<' => sign(Comparison::Less, 1),
            '>' => sign(Comparison::Greater, 1),
            '(' => Ok((Token::Open, 1)),
            ')' => Ok((Token::Close, 1)),
            ',' => Ok((Token::Comma, 1)),
            '\'' => self.quoted('\'').map(|(text, length)| (Token::Text(text), length)),
            '"' => self.quoted('"').map(|(text, length)| (Token::Name(text), length)),
            '-' | '0'..='9' => self.number(),
            c if c == '_' || c.is_alphabetic() => {
                let goes_on = |c: char| c == '_' || c == '$' || c.is_alphanumeric();
                let word = self.rest.split(|c| !goes_on(c)).next().unwrap_or_default();
                Ok((Token::Word(word), word.len()))
            }
            _ => Err(self.wrong("expected a column, a value, a comparison or a parenthesis")),
        }
    }

    fn quoted(&self, mark: char) -> Result<(String, usize), FilterSyntax> {
        let mut text = String::new();
        let mut characters = self.rest.char_indices().skip(1).peekable();
        while let Some((at, c)) = characters.next() {
            if c == mark && characters.next_if(|(_, next)| *next == mark).is_none() {
                return Ok((text, at + 1));
            }
            text.push(c);
        }
        Err(self.wrong("this quote is not closed"))
    }

    /// Sign, digits, point, digits, exponent.
    fn number(&self) -> Result<(Token<'a>, usize), FilterSyntax> {
        let digits = |text: &'a str| text.trim_start_matches(|c: char| c.is_ascii_digit());
        let unsigned = self.rest.strip_prefix('-').unwrap_or(self.rest);
        let mut rest = digits(unsigned);
        let mut whole = rest.len() < unsigned.len();
        if let Some(fraction) = rest.strip_prefix('.') {
            rest = digits(fraction);
            whole &= rest.len() < fraction.len();
        }
        if let Some(power) = rest.strip_prefix(['e', 'E']) {
            let power = power.strip_prefix(['+', '-']).unwrap_or(power);
            rest = digits(power);
            whole &= rest.len() < power.len();
        }
        let length = self.rest.len() - rest.len();
        let ends = !rest.starts_with(|c: char| c == '_' || c == '.' || c == '$' || c.is_alphanumeric());
        match self.rest.get(..length) {
            Some(number) if whole && ends => Ok((Token::Number(number), length)),
            _ => Err(self.wrong("this is not a number")),
        }
    }

    /// Takes the keyword if it is next.
    fn takes(&mut self, keyword: &str) -> Result<bool, FilterSyntax> {
        let is_next = self.next.is(keyword);
        if is_next {
            self.advance()?;
        }
        Ok(is_next)
    }

    fn any(&mut self) -> Result<Condition, FilterSyntax> {
        self.list("or", Self::all, Condition::Any)
    }

    fn all(&mut self) -> Result<Condition, FilterSyntax> {
        self.list("and", Self::not, Condition::All)
    }

    fn list(
        &mut self,
        word: &str,
        part: impl Fn(&mut Self) -> Result<Condition, FilterSyntax>,
        whole: impl FnOnce(Vec<Condition>) -> Condition,
    ) -> Result<Condition, FilterSyntax> {
        let first = part(self)?;
        if !self.next.is(word) {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.takes(word)? {
            parts.push(part(self)?);
        }
        Ok(whole(parts))
    }

    fn not(&mut self) -> Result<Condition, FilterSyntax> {
        let (negated, nested) = (self.next.is("not"), self.next == Token::Open);
        if !negated && !nested {
            return self.test();
        }
        if self.depth == MAX_DEPTH {
            return Err(self.wrong("parentheses and not are nested deeper than 32"));
        }
        self.depth += 1;
        self.advance()?;
        let condition = if negated { Condition::Not(Box::new(self.not()?)) } else { self.any()? };
        if nested {
            self.expect(&Token::Close, "expected and, or, or a closing parenthesis")?;
        }
        self.depth -= 1;
        Ok(condition)
    }

    fn expect(&mut self, token: &Token<'_>, problem: &'static str) -> Result<(), FilterSyntax> {
        if self.next == *token { self.advance().map(drop) } else { Err(self.wrong(problem)) }
    }

    fn test(&mut self) -> Result<Condition, FilterSyntax> {
        let column = self.column()?;
        if let Token::Sign(comparison) = self.next {
            self.advance()?;
            return Ok(Condition::Compare(column, comparison, self.value()?));
        }
        let is = self.takes("is")?;
        let negated = self.takes("not")?;
        let test = if is {
            if !self.takes("null")? {
                return Err(self.wrong("expected null or not null"));
            }
            Condition::IsNull(column)
        } else if self.takes("in")? {
            Condition::In(column, self.values()?)
        } else {
            return Err(self.wrong("expected a comparison, in, not in, is null or is not null"));
        };
        Ok(if negated { Condition::Not(Box::new(test)) } else { test })
    }

    fn column(&mut self) -> Result<usize, FilterSyntax> {
        let name = match &self.next {
            Token::Word(word) if KEYWORDS.iter().all(|keyword| !self.next.is(keyword)) => {
                if word.chars().any(char::is_uppercase) {
                    return Err(self.wrong("a column with capitals stands in double quotes"));
                }
                (*word).to_owned()
            }
            Token::Name(name) => name.clone(),
            _ => return Err(self.wrong("expected a column, not or an opening parenthesis")),
        };
        let known = self.columns.iter().position(|column| *column == name);
        if known.is_none() && self.columns.len() == MAX_COLUMNS {
            return Err(self.wrong("a filter looks at 16 columns at most"));
        }
        self.advance()?;
        Ok(known.unwrap_or_else(|| {
            self.columns.push(name);
            self.columns.len() - 1
        }))
    }

    fn values(&mut self) -> Result<Vec<Literal>, FilterSyntax> {
        self.expect(&Token::Open, "expected an opening parenthesis")?;
        let mut values = vec![self.value()?];
        while self.next == Token::Comma {
            self.advance()?;
            values.push(self.value()?);
        }
        self.expect(&Token::Close, "expected a comma or a closing parenthesis")?;
        Ok(values)
    }

    fn value(&mut self) -> Result<Literal, FilterSyntax> {
        let value = match &self.next {
            Token::Number(number) => Literal::Number((*number).to_owned()),
            Token::Text(text) => Literal::Text(text.clone()),
            token if token.is("true") => Literal::Boolean(true),
            token if token.is("false") => Literal::Boolean(false),
            token if token.is("null") => return Err(self.wrong("nothing equals null; write is null or is not null")),
            _ => return Err(self.wrong("expected a number, a text in single quotes, true or false")),
        };
        self.advance()?;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, sql: &str) {
        let filter = parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(filter.sql(), sql);
        assert_eq!(parse(sql).unwrap().sql(), sql, "what is printed reads back");
    }

    #[test]
    fn conditions_bind_as_in_sql() {
        check(
            "a = 1 or b >= -2.5e3 and not c is null",
            r#"("a" = '1') OR (("b" >= '-2.5e3') AND (NOT ("c" IS NULL)))"#,
        );
        check("(a<1 OR b!=2) AND c=false", r#"(("a" < '1') OR ("b" <> '2')) AND ("c" = false)"#);
    }

    #[test]
    fn names_and_values_are_quoted_as_in_sql() {
        check(r#""Order ""x""" = 'it''s'"#, r#""Order ""x""" = 'it''s'"#);
        check("größe not in (1,'b',TRUE)", r#"NOT ("größe" IN ('1', 'b', true))"#);
        check("\"and\" is not null", r#"NOT ("and" IS NULL)"#);
    }

    #[track_caller]
    fn refuses(text: &str, at: usize, problem: &str) {
        let error = parse(text).unwrap_err();
        assert!(error.at == at && error.problem.contains(problem), "{text}: {error}");
    }

    #[test]
    fn refusals_name_the_place_and_what_may_stand_there() {
        refuses("", 1, "expected a column");
        refuses("größe = 's3cret", 9, "not closed");
        refuses("a = null", 5, "is null");
        refuses("a = b", 5, "in single quotes");
        refuses("Tenant = 1", 1, "double quotes");
        refuses("a = 1 b = 2", 7, "expected and, or");
        refuses("a in ()", 7, "expected a number");
        refuses("a = 1x", 5, "not a number");
        refuses("a = 1; drop", 6, "expected a column");
        refuses(&"(".repeat(100), 33, "deeper");
        refuses(&format!("{}a = 1", "not ".repeat(100)), 129, "deeper");
        let many: Vec<String> = (0..17).map(|n| format!("c{n} is null")).collect();
        assert!(parse(&many.join(" and ")).unwrap_err().problem.contains("16 columns"));
        assert!(parse(&" ".repeat(MAX_BYTES + 1)).unwrap_err().problem.contains("longer"));
    }

    #[test]
    fn no_value_of_a_filter_prints() {
        let filter = parse("a = 's3cret' and b in (731, 's3cret') or c <> true").unwrap();
        let debug = format!("{filter:?}");
        assert!(!debug.contains("s3cret") && !debug.contains("731"), "{debug}");
        assert!(!parse("a = 's3cret' 's3cret'").unwrap_err().to_string().contains("s3cret"));
    }
}
