//! `walgate explain`: what a class of halt means, what is safe, and what to do.
//!
//! Holds: the pages, which are part of the binary, so that they are at hand when nothing else is. Refuses to know how a
//! class comes about. The pages are in `halts/`; classes with one remedy share one.

use std::fmt::Write as _;

use serde::Serialize;

use crate::exit::Failure;
use crate::halt::HaltClass;
use crate::printer::Printer;

/// Every page. Its first line names the classes it is about.
const PAGES: &[&str] = &[
    include_str!("../halts/authentication.md"),
    include_str!("../halts/bad_name.md"),
    include_str!("../halts/bug.md"),
    include_str!("../halts/checkpoint_exists.md"),
    include_str!("../halts/checkpoint_store.md"),
    include_str!("../halts/columns.md"),
    include_str!("../halts/data_gap.md"),
    include_str!("../halts/database_missing.md"),
    include_str!("../halts/dead_letters_full.md"),
    include_str!("../halts/decode_failure.md"),
    include_str!("../halts/failover_unsupported.md"),
    include_str!("../halts/fenced.md"),
    include_str!("../halts/go_forward_required.md"),
    include_str!("../halts/grant.md"),
    include_str!("../halts/lineage_changed.md"),
    include_str!("../halts/not_ready.md"),
    include_str!("../halts/output.md"),
    include_str!("../halts/parked_too_long.md"),
    include_str!("../halts/permission.md"),
    include_str!("../halts/plugin_failed.md"),
    include_str!("../halts/position.md"),
    include_str!("../halts/protocol.md"),
    include_str!("../halts/publication_missing.md"),
    include_str!("../halts/publications_changed.md"),
    include_str!("../halts/refused_command.md"),
    include_str!("../halts/relation.md"),
    include_str!("../halts/rows.md"),
    include_str!("../halts/server_too_old.md"),
    include_str!("../halts/sink_too_slow.md"),
    include_str!("../halts/slot_active.md"),
    include_str!("../halts/slot_exists.md"),
    include_str!("../halts/slot_invalidated.md"),
    include_str!("../halts/slot_missing.md"),
    include_str!("../halts/slot_moved.md"),
    include_str!("../halts/slot_of_another.md"),
    include_str!("../halts/slot_synced_unpromoted.md"),
    include_str!("../halts/slot_unusable.md"),
    include_str!("../halts/source_behind.md"),
    include_str!("../halts/source_unavailable.md"),
    include_str!("../halts/standby_unsupported.md"),
    include_str!("../halts/tls.md"),
    include_str!("../halts/value_not_carried.md"),
    include_str!("../halts/wal_level.md"),
    include_str!("../halts/wal_missing.md"),
    include_str!("../halts/wire_thread.md"),
];

/// The headings of a page, in order.
const HEADINGS: [&str; 3] = ["\n## What happened\n", "\n## What is safe\n", "\n## What to do\n"];
/// Names to offer for one that is not known.
const MOST_OFFERED: usize = 5;

/// One class as a machine reads it.
#[derive(Serialize)]
struct Listed {
    name: &'static str,
    summary: &'static str,
}

/// One page as a machine reads it.
#[derive(Serialize)]
struct Page {
    names: Vec<&'static str>,
    what_happened: &'static str,
    what_is_safe: &'static str,
    what_to_do: &'static str,
}

pub(super) fn explain(name: Option<&str>, printer: Printer) -> Result<(), Failure> {
    let Some(name) = name else {
        let listed: Vec<Listed> =
            HaltClass::ALL.iter().map(|class| Listed { name: class.name(), summary: class.summary() }).collect();
        printer.show(&listed, || list(&listed));
        return Ok(());
    };
    let text = page_of(name).ok_or_else(|| Failure::usage(unknown(name)))?;
    let page =
        parse(text).ok_or_else(|| Failure::usage(format!("the page of {name} is damaged; please report this")))?;
    printer.show(&page, || text.to_owned());
    Ok(())
}

fn list(listed: &[Listed]) -> String {
    let width = listed.iter().map(|class| class.name.len()).max().unwrap_or(0);
    let mut text = String::new();
    for class in listed {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{:width$}  {}", class.name, class.summary);
    }
    text + "\nThe page of one: walgate explain NAME"
}

/// The page of a class, by its whole name or by the word before the bracket.
fn page_of(name: &str) -> Option<&'static str> {
    let is_it = |known: &str| known == name || known.split_once('(').is_some_and(|(family, _)| family == name);
    PAGES.iter().copied().find(|page| names(page).any(is_it))
}

