//! The delivery mode of a plugin: who keeps its position, and what commits together with it.
//!
//! Holds: the rule that makes a mode of what a plugin may do, and the sentence that tells a person why. Refuses to know
//! how a mode is carried out (the pipeline).

use crate::description::Capabilities;
use crate::manifest::Manifest;
use crate::output::Output;

/// Who keeps the position of a plugin, and what commits together with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// The host, in the state database, in one transaction with everything the plugin staged: exactly once.
    HostTransactional,
    /// The host, in the database of the plugin's targets, in one transaction with its rows: exactly once there.
    HostTransactionalFar,
    /// The plugin: `open` answers it.
    SinkOwned,
    /// The host, after the effect: what was delivered since the last checkpoint is delivered again after a crash.
    HostCheckpointed,
}

/// What decides the mode.
enum Cause {
    OwnPosition,
    Outside(String),
    Http,
    TwoDatabases { far: String, beside: String },
    Far(String),
    OneTransaction,
}

impl Mode {
    /// The mode of a plugin with these effective capabilities. `keeps_own_position`: whether `open` answered a position.
    pub fn of(capabilities: &Capabilities, manifest: &Manifest, keeps_own_position: bool) -> Self {
        match cause(capabilities, manifest, keeps_own_position) {
            Cause::OwnPosition => Self::SinkOwned,
            Cause::Outside(_) | Cause::Http | Cause::TwoDatabases { .. } => Self::HostCheckpointed,
            Cause::Far(_) => Self::HostTransactionalFar,
            Cause::OneTransaction => Self::HostTransactional,
        }
    }

    /// Why [`Mode::of`] answers what it does, as one sentence for people.
    pub fn reason(capabilities: &Capabilities, manifest: &Manifest, keeps_own_position: bool) -> String {
        match cause(capabilities, manifest, keeps_own_position) {
            Cause::OwnPosition => "the plugin keeps its own position: `open` answered one".to_owned(),
            Cause::Outside(output) => format!(
                "output {output:?} goes to standard output, which the host's transaction cannot take back: what follows the \
                 last checkpoint repeats after a crash"
            ),
            Cause::Http => {
                "it sends requests over HTTP, which the host's transaction cannot take back: what follows the last \
                            checkpoint repeats after a crash"
                    .to_owned()
            }
            Cause::TwoDatabases { far, beside } => format!(
                "it writes rows to database {far:?} and uses {beside}, which is kept beside the checkpoint; two databases \
                 cannot commit together, so what follows the last checkpoint repeats after a crash"
            ),
            Cause::Far(far) => format!("its rows commit in one transaction with its position in database {far:?}"),
            Cause::OneTransaction => {
                "all its effects commit in one transaction with its position in the state database".to_owned()
            }
        }
    }

    /// A stable word for status and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HostTransactional => "host-transactional",
            Self::HostTransactionalFar => "host-transactional-far",
            Self::SinkOwned => "sink-owned",
            Self::HostCheckpointed => "host-checkpointed",
        }
    }
}

