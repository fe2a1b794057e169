//! Rows that one statement writes.
//!
//! Holds: the groups of an effect, in the order in which they are executed: what goes away first, so that what comes
//! finds its place. Refuses to know SQL. Read next: [`super::statement`].

use std::collections::HashMap;

use super::fold::{Effect, LinkNumber, Net};
use super::key::KeyNumber;
use super::mask::{EMPTY, Mask};

/// What a statement does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Action {
    /// Delete rows by key.
    Delete,
    /// Give rows another key; the columns are those that keep their values.
    Move(Mask),
    /// Write to rows that are there.
    Update,
    /// Write rows whether or not they are there.
    Upsert,
    /// Add rows to a table without a key.
    Append,
}

/// One row of a group.
#[derive(Clone, Copy)]
pub(super) struct GroupRow {
    /// The key of the row that is written or deleted; nothing where there is no key.
    pub(super) key: Option<KeyNumber>,
    /// The key that the row had.
    pub(super) from: Option<KeyNumber>,
    /// Its cells outside the key.
    pub(super) link: Option<LinkNumber>,
}

/// Rows for one statement.
pub(super) struct Group {
    /// What it does.
    pub(super) action: Action,
    /// The columns outside the key that it writes.
    pub(super) mask: Mask,
    /// The rows.
    pub(super) rows: Vec<GroupRow>,
}

/// The groups of an effect; `mask` knows the columns of a link.
pub(super) fn groups(effect: &Effect, mask: impl Fn(LinkNumber) -> Mask) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut known: HashMap<(Action, Mask), usize> = HashMap::new();
    for (net, key, link) in &effect.keys {
        let (action, from) = match net {
            Net::Delete => (Action::Delete, None),
            Net::Move { from, kept } => (Action::Move(*kept), Some(*from)),
            Net::Update => (Action::Update, None),
            Net::Upsert => (Action::Upsert, None),
        };
        let mask = link.map_or(EMPTY, &mask);
        let index = *known.entry((action, mask)).or_insert_with(|| {
            groups.push(Group { action, mask, rows: Vec::new() });
            groups.len() - 1
        });
        if let Some(group) = groups.get_mut(index) {
            group.rows.push(GroupRow { key: Some(*key), from, link: *link });
        }
    }
    // Stable: groups of one action stay in the order of their first rows.
    groups.sort_by_key(|group| match group.action {
        Action::Delete => 0,
        Action::Move(_) => 1,
        Action::Update => 2,
        Action::Upsert | Action::Append => 3,
    });
    groups
}
