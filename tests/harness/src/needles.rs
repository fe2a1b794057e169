//! A search for texts that must be nowhere: in every form in which bytes end up in logs, answers, files and names.
//!
//! Holds: the needles and their forms. Never knows: what is searched, and why it may or may not hold them.
//! Read next: nothing, this is a leaf.

use aho_corasick::AhoCorasick;
use anyhow::{Context, Result};

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// What is looked for. Upper and lower case are the same.
#[derive(Debug)]
pub struct Needles {
    search: AhoCorasick,
    /// Per pattern of the search: which text, and in which form.
    origins: Vec<(String, &'static str)>,
}

impl Needles {
    /// Looks for texts as they are, reversed, as hexadecimal digits, in base64 at every offset, and as the list of numbers
    /// that a debug print makes of bytes.
    ///
    /// Fails when there are too many. Short texts are found by chance; six characters are enough.
    pub fn new<T: Into<String>>(texts: impl IntoIterator<Item = T>) -> Result<Self> {
        let (mut patterns, mut origins) = (Vec::new(), Vec::new());
        for text in texts.into_iter().map(Into::into) {
            for (form, pattern) in forms(&text) {
                patterns.push(pattern);
                origins.push((text.clone(), form));
            }
        }
        let search = AhoCorasick::builder().ascii_case_insensitive(true).build(patterns);
        Ok(Self { search: search.context("cannot prepare the search")?, origins })
    }

    /// The first needle found: what it is, its form, and what stands around it. `None` when the bytes are clean.
    pub fn find(&self, bytes: &[u8]) -> Option<String> {
        let found = self.search.find(bytes)?;
        let (text, form) = self.origins.get(found.pattern().as_usize())?;
        let around = bytes.get(found.start().saturating_sub(120)..bytes.len().min(found.end() + 60))?;
        Some(format!("{text} ({form}) in: {}", String::from_utf8_lossy(around)))
    }
}

fn forms(text: &str) -> Vec<(&'static str, String)> {
    let bytes = text.as_bytes();
    let numbers: Vec<String> = bytes.iter().map(u8::to_string).collect();
    let mut forms = vec![
        ("plain", text.to_owned()),
        ("reversed", text.chars().rev().collect()),
        ("hexadecimal", bytes.iter().map(|byte| format!("{byte:02x}")).collect()),
        ("numbers", numbers.join(", ")),
        ("numbers", numbers.join(",")),
    ];
    forms.extend((0..3).map(|offset| ("base64", base64_core(bytes, offset))));
    forms
}

/// The digits that these bytes alone decide when `offset` other bytes come before them in their group of three.
fn base64_core(bytes: &[u8], offset: usize) -> String {
    let bit = |at: usize| bytes.get(at / 8).map_or(0, |byte| usize::from(byte >> (7 - at % 8) & 1));
    let first = (offset * 8).div_ceil(6);
    let last = (offset + bytes.len()) * 8 / 6;
    let digit = |number: usize| (0..6).fold(0, |digit, at| digit << 1 | bit(number * 6 + at - offset * 8));
    (first..last).filter_map(|number| BASE64.get(digit(number)).copied().map(char::from)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(bytes: impl AsRef<[u8]>, form: Option<&str>) {
        let found = Needles::new(["5ecre7_a", "unrelated"]).unwrap().find(bytes.as_ref());
        let form = form.map(|form| format!("5ecre7_a ({form})"));
        assert_eq!(found.as_ref().map(|found| found.split(" in: ").next().unwrap_or_default()), form.as_deref());
    }

    #[test]
    fn a_planted_marker_is_found_in_every_form() {
        check("nothing here but 5ecre8_a", None);
        check("x5ecre7_ay", Some("plain"));
        check(b"\x00\xff5ECRE7_A\x00", Some("plain"));
        check("a_7erce5", Some("reversed"));
        check("\\x00356563726537 5f61 but 356563726537", None);
        check("\\x003565637265375F61", Some("hexadecimal"));
        check(format!("{:?}", b"-5ecre7_a-"), Some("numbers"));
        check("[45,53,101,99,114,101,55,95,97]", Some("numbers"));
        // `printf '5ecre7_a' | base64`, then with one and two bytes before it and some behind.
        check("NWVjcmU3X2E=", Some("base64"));
        check("eDVlY3JlN19hLi4=", Some("base64"));
        check("eHg1ZWNyZTdfYS4u", Some("base64"));
    }

    #[test]
    fn what_is_found_is_told_with_its_surroundings() {
        let found = Needles::new(["5ecre7_a"]).unwrap().find(b"the place is 5ecre7_a, you see").unwrap();
        assert_eq!(found, "5ecre7_a (plain) in: the place is 5ecre7_a, you see");
    }
}