fn cause(capabilities: &Capabilities, manifest: &Manifest, keeps_own_position: bool) -> Cause {
    if keeps_own_position {
        return Cause::OwnPosition;
    }
    let outside = |name: &&String| manifest.outputs.get(*name) == Some(&Output::Stdout);
    if let Some(output) = capabilities.outputs.iter().find(outside) {
        return Cause::Outside(output.clone());
    }
    if capabilities.http {
        return Cause::Http;
    }
    let far = if capabilities.rows.is_empty() { None } else { manifest.rows_database().flatten() };
    let Some(far) = far.map(str::to_owned) else { return Cause::OneTransaction };
    let output = capabilities.outputs.first().map(|name| format!("output {name:?}"));
    match output.or_else(|| capabilities.state.then(|| "`state`".to_owned())) {
        Some(beside) => Cause::TwoDatabases { far, beside },
        None => Cause::Far(far),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const FAR: &str = "[grant.rows.orders]\ndatabase = \"lake\"\nschema = \"m\"\n";
    const NEAR: &str = "[grant.rows.orders]\nschema = \"m\"\n";
    const FILE: &str = "[grant.output.lines]\nkind = \"file\"\npath = \"/lines\"\n";
    const SCREEN: &str = "[grant.output.screen]\nkind = \"stdout\"\n";
    const HTTP: &str = "[[grant.http]]\nurl = \"https://a/\"\nmethods = [\"POST\"]\n";
    const STATE: &str = "[grant]\ncapabilities = [\"state\", \"log\", \"metrics\"]\n";

    #[track_caller]
    fn check(toml: &[&str], asked: &[&str], own: bool, mode: Mode, words: &[&str]) {
        let manifest = Manifest::parse(Path::new("plugin.toml"), &toml.concat()).unwrap();
        let asked = asked.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        let effective = Capabilities::parse(&asked).unwrap().intersection(&manifest.capabilities);
        assert_eq!(Mode::of(&effective, &manifest, own), mode);
        let reason = Mode::reason(&effective, &manifest, own);
        for word in words {
            assert!(reason.contains(word), "{word:?} is missing in: {reason}");
        }
    }

    #[test]
    fn one_transaction_where_everything_is_in_the_state_database() {
        use Mode::HostTransactional as Mode;
        check(&[], &[], false, Mode, &["one transaction", "state database"]);
        check(&[STATE], &["state", "log"], false, Mode, &[]);
        check(&[STATE, FILE, NEAR], &["state", "output:lines", "rows:*"], false, Mode, &[]);
    }

    #[test]
    fn rows_alone_may_be_far() {
        check(&[STATE, FAR], &["rows:orders", "log", "metrics"], false, Mode::HostTransactionalFar, &["\"lake\""]);
        check(&[FAR], &["rows:*"], false, Mode::HostTransactionalFar, &[]);
        // Granted and not asked for is no effect.
        check(&[STATE, FILE, SCREEN, FAR], &["rows:orders"], false, Mode::HostTransactionalFar, &[]);
        check(&[STATE, FAR], &["state"], false, Mode::HostTransactional, &[]);
    }

    #[test]
    fn two_databases_cannot_commit_together() {
        let words = ["\"lake\"", "two databases cannot commit together", "repeats"];
        let mode = Mode::HostCheckpointed;
        check(&[STATE, FAR], &["rows:orders", "state"], false, mode, &[&words[..], &["`state`"]].concat());
        check(
            &[FILE, FAR],
            &["rows:orders", "output:lines"],
            false,
            mode,
            &[&words[..], &["output \"lines\""]].concat(),
        );
    }

    #[test]
    fn what_leaves_the_host_is_checkpointed_afterwards() {
        let words = ["\"screen\"", "standard output", "repeats"];
        check(&[FILE, SCREEN], &["output:lines", "output:screen"], false, Mode::HostCheckpointed, &words);
        check(&[SCREEN, FAR], &["output:screen", "rows:*"], false, Mode::HostCheckpointed, &words);
        check(&[FILE, SCREEN], &["output:lines"], false, Mode::HostTransactional, &[]);
        check(&[HTTP, FAR], &["http", "rows:*"], false, Mode::HostCheckpointed, &["over HTTP", "repeats"]);
        check(&[HTTP], &["http"], true, Mode::SinkOwned, &["its own position"]);
        check(&[HTTP], &[], false, Mode::HostTransactional, &[]);
    }

    #[test]
    fn a_position_of_its_own_counts_before_everything() {
        for toml in [&[SCREEN][..], &[FAR, STATE], &[]] {
            let asked = ["output:screen", "rows:*", "state"];
            check(toml, &asked, true, Mode::SinkOwned, &["its own position", "`open`"]);
        }
    }

    #[test]
    fn names_are_the_documented_ones() {
        let modes = [Mode::HostTransactional, Mode::HostTransactionalFar, Mode::SinkOwned, Mode::HostCheckpointed];
        let names = ["host-transactional", "host-transactional-far", "sink-owned", "host-checkpointed"];
        assert_eq!(modes.map(Mode::name), names);
    }
}
