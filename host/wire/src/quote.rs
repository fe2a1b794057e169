//! Names and texts inside a command, quoted by doubling.
//!
//! Holds: the two forms that both SQL and the replication grammar read. Refuses to know what is quoted. The session
//! pins `standard_conforming_strings`, so a backslash is an ordinary character.

/// A text as a literal: `it's` becomes `'it''s'`.
pub fn literal(text: &str) -> String {
    enclose(text, '\'')
}

/// A name as an identifier: `a"b` becomes `"a""b"`.
pub fn identifier(name: &str) -> String {
    enclose(name, '"')
}

fn enclose(text: &str, mark: char) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push(mark);
    for c in text.chars() {
        if c == mark {
            out.push(mark);
        }
        out.push(c);
    }
    out.push(mark);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotes_by_doubling() {
        assert_eq!(literal("it's \"so\" \\ $1 %s"), "'it''s \"so\" \\ $1 %s'");
        assert_eq!(identifier("a\"b'c"), "\"a\"\"b'c\"");
        assert_eq!(literal(&identifier("p'\"")), "'\"p''\"\"\"'");
        assert_eq!(literal(""), "''");
    }
}
