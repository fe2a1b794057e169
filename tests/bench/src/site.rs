//! What one run of walgate is made of: its configuration, and the folder of its one plugin.
//!
//! Holds: the text of both files. Never knows: how walgate is started and followed.
//! Read next: `walgate_run.rs`.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tempfile::TempDir;
use walgate_harness::{free_port, guest};

/// The name of the plugin's folder, whichever guest it is.
pub(crate) const PLUGIN: &str = "bench";

/// What can be chosen.
#[derive(Debug, Clone)]
pub(crate) struct Setup {
    /// The guest.
    pub(crate) guest: &'static str,
    /// The text of its plugin.toml.
    pub(crate) manifest: String,
    /// The URL of the state database.
    pub(crate) state: String,
    /// Further sections of walgate.toml.
    pub(crate) sections: String,
    /// Where standard output goes, instead of a log that is gone with the process.
    pub(crate) stdout: Option<PathBuf>,
}

impl Setup {
    /// The counting plugin.
    pub(crate) fn counter(tables: &[String], state: String) -> Self {
        let manifest = format!("[grant]\ncapabilities = [\"metrics\", \"state\"]\n{}", grants(tables));
        Self::of("counter-rust", manifest, state)
    }

    /// A guest with this plugin.toml.
    pub(crate) fn of(guest: &'static str, manifest: String, state: String) -> Self {
        Self { guest, manifest, state, sections: String::new(), stdout: None }
    }
}

/// What is read, and how much is logged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reads<'a> {
    /// The URL of the database.
    pub(crate) url: &'a str,
    pub(crate) slot: &'a str,
    pub(crate) publication: &'a str,
    pub(crate) level: &'a str,
}

/// A configuration on disk, gone when dropped.
#[derive(Debug)]
pub(crate) struct Site {
    folder: TempDir,
    /// Where its API will listen.
    pub(crate) api: SocketAddr,
}

impl Site {
    /// Writes the files; `cache` holds compiled plugins.
    pub(crate) fn write(setup: &Setup, reads: Reads<'_>, cache: &Path) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("wg-bench-").tempdir().context("cannot make a folder")?;
        let api = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let plugin = folder.path().join("plugins").join(PLUGIN);
        fs::create_dir_all(&plugin).context("cannot make the plugin folder")?;
        fs::copy(guest(setup.guest)?, plugin.join("plugin.wasm")).context("cannot copy the plugin")?;
        let (Reads { url, slot, publication, level }, Setup { state, sections, .. }) = (reads, setup);
        write(&plugin.join("plugin.toml"), &setup.manifest)?;
        // The slot is a copy, which walgate has not made itself and asks about.
        write(
            &folder.path().join("walgate.toml"),
            &format!(
                "[source]\nurl = \"{url}\"\nslot = \"{slot}\"\npublications = [\"{publication}\"]\n\
                 start = \"go-forward\"\n\
                 [state]\nurl = \"{state}\"\n\
                 [plugins]\ndir = \"plugins\"\ncache_dir = \"{}\"\n\
                 [api]\nlisten = \"{api}\"\n[log]\nlevel = \"{level}\"\n{sections}",
                cache.display()
            ),
        )?;
        Ok(Self { folder, api })
    }

    /// Puts another component in the place of the plugin, by renaming.
    pub(crate) fn replace(&self, component: &[u8]) -> Result<()> {
        let plugin = self.folder.path().join("plugins").join(PLUGIN);
        let half = plugin.join("plugin.wasm.tmp");
        fs::write(&half, component).context("cannot write the component")?;
        fs::rename(half, plugin.join("plugin.wasm")).context("cannot replace the component")
    }

    /// The configuration file.
    pub(crate) fn config(&self) -> PathBuf {
        self.folder.path().join("walgate.toml")
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Every column of every table, as sections of plugin.toml.
pub(crate) fn grants(tables: &[String]) -> String {
    let table = |name: &String| format!("[[grant.table]]\nschema = \"public\"\nname = \"{name}\"\ncolumns = \"*\"\n");
    tables.iter().map(table).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_granted_whole() {
        let setup = Setup::counter(&["a".to_owned(), "marker".to_owned()], String::new());
        let manifest = walgate_plugin::Manifest::parse(Path::new("plugin.toml"), &setup.manifest).unwrap();
        assert_eq!(manifest.allowed.tables.len(), 2);
        assert!(manifest.capabilities.state && manifest.capabilities.metrics);
    }
}
