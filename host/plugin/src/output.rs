//! `[grant.output.NAME]`: where the named outputs of a plugin go.
//!
//! Holds: one output, its section of plugin.toml, and its checks. Refuses to know how bytes get there (the store), and what
//! a plugin appends (see `capability/output.rs`).

use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::description::output_name;
use crate::manifest::Wrong;

/// Where a named output goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// A file, cut back to its checkpointed length at a restart.
    File {
        /// Its path; one that is relative in plugin.toml counts from the folder of that file.
        path: PathBuf,
        /// Rotate above this many MiB, if set.
        rotate_mib: Option<u64>,
    },
    /// Standard output of the process.
    Stdout,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OutputSection {
    kind: OutputKind,
    path: Option<PathBuf>,
    rotate_mib: Option<u64>,
}

#[derive(Deserialize, PartialEq, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum OutputKind {
    File,
    Stdout,
}

impl OutputSection {
    pub(crate) fn check(self, name: &str, folder: &Path) -> Result<Output, Wrong> {
        let key = |key: &str| format!("grant.output.{name}{key}");
        if !output_name(name) {
            return Err(Wrong::new(key(""), "has a bad name; use up to 40 of a-z, 0-9, - and _"));
        }
        match (self.kind, self.path, self.rotate_mib) {
            (OutputKind::Stdout, None, None) => Ok(Output::Stdout),
            (OutputKind::Stdout, _, _) => {
                Err(Wrong::new(key(""), "of kind \"stdout\" takes neither path nor rotate_mib"))
            }
            (OutputKind::File, Some(path), rotate_mib) if path.file_name().is_some() => {
                if rotate_mib.is_some_and(|mib| !(1..=1_048_576).contains(&mib)) {
                    return Err(Wrong::new(key(".rotate_mib"), "must lie between 1 and 1048576"));
                }
                Ok(Output::File { path: folder.join(path), rotate_mib })
            }
            (OutputKind::File, _, _) => Err(Wrong::new(key(".path"), "must name a file for kind \"file\"")),
        }
    }
}
