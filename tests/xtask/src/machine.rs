//! What kind of machine this is, and how packages get onto it.
//!
//! Holds: Debian's package manager, run without questions. Never knows: which packages are for what.
//! Read next: `postgres.rs`, `guests.rs`.

use std::env;
use std::fs;
use std::process::Command;

use crate::command::{note, output, run};
use crate::{Result, places};

/// Whether this is a CI run, where a missing toolchain is a failure and not a skip.
pub(crate) fn is_ci() -> bool {
    env::var("CI").is_ok_and(|value| value == "true" || value == "1")
}

/// Whether packages can be installed with apt-get here.
pub(crate) fn is_debian() -> bool {
    fs::read_to_string("/etc/os-release").is_ok_and(|text| says_debian(&text))
}

fn says_debian(os_release: &str) -> bool {
    let value = |key: &str| os_release.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
    let words = [value("ID="), value("ID_LIKE=")].map(|text| text.trim_matches('"').to_owned());
    words.iter().flat_map(|text| text.split(' ')).any(|word| word == "debian")
}

/// Installs Debian packages without asking, as root or through a sudo that needs no password.
///
/// Fails, naming the packages, when this is no Debian or nobody may install.
pub(crate) fn install(packages: &[&str]) -> Result<()> {
    let list = packages.join(" ");
    if !is_debian() {
        return Err(format!("this is no Debian; install what Debian calls: {list}"));
    }
    note(&format!("installing Debian packages: {list}"));
    let install = || {
        let mut command = apt_get()?;
        command.args(["install", "--yes", "--no-install-recommends"]).args(packages);
        run(&mut command)
    };
    // A fresh container has no package lists, and an old machine has stale ones.
    install()
        .or_else(|_| run(apt_get()?.arg("update")).and_then(|()| install()))
        .map_err(|error| format!("{error}; install by hand: {list}"))
}

fn apt_get() -> Result<Command> {
    let quiet = "DEBIAN_FRONTEND=noninteractive";
    if places::is_root() {
        let mut command = Command::new("env");
        command.args([quiet, "apt-get"]);
        return Ok(command);
    }
    output(Command::new("sudo").args(["-n", "true"])).map_err(|_| "only root can install packages".to_owned())?;
    let mut command = Command::new("sudo");
    command.args(["-n", "env", quiet, "apt-get"]);
    Ok(command)
}

/// Makes sure there is a C compiler: cargo links with it, and `ring` is partly written in C.
pub(crate) fn need_c_compiler() -> Result<()> {
    if crate::command::exists("cc") { Ok(()) } else { install(&["build-essential"]) }
}

/// Makes sure there is Node.js with its package manager.
pub(crate) fn need_npm() -> Result<()> {
    if crate::command::exists("npm") && crate::command::exists("node") { Ok(()) } else { install(&["npm", "nodejs"]) }
}

#[cfg(test)]
mod tests {
    use super::says_debian;

    #[test]
    fn debian_and_its_children_are_told_from_others() {
        assert!(says_debian("NAME=\"Debian GNU/Linux\"\nID=debian\n"));
        assert!(says_debian("ID=ubuntu\nID_LIKE=debian\n"));
        assert!(says_debian("ID=pop\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(!says_debian("ID=fedora\nHOME_URL=https://debian.example\n"));
    }
}
