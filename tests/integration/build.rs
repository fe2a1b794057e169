//! Lists the folders of `tests/programs`, so that a program without a test does not compile.
//!
//! Holds: what a program is: a folder whose Cargo.toml makes a component. Never knows: which test is about it; see
//! `tests/programs.rs`.

use std::error::Error;
use std::path::{Path, PathBuf};

fn main() -> Result<(), Box<dyn Error>> {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../programs");
    println!("cargo:rerun-if-changed={}", programs.display());
    println!("cargo:rerun-if-changed=build.rs");
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&programs)? {
        let folder = entry?.path();
        let is_component =
            std::fs::read_to_string(folder.join("Cargo.toml")).is_ok_and(|text| text.contains("\"cdylib\""));
        let name = folder.file_name().and_then(|name| name.to_str()).filter(|_| is_component);
        names.extend(name.map(str::to_owned));
    }
    names.sort_unstable();
    let pairs: String =
        names.iter().map(|name| format!("    (\"{name}\", tested::{}),\n", name.replace('-', "_"))).collect();
    let list = format!("/// Every program, and what answers its test.\nconst PROGRAMS: &[Program] = &[\n{pairs}];\n");
    let out = std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?;
    std::fs::write(PathBuf::from(out).join("programs.rs"), list)?;
    Ok(())
}