fn names(page: &'static str) -> impl Iterator<Item = &'static str> {
    page.lines().next().and_then(|title| title.strip_prefix("# ")).into_iter().flat_map(|title| title.split(", "))
}

fn parse(page: &'static str) -> Option<Page> {
    let [happened, safe, to_do] = HEADINGS;
    let (_, rest) = page.split_once(happened)?;
    let (what_happened, rest) = rest.split_once(safe)?;
    let (what_is_safe, what_to_do) = rest.split_once(to_do)?;
    Some(Page {
        names: names(page).collect(),
        what_happened: what_happened.trim(),
        what_is_safe: what_is_safe.trim(),
        what_to_do: what_to_do.trim(),
    })
}

/// What to say of a name that there is no page for: those that look like it.
fn unknown(name: &str) -> String {
    let mut near: Vec<(usize, &str)> =
        HaltClass::ALL.iter().map(|class| (distance(name, class.name()), class.name())).collect();
    let wanted = name.to_lowercase();
    // Half of the letters may differ; a part of a name is as good as a small mistake.
    near.retain(|(far, known)| *far <= known.len() / 2 || (!wanted.is_empty() && known.contains(&wanted)));
    near.sort_unstable();
    let offered: Vec<&str> = near.into_iter().take(MOST_OFFERED).map(|(_, known)| known).collect();
    if offered.is_empty() {
        return format!("no halt is called {name:?}; walgate explain lists all");
    }
    format!("no halt is called {name:?}; did you mean {}? walgate explain lists all", offered.join(", "))
}

/// How many letters have to be added, taken away or replaced to get from one name to the other.
fn distance(from: &str, to: &str) -> usize {
    // A name that was pasted by mistake may be of any length.
    let from: Vec<char> = from.chars().take(100).collect();
    let mut row: Vec<usize> = (0..=from.len()).collect();
    for (line, to) in to.chars().enumerate() {
        let mut next = vec![line + 1];
        for ((above, left_above), from) in row.iter().skip(1).zip(&row).zip(&from) {
            let left = next.last().copied().unwrap_or(0);
            next.push((above + 1).min(left + 1).min(left_above + usize::from(*from != to)));
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_class_has_one_page_and_no_page_is_without_a_class() {
        let mut named: Vec<&str> = PAGES.iter().flat_map(|page| names(page)).collect();
        let mut classes: Vec<&str> = HaltClass::ALL.iter().map(|class| class.name()).collect();
        named.sort_unstable();
        classes.sort_unstable();
        assert_eq!(named, classes, "the first lines of halts/*.md against halt.rs");
    }

    #[test]
    fn every_page_has_exactly_the_headings() {
        for page in PAGES {
            let title = page.lines().next().unwrap();
            let headings: Vec<&str> = page.lines().filter(|line| line.starts_with('#')).skip(1).collect();
            assert_eq!(headings, HEADINGS.map(str::trim), "{title}");
            let parsed = parse(page).unwrap();
            for part in [parsed.what_happened, parsed.what_is_safe, parsed.what_to_do] {
                assert!(part.len() > 20, "{title}");
            }
            assert!(parsed.what_to_do.contains('`') || parsed.what_to_do.contains("\n    "), "{title}: no command");
            for name in &parsed.names {
                let family = name.contains('(') || parsed.names.len() > 1;
                assert!(
                    !family || parsed.what_happened.contains(&format!("`{name}`")) || in_family(name, &parsed),
                    "{name}"
                );
            }
        }
    }

    /// In a page of one family the part in brackets says which.
    fn in_family(name: &str, page: &Page) -> bool {
        let part = name.split_once('(').map(|(_, part)| part.trim_end_matches(')'));
        part.is_some_and(|part| page.what_happened.contains(&format!("`{part}`")))
    }

    #[test]
    fn every_file_of_the_folder_is_in_the_binary() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/halts");
        let files =
            std::fs::read_dir(folder).unwrap().map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap());
        let mut files: Vec<String> = files.collect();
        let mut pages = PAGES.to_vec();
        files.sort();
        pages.sort_unstable();
        assert_eq!(files, pages);
    }

    #[test]
    fn a_page_is_found_by_name_and_by_family() {
        for class in HaltClass::ALL {
            assert!(page_of(class.name()).is_some_and(|page| names(page).any(|name| name == class.name())));
        }
        assert_eq!(page_of("output"), page_of("output(full)"));
        assert_eq!(page_of("data_gap"), page_of("data_gap(cursor)"));
        assert_eq!((page_of(""), page_of("outpu")), (None, None));
    }

    #[test]
    fn names_that_look_like_it_are_offered() {
        assert!(unknown("slot_moves").contains("did you mean slot_moved"), "{}", unknown("slot_moves"));
        assert!(unknown("cursor").contains("data_gap(cursor)"), "{}", unknown("cursor"));
        assert!(unknown(&"x".repeat(10_000)).contains("lists all"));
        assert_eq!(unknown("0123456789"), "no halt is called \"0123456789\"; walgate explain lists all");
        assert_eq!((distance("kitten", "sitting"), distance("", "abc"), distance("abc", "")), (3, 3, 3));
    }
}
