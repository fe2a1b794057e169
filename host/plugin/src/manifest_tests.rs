//! Tests of plugin.toml: the documented example, every refusal, and that no setting leaks into an error.

use walgate_core::grant::Columns;

use super::*;

const FULL: &str = r#"
[plugin]
required = false
on_failure = "park"
max_attempts = 7
diagnostics = "guest-text"

[[grant.table]]
schema = "public"
name = "customers"
columns = ["id", "name"]
operations = ["insert", "update"]

[[grant.table]]
schema = "Sales"
name = "Order Lines"
columns = "*"
except = ["email"]
new_columns = "allow"

[grant]
capabilities = ["log", "state"]
messages = ["my-prefix"]
hash_key = "pseudonyms"

[grant.output.changes]
kind = "file"
path = "/var/lib/walgate/changes.ndjson"
rotate_mib = 256

[grant.output.screen]
kind = "stdout"

[settings]
pretty = "false"

[limits]
memory_mib = 128
"#;

fn parse(text: &str) -> Result<Manifest, ManifestError> {
    Manifest::parse(Path::new("/plugins/p/plugin.toml"), text)
}

#[test]
fn reads_every_key() {
    let manifest = parse(FULL).unwrap();
    assert!(!manifest.required);
    assert_eq!(manifest.on_failure, OnFailure::Park);
    assert_eq!(manifest.retry.max_attempts, 7);
    assert_eq!(manifest.diagnostics, Diagnostics::GuestText);
    assert_eq!(manifest.allowed.message_prefixes, ["my-prefix"]);
    assert_eq!(manifest.hash_key.as_deref(), Some("pseudonyms"));
    let [customers, lines] = &manifest.allowed.tables[..] else { panic!("{manifest:?}") };
    assert_eq!(customers.columns, Columns::Only(vec!["id".into(), "name".into()]));
    assert!(!customers.allow_new_columns);
    assert!(customers.operations.contains(walgate_core::batch::Operation::Update));
    assert!(!customers.operations.contains(walgate_core::batch::Operation::Delete));
    assert_eq!(lines.columns, Columns::AllExcept(vec!["email".into()]));
    assert!(lines.allow_new_columns);
    assert_eq!(lines.operations, Operations::ALL);
    assert_eq!(manifest.capabilities.words(), ["log", "state"]);
    assert_eq!(manifest.outputs["screen"], Output::Stdout);
    let file = Output::File { path: "/var/lib/walgate/changes.ndjson".into(), rotate_mib: Some(256) };
    assert_eq!(manifest.outputs["changes"], file);
    assert!(manifest.capabilities.outputs.contains("changes"));
    assert_eq!(manifest.settings.get("pretty"), Some("false"));
    assert_eq!(manifest.limits, Limits { memory_mib: 128, ..Limits::default() });
}

#[test]
fn a_relative_output_lies_beside_plugin_toml() {
    let manifest = parse("[grant.output.x]\nkind = \"file\"\npath = \"x.ndjson\"").unwrap();
    assert_eq!(manifest.outputs["x"], Output::File { path: "/plugins/p/x.ndjson".into(), rotate_mib: None });
}

#[test]
fn an_empty_file_grants_nothing_and_is_required() {
    let manifest = parse("").unwrap();
    assert!(manifest.required && manifest.capabilities.is_empty() && manifest.allowed == Grant::default());
    assert_eq!((manifest.on_failure, manifest.retry.max_attempts), (OnFailure::Halt, 5));
}

#[track_caller]
fn check(text: &str, expect: &[&str]) {
    let error = parse(text).unwrap_err().to_string();
    for words in expect.iter().chain(&["/plugins/p/plugin.toml"]) {
        assert!(error.contains(words), "{words:?} is missing in: {error}");
    }
}

