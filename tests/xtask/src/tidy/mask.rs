//! Tells code, strings and comments of a Rust file apart, so that a rule about code does not trip over prose.
//!
//! Holds: a small lexer and the search for paths. Never knows: grammar; a file that rustc refuses is not our business.
//! Read next: `layers.rs`, its user.

/// The text of a file on two planes with the same lines: what belongs to the other plane is blank.
#[derive(Default)]
pub(super) struct Masked {
    /// Code without comments and without the insides of strings.
    pub(super) code: String,
    /// The insides of strings, and nothing else.
    pub(super) strings: String,
}

#[derive(Clone, Copy, PartialEq)]
enum Plane {
    Code,
    Text,
    Comment,
}

/// Splits a Rust source.
pub(super) fn mask(source: &str) -> Masked {
    let chars: Vec<char> = source.chars().collect();
    let mut masked = Masked::default();
    let mut at = 0;
    while at < chars.len() {
        let rest = chars.get(at..).unwrap_or_default();
        let before = at.checked_sub(1).and_then(|index| chars.get(index)).copied();
        let (length, plane) = token(rest, before);
        for c in rest.iter().take(length) {
            let keep = |wanted| if plane == wanted || *c == '\n' { *c } else { ' ' };
            masked.code.push(keep(Plane::Code));
            masked.strings.push(keep(Plane::Text));
        }
        at += length.max(1);
    }
    masked
}

/// Length and plane of what begins here.
fn token(rest: &[char], before: Option<char>) -> (usize, Plane) {
    let starts = |text: &str| text.chars().enumerate().all(|(index, c)| rest.get(index) == Some(&c));
    let find = |from: usize, wanted: char| rest.iter().skip(from).position(|c| *c == wanted).map(|n| n + from);
    if starts("//") {
        return (find(2, '\n').unwrap_or(rest.len()), Plane::Comment);
    }
    if starts("/*") {
        return (block_comment(rest), Plane::Comment);
    }
    if let Some(length) = raw_string(rest, before) {
        return (length, Plane::Text);
    }
    if starts("\"") {
        return (quoted(rest, '"'), Plane::Text);
    }
    // A quote begins a character when a backslash follows or when it closes after one; else a lifetime.
    if starts("'\\") || (starts("'") && rest.get(2) == Some(&'\'')) {
        return (quoted(rest, '\''), Plane::Text);
    }
    (1, Plane::Code)
}

fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while at < rest.len() {
        match (rest.get(at), rest.get(at + 1)) {
            (Some('/'), Some('*')) => (depth, at) = (depth + 1, at + 2),
            (Some('*'), Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// The length of a raw string with its prefix, when one begins here.
fn raw_string(rest: &[char], before: Option<char>) -> Option<usize> {
    if before.is_some_and(is_name) {
        return None;
    }
    let prefix = rest.iter().take_while(|c| ['b', 'c', 'r'].contains(c)).count();
    if prefix == 0 || prefix > 2 || rest.get(prefix - 1) != Some(&'r') {
        return None;
    }
    let hashes = rest.iter().skip(prefix).take_while(|c| **c == '#').count();
    let open = prefix + hashes;
    if rest.get(open) != Some(&'"') {
        return None;
    }
    let mut at = open + 1;
    while at < rest.len() {
        let closed = rest.get(at) == Some(&'"')
            && rest.iter().skip(at + 1).take(hashes).filter(|c| **c == '#').count() == hashes;
        if closed {
            return Some(at + 1 + hashes);
        }
        at += 1;
    }
    Some(rest.len())
}

/// The length of a quoted text, with both quotes.
fn quoted(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while let Some(c) = rest.get(at) {
        match c {
            '\\' => at += 2,
            c if *c == quote => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Lines (from 1) that name a path such as `std::fs`, on their own or inside a `use std::{…}`.
pub(super) fn lines_naming(code: &str, path: &str) -> Vec<usize> {
    let inline = code.lines().enumerate().filter(|(_, line)| has_word(line, path)).map(|(index, _)| index + 1);
    let imported = imports(code).into_iter().filter(|(_, import)| has_word(import, path)).map(|(line, _)| line);
    let mut lines: Vec<usize> = inline.chain(imported).collect();
    lines.sort_unstable();
    lines.dedup();
    lines
}

/// Whether a text holds a word that is not part of a longer name.
pub(super) fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, found)| {
        let before = text.get(..at).and_then(|head| head.chars().next_back());
        let after = text.get(at + found.len()..).and_then(|tail| tail.chars().next());
        !before.is_some_and(is_name) && !after.is_some_and(is_name)
    })
}

/// Every path that `use` brings in, groups written out, with the line of its `use`.
fn imports(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut line = 1;
    for statement in code.split_inclusive(';') {
        if let Some(at) = statement.rmatch_indices("use ").map(|(at, _)| at).find(|at| {
            let before = statement.get(..*at).and_then(|head| head.chars().next_back());
            !before.is_some_and(is_name)
        }) {
            let (head, tail) = statement.split_at(at);
            let first = line + head.matches('\n').count();
            let tree: String =
                tail.trim_start_matches("use ").chars().filter(|c| !c.is_whitespace() && *c != ';').collect();
            let mut paths = Vec::new();
            write_out("", &tree, &mut paths);
            found.extend(paths.into_iter().map(|path| (first, path)));
        }
        line += statement.matches('\n').count();
    }
    found
}

/// Writes `a::{b, c::{d}}` out as `a::b` and `a::c::d`.
fn write_out(prefix: &str, tree: &str, paths: &mut Vec<String>) {
    let (mut depth, mut start) = (0_usize, 0);
    let mut items = Vec::new();
    for (at, c) in tree.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                items.push(tree.get(start..at).unwrap_or_default());
                start = at + 1;
            }
            _ => {}
        }
    }
    items.push(tree.get(start..).unwrap_or_default());
    for item in items.into_iter().filter(|item| !item.is_empty()) {
        match item.split_once('{') {
            Some((head, group)) => {
                let inner = group.strip_suffix('}').unwrap_or(group);
                write_out(&format!("{prefix}{head}"), inner, paths);
            }
            None => paths.push(format!("{prefix}{item}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_strings_and_characters_are_not_code() {
        let source = "a /* x /* y */ z */ b \"s \\\" t\" 'c' '\\'' 'life r#\"raw \"q\" \"# br\"w\" // end\nfor";
        let masked = mask(source);
        let code: Vec<&str> = masked.code.split_whitespace().collect();
        assert_eq!(code, ["a", "b", "'life", "for"]);
        assert!(masked.strings.contains("s \\\" t") && masked.strings.contains("raw \"q\""));
        assert!(!masked.strings.contains("end"));
        assert_eq!(masked.code.lines().count(), source.lines().count());
    }

    #[test]
    fn a_name_before_a_string_is_not_a_raw_string() {
        assert_eq!(mask("for\"text\"").code.trim(), "for");
    }

    #[test]
    fn paths_are_found_inline_and_in_groups() {
        let code = "use std::{\n    fs::{self, File},\n    io,\n};\nfn a() { std::env::var(\"x\"); }\n";
        assert_eq!(lines_naming(code, "std::fs"), [1]);
        assert_eq!(lines_naming(code, "std::fs::File"), [1]);
        assert_eq!(lines_naming(code, "std::env"), [5]);
        assert!(lines_naming(code, "std::net").is_empty());
        assert!(lines_naming("use my_std::fs;", "std::fs").is_empty());
    }
}
