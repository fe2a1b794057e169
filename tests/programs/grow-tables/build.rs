//! Writes an object file with one function that the linker adds: `walgate_table_grow`, which is `table.grow` on the
//! table of functions.
//!
//! Holds: the bytes, by the conventions of WebAssembly for object files (custom sections `linking` and `reloc.CODE`).

use std::path::PathBuf;

const NAME: &str = "walgate_table_grow";
/// Where the linker expects the table, and what it exports when it may grow.
const TABLE: &str = "__indirect_function_table";

/// Kinds of symbols and of relocations, and the flag of a symbol that is defined elsewhere.
const FUNCTION: u8 = 0;
const TABLE_SYMBOL: u8 = 5;
const UNDEFINED: u8 = 0x10;
const TABLE_NUMBER: u8 = 20;
const SYMBOL_TABLE: u8 = 8;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() != Ok("wasm32") {
        return;
    }
    let file = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it")).join("table.o");
    std::fs::write(&file, object()).expect("the folder of the build can be written");
    println!("cargo:rustc-link-arg-cdylib={}", file.display());
    println!("cargo:rustc-link-arg-cdylib=--growable-table");
}

fn object() -> Vec<u8> {
    // ref.null func, local.get 0, table.grow with five bytes for the number of the table, end.
    let body = [0, 0xD0, 0x70, 0x20, 0, 0xFC, 0x0F, 0x80, 0x80, 0x80, 0x80, 0, 0x0B];
    let code = [&[1, length(&body)][..], &body].concat();
    // The number of the table stands behind the count, the length and seven bytes of the body.
    let place = 2 + 7;
    let import = [text("env"), text(TABLE), vec![1, 0x70, 0, 0]].concat();
    let symbols = [vec![2, FUNCTION, 0, 0], text(NAME), vec![TABLE_SYMBOL, UNDEFINED, 0]].concat();
    [
        b"\0asm\x01\0\0\0".to_vec(),
        section(1, &[1, 0x60, 1, 0x7F, 1, 0x7F]),
        section(2, &[vec![1], import].concat()),
        section(3, &[1, 0]),
        section(10, &code),
        section(0, &[text("linking"), vec![2, SYMBOL_TABLE, length(&symbols)], symbols].concat()),
        // In the fourth section, from 0.
        section(0, &[text("reloc.CODE"), vec![3, 1, TABLE_NUMBER, place, 1]].concat()),
    ]
    .concat()
}

fn section(kind: u8, content: &[u8]) -> Vec<u8> {
    [&[kind, length(content)][..], content].concat()
}

fn text(text: &str) -> Vec<u8> {
    [&[length(text.as_bytes())][..], text.as_bytes()].concat()
}

/// All of it is short enough for one byte.
fn length(bytes: &[u8]) -> u8 {
    u8::try_from(bytes.len()).ok().filter(|length| *length < 0x80).expect("short")
}
