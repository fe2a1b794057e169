//! Two versions of the contract in one host: each component is spoken to in its own, and none is taken for the other.

use std::path::Path;

use walgate_core::Lsn;
use walgate_core::batch::{Batch, Transaction};
use wit_component::{StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

use crate::contract::{ContractError, ContractVersion};
use crate::engine::Engine;
use crate::outcome::{Delivery, Disposition, OpenContext, Receipt};
use crate::{CallError, Component, LoadError, Manifest, Worker, test_guest};

/// A plugin of the next version. It counts each delivery, answers `accepted`, and refuses batches without rows.
const NEXT: &str = r#"
  (import "walgate:host/metrics@0.2.0-next" "count" (func $count (param i32 i32)))
  (data (i32.const 1032) "\00\00\00\00\01")
  (data (i32.const 1104) "\01\00\00\00\60\04\00\00\05\00\00\00")
  (data (i32.const 1120) "empty")
  (data (i32.const 2048) "\80\04\00\00\04\00\00\00\84\04\00\00\03\00\00\00")
  (data (i32.const 1152) "next9.1batches")
  (func (export "walgate:cdc/sink@0.2.0-next#describe") (result i32) (i32.const 2048))
  (func (export "walgate:cdc/sink@0.2.0-next#open") (param i32 i32) (result i32) (i32.const 1024))
  (func (export "walgate:cdc/sink@0.2.0-next#deliver") (param i32 i32 i32 i32 i64) (result i32)
    (call $count (i32.const 1159) (i32.const 7))
    (select (i32.const 1104) (i32.const 1032) (i64.eqz (local.get 4))))
  (func (export "walgate:cdc/sink@0.2.0-next#flush") (result i32) (i32.const 1024))
"#;

/// The plugin, with `name` in the place of its version.
fn next_plugin(name: &str) -> Vec<u8> {
    let named = |text: &str| text.replace("0.2.0-next", name);
    let mut resolve = Resolve::default();
    let package = resolve.push_str("next.wit", &named(include_str!("../bindings/next.wit"))).unwrap();
    let world = resolve.select_world(&[package], Some("sink-plugin")).unwrap();
    // Imports come first in a module.
    let (import, rest) = NEXT.trim_start().split_once('\n').unwrap();
    let text = named(&format!("(module {import} {} {rest})", test_guest::REALLOC));
    let mut module = wat::parse_str(text).unwrap();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8, false).unwrap();
    test_guest::encode(&module)
}

fn start(engine: &Engine, bytes: &[u8]) -> (ContractVersion, Worker) {
    let component = Component::from_bytes(engine, Path::new("plugin.wasm"), bytes).unwrap();
    let version = component.version();
    let manifest = Manifest::parse(Path::new("plugin.toml"), "[grant]\ncapabilities = [\"metrics\"]\n").unwrap();
    (version, Worker::start(component, manifest.policy("test")).unwrap())
}

fn batch(rows: usize) -> Batch {
    let transaction = Transaction {
        xid: 1,
        commit: Lsn::new(10),
        end: Lsn::new(20),
        commit_time_us: 0,
        origin: None,
        first_ordinal: 0,
        change_count: 0,
        source_ordinal: 0,
        part: 0,
        last_part: true,
    };
    Batch { id: "b-1".into(), attempt: 1, rows, transactions: vec![transaction], ..Batch::default() }
}

#[tokio::test]
async fn two_versions_run_side_by_side() {
    let engine = Engine::new(None).unwrap();
    let (one_version, one) = start(&engine, &test_guest::build(""));
    let (next_version, next) = start(&engine, &next_plugin(ContractVersion::Next.name()));
    assert_eq!((one_version, next_version), (ContractVersion::V0_1, ContractVersion::Next));
    let description = next.describe().await.unwrap();
    assert_eq!((description.name.as_str(), description.version.as_str()), ("next", "9.1"));
    assert_eq!(one.describe().await.unwrap().name, "test");
    for (worker, durable) in [(&one, true), (&next, false)] {
        worker.open(OpenContext { plugin: "test".into(), ..OpenContext::default() }).await.unwrap();
        for _ in 0..2 {
            let Delivery { batch: back, outcome, .. } = worker.deliver(batch(1)).await;
            assert_eq!(back, batch(1));
            assert_eq!(outcome, Ok(Receipt { durable, rejected: vec![] }));
        }
        worker.flush().await.unwrap();
    }
    // Its own interface of the host, answered by the same host.
    assert_eq!(next.metrics().counters["batches"], 2);
    let outcome = next.deliver(batch(0)).await.outcome;
    let Err(CallError::Refused(failure)) = outcome else { panic!("not refused: {outcome:?}") };
    assert_eq!((failure.disposition, failure.code.as_str()), (Disposition::Halt, "empty"));
    assert_eq!((one.close().await, next.close().await), (Ok(()), Ok(())));
}

#[test]
fn one_version_is_not_taken_for_another() {
    let engine = Engine::new(None).unwrap();
    let load = |bytes: &[u8]| Component::from_bytes(&engine, Path::new("plugin.wasm"), bytes).err().unwrap();
    let component = |text: &str| wat::parse_str(format!("(component {text})")).unwrap();
    // An import of the other version, before anything is compiled.
    for (own, import) in
        [("0.1.0", "metrics@0.2.0-next"), ("0.2.0-next", "metrics@0.1.0"), ("0.2.0-next", "log@0.2.0-next")]
    {
        let text = format!(
            "(import \"walgate:host/{import}\" (instance)) (instance $i) (export \"walgate:cdc/sink@{own}\" (instance $i))"
        );
        let error = load(&component(&text));
        assert!(
            matches!(&error, LoadError::Contract { reason: ContractError::ForeignImport { import: told }, .. }
                if told.ends_with(import)),
            "{own} with {import}: {error}"
        );
    }
    // The name of one with the shapes of the other.
    let error = load(&next_plugin("0.1.0"));
    assert!(matches!(error, LoadError::Link { .. }), "{error}");
}