#[test]
fn refusals_name_the_place_and_what_is_allowed() {
    let table = |rest: &str| format!("[[grant.table]]\nschema = \"s\"\nname = \"t\"\n{rest}");
    check("[plugin]\nrequird = true", &[":2:", "requird", "`required`"]);
    check("[plugins]\n", &["plugins", "`plugin`"]);
    check("[plugin]\non_failure = \"explode\"", &[":2:", "explode", "`halt`", "`park`", "`dead-letter`"]);
    for word in ["park", "dead-letter"] {
        parse(&format!("[plugin]\non_failure = {word:?}")).unwrap();
    }
    check("[plugin]\nmax_attempts = 0", &["plugin.max_attempts", "between 1 and 1000"]);
    check("[grant]\ncapabilities = [\"sockets\"]", &["sockets", "`state`"]);
    check("[grant]\nhash_key = \"A key\"", &["grant.hash_key", "[secrets.NAME]"]);
    check("[limits]\nmemory_mib = 0", &["limits.memory_mib", "between 1 and 4096"]);
    check("[limits]\nmemory = 1", &["memory", "memory_mib"]);
    check("[limits]\nmemory_mib = -1", &[":2:"]);
    check(&table("columns = \"id\""), &["columns must be \"*\" or a list"]);
    check(&table("columns = [\"*\"]"), &["columns must be \"*\" or a list"]);
    check(&table(""), &["columns"]);
    check(&table("columns = [\"a\", \"b\", \"a\"]"), &["\"s\".\"t\" columns", "names column \"a\" twice"]);
    check(&table("columns = [\"a\"]\nexcept = [\"b\"]"), &["\"s\".\"t\" except", "columns = \"*\""]);
    check(&table("columns = [\"a\"]\nnew_columns = \"allow\""), &["\"s\".\"t\" new_columns", "columns = \"*\""]);
    check(&table("columns = \"*\"\noperations = [\"upsert\"]"), &["operations", "truncate"]);
    let twice = format!("{}\n{}", table("columns = \"*\""), table("columns = \"*\""));
    check(&twice, &["\"s\".\"t\"", "twice"]);
    check("[grant.output.x]\nkind = \"file\"\npath = \"/\"", &["grant.output.x.path", "name a file"]);
    check("[grant.output.x]\nkind = \"file\"", &["grant.output.x.path", "name a file"]);
    check("[grant.output.x]\nkind = \"stdout\"\npath = \"/x\"", &["grant.output.x", "neither"]);
    check("[grant.output.\"A B\"]\nkind = \"stdout\"", &["bad name"]);
    check("[grant.output.x]\nkind = \"file\"\npath = \"/x\"\nrotate_mib = 0", &["rotate_mib", "between 1"]);
}

#[test]
fn no_setting_reaches_an_error_or_debug_text() {
    const SECRET: &str = "hunter2-correct-horse";
    let good = parse(&format!("[settings]\npassword = \"{SECRET}\"")).unwrap();
    assert!(!format!("{good:?} {:?}", good.policy("p")).contains(SECRET));
    for text in [
        format!("[settings]\npassword = [\"{SECRET}\"]"),
        format!("[settings]\npassword = {{ a = \"{SECRET}\" }}"),
        format!("[settings]\npassword = \"{SECRET}"),
        format!("[settings]\npassword = {SECRET}"),
        format!("[settings]\npassword = \"{SECRET}\" x"),
        format!("[settings]\npassword = \"a\"\npassword = \"{SECRET}\""),
        format!("[settings]\npassword = \"\\q{SECRET}\""),
        format!("settings = \"{SECRET}\""),
        format!("[plugin]\nrequired = \"{SECRET}, expected {SECRET}\""),
        format!("[limits]\nmemory_mib = \"{SECRET}\""),
    ] {
        let error = parse(&text).unwrap_err();
        let shown = format!("{error} {error:?}");
        assert!(!shown.contains(SECRET), "{shown}");
    }
}

#[test]
fn a_file_that_is_too_large_is_refused_and_never_cut() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plugin.toml");
    let padding = "#".repeat(1 << 20);
    let text =
        format!("[[grant.table]]\nschema = \"s\"\nname = \"t\"\ncolumns = \"*\"\n{padding}\nexcept = [\"secret\"]\n");
    std::fs::write(&path, text).unwrap();
    let error = Manifest::read(&path).unwrap_err();
    assert!(matches!(error, ManifestError::TooLarge { .. }), "{error}");
}
