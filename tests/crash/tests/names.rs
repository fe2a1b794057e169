//! The names of points against the sources: each is passed at exactly one place, and no place passes another.
//!
//! Holds: the search, and that each point is reached by something. Never knows: what a point means.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use walgate_failpoint::NAMES;

use crate::letters;
use crate::mode::Mode;
use crate::swaps;

#[test]
fn each_point_is_passed_at_one_place() {
    let host = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../host");
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    collect(&host, &mut found);
    for name in NAMES {
        let places = found.remove(*name).unwrap_or(0);
        assert_eq!(places, 1, "{name} is passed at {places} places of the sources");
    }
    assert!(found.is_empty(), "points that walgate_failpoint::NAMES does not list: {found:?}");
}

#[test]
fn each_point_is_reached_by_a_mode() {
    let mut reached: Vec<&str> = Mode::ALL.iter().flat_map(|mode| mode.points()).collect();
    reached.extend(letters::REFUSED);
    reached.extend(letters::REDRIVEN);
    reached.extend(swaps::POINTS);
    for name in NAMES {
        assert!(reached.contains(name), "{name}");
    }
    assert!(reached.iter().all(|name| NAMES.contains(name)));
}

/// Counts the names that are passed below a folder.
fn collect(folder: &Path, found: &mut BTreeMap<String, usize>) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            collect(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            for (_, rest) in split_after(&fs::read_to_string(&path).unwrap(), "walgate_failpoint::hit(\"") {
                *found.entry(rest).or_default() += 1;
            }
        }
    }
}

/// Where the opening stands, and the text from there to the next quote.
fn split_after(text: &str, opening: &str) -> Vec<(usize, String)> {
    let places = text.match_indices(opening);
    places
        .filter_map(|(at, _)| text[at + opening.len()..].split_once('"').map(|(name, _)| (at, name.to_owned())))
        .collect()
}
