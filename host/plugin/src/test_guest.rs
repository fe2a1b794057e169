//! Guests for tests: a core module in WebAssembly text, made a component with the contract's own world.
//!
//! Every call has a default body that answers well; a test replaces the bodies it is about. Memory:
//!
//! | address | what |
//! |---|---|
//! | 1024 | zeros: "ok", "none", "accept", "not durable" |
//! | 1040 | a durable receipt |
//! | 1104 | a failure `retry`, code `peer-away`, as `deliver`, `flush` and `relation-changed` answer it |
//! | 1168 | the same as `open` answers it |
//! | 1232 | a receipt with one rejection of ordinal 7 |
//! | 1296, 1300 | scratch: a counter, a flag |
//! | 1344 | where host calls put their results |
//! | 2048 | the description: asks for log, metrics, state and output:out |
//! | 4000 | the text of [`TEXT`] |
//! | 65536 … | what the host lowers |

use std::io::Write;
use std::sync::{Arc, Mutex};

use sha2::{Digest, Sha256};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// key @4000+3, out @4003+3, peer-away @4006+9, value @4015+5, rows @4020+4, nope @4024+4, / @4028+1
const TEXT: &str = "keyoutpeer-awayvaluerowsnope/";

/// As much of WASI as the tests call.
const WASI: &[&str] = &[
    "package wasi:io@0.2.0; interface poll { resource pollable { block: func(); } }",
    "package wasi:clocks@0.2.0; interface monotonic-clock { use wasi:io/poll@0.2.0.{pollable};
     subscribe-duration: func(when: u64) -> pollable; }",
    "package wasi:cli@0.2.0; interface exit { exit: func(status: result); }",
    "package wasi:http@0.2.0; interface types { use wasi:io/poll@0.2.0.{pollable};
     record DNS-error-payload { rcode: option<string>, info-code: option<u16> }
     record TLS-alert-received-payload { alert-id: option<u8>, alert-message: option<string> }
     record field-size-payload { field-name: option<string>, field-size: option<u32> }
     variant error-code { DNS-timeout, DNS-error(DNS-error-payload), destination-not-found, destination-unavailable,
      destination-IP-prohibited, destination-IP-unroutable, connection-refused, connection-terminated, connection-timeout,
      connection-read-timeout, connection-write-timeout, connection-limit-reached, TLS-protocol-error,
      TLS-certificate-error, TLS-alert-received(TLS-alert-received-payload), HTTP-request-denied,
      HTTP-request-length-required, HTTP-request-body-size(option<u64>), HTTP-request-method-invalid,
      HTTP-request-URI-invalid, HTTP-request-URI-too-long, HTTP-request-header-section-size(option<u32>),
      HTTP-request-header-size(option<field-size-payload>), HTTP-request-trailer-section-size(option<u32>),
      HTTP-request-trailer-size(field-size-payload), HTTP-response-incomplete,
      HTTP-response-header-section-size(option<u32>), HTTP-response-header-size(field-size-payload),
      HTTP-response-body-size(option<u64>), HTTP-response-trailer-section-size(option<u32>),
      HTTP-response-trailer-size(field-size-payload), HTTP-response-transfer-coding(option<string>),
      HTTP-response-content-coding(option<string>), HTTP-response-timeout, HTTP-upgrade-failed, HTTP-protocol-error,
      loop-detected, configuration-error, internal-error(option<string>) }
     resource fields { constructor(); }
     resource outgoing-request { constructor(headers: fields); set-authority: func(authority: option<string>) -> result;
      set-path-with-query: func(path-with-query: option<string>) -> result; }
     resource incoming-response { status: func() -> u16; }
     resource request-options { constructor(); }
     resource future-incoming-response { subscribe: func() -> pollable;
      get: func() -> option<result<result<incoming-response, error-code>>>; } }
     interface outgoing-handler { use types.{outgoing-request, request-options, future-incoming-response, error-code};
      handle: func(request: outgoing-request, options: option<request-options>)
       -> result<future-incoming-response, error-code>; }",
    "package test:guest@0.1.0; world guest { include walgate:cdc/sink-plugin@0.1.0;
     import wasi:clocks/monotonic-clock@0.2.0; import wasi:io/poll@0.2.0; import wasi:cli/exit@0.2.0;
     import wasi:http/outgoing-handler@0.2.0; }",
];

const IMPORTS: &str = r#"
  (import "walgate:host/log@0.1.0" "write" (func $log (param i32 i32 i32 i32 i32)))
  (import "walgate:host/metrics@0.1.0" "count" (func $count (param i32 i32 i64)))
  (import "walgate:host/state@0.1.0" "get" (func $get (param i32 i32 i32)))
  (import "walgate:host/state@0.1.0" "set" (func $set (param i32 i32 i32 i32 i32)))
  (import "walgate:host/output@0.1.0" "append" (func $append (param i32 i32 i32 i32 i32)))
  (import "walgate:host/settings@0.1.0" "get" (func $setting (param i32 i32 i32)))
  (import "walgate:host/secrets@0.1.0" "reveal" (func $reveal (param i32 i32 i32)))
  (import "walgate:host/replica@0.1.0" "by-key" (func $by_key (param i32 i32 i32 i32 i32)))
  (import "walgate:cdc/rows@0.1.0" "apply" (func $apply (param i32 i32 i32)))
  (import "wasi:clocks/monotonic-clock@0.2.0" "subscribe-duration" (func $timer (param i64) (result i32)))
  (import "wasi:io/poll@0.2.0" "[method]pollable.block" (func $block (param i32)))
  (import "wasi:cli/exit@0.2.0" "exit" (func $exit (param i32)))
  (import "wasi:http/types@0.2.0" "[constructor]fields" (func $fields (result i32)))
  (import "wasi:http/types@0.2.0" "[constructor]outgoing-request" (func $request (param i32) (result i32)))
  (import "wasi:http/types@0.2.0" "[method]outgoing-request.set-authority"
    (func $authority (param i32 i32 i32 i32) (result i32)))
  (import "wasi:http/types@0.2.0" "[method]outgoing-request.set-path-with-query"
    (func $path (param i32 i32 i32 i32) (result i32)))
  (import "wasi:http/types@0.2.0" "[method]future-incoming-response.subscribe" (func $answered (param i32) (result i32)))
  (import "wasi:http/types@0.2.0" "[method]future-incoming-response.get" (func $answer (param i32 i32)))
  (import "wasi:http/outgoing-handler@0.2.0" "handle" (func $handle (param i32 i32 i32 i32)))
"#;

pub(crate) const REALLOC: &str = r#"
  (memory (export "memory") 4)
  (global $next (mut i32) (i32.const 65536))
  (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
    (local $at i32)
    (local.set $at (i32.and (i32.add (global.get $next) (i32.const 7)) (i32.const -8)))
    (global.set $next (i32.add (local.get $at) (local.get 3)))
    (block $fits
      (br_if $fits (i32.le_u (global.get $next) (i32.mul (memory.size) (i32.const 65536))))
      (br_if $fits (i32.ne (i32.const -1) (memory.grow
        (i32.add (i32.const 1) (i32.div_u (local.get 3) (i32.const 65536))))))
      unreachable)
    (local.get $at))
"#;

/// Sends a request for `/` to the host `value`, waits for what becomes of it, and leaves that at 1344: of a code of
/// an error, the number at [`HTTP_CODE`].
pub(crate) const SEND_HTTP: &str = "(i32.store (i32.const 1300) (call $request (call $fields)))
    (drop (call $authority (i32.load (i32.const 1300)) (i32.const 1) (i32.const 4015) (i32.const 5)))
    (drop (call $path (i32.load (i32.const 1300)) (i32.const 1) (i32.const 4028) (i32.const 1)))
    (call $handle (i32.load (i32.const 1300)) (i32.const 0) (i32.const 0) (i32.const 1344))
    (if (i32.load8_u (i32.const 1344)) (then unreachable))
    (i32.store (i32.const 1300) (i32.load (i32.const 1352)))
    (call $block (call $answered (i32.load (i32.const 1300))))
    (call $answer (i32.load (i32.const 1300)) (i32.const 1344))";

/// Where the code of an error lies in what `future-incoming-response.get` answers: behind three tags, aligned to eight.
pub(crate) const HTTP_CODE: &str = "(i32.load8_u (i32.const 1368))";

/// A component with default bodies and `extra` module items.
pub(crate) fn build(extra: &str) -> Vec<u8> {
    encode(&module(extra))
}

/// A component with some bodies replaced, each by instructions that leave what the call returns.
pub(crate) fn build_with(bodies: &[(&str, &str)]) -> Vec<u8> {
    build_full(bodies, "")
}

/// Both.
pub(crate) fn build_full(bodies: &[(&str, &str)], extra: &str) -> Vec<u8> {
    encode(&embed(&text(bodies, extra)))
}

/// The core module of [`build`], with its world.
pub(crate) fn module(extra: &str) -> Vec<u8> {
    embed(&text(&[], extra))
}

/// Any module text, with the world of the contract.
pub(crate) fn embed(text: &str) -> Vec<u8> {
    let mut resolve = Resolve::default();
    resolve.push_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../wit/v0.1")).unwrap();
    let mut last = None;
    for source in WASI {
        last = Some(resolve.push_str("test.wit", source).unwrap());
    }
    let world = resolve.select_world(&[last.unwrap()], Some("guest")).unwrap();
    let mut module = wat::parse_str(text).unwrap();
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8, false).unwrap();
    module
}

pub(crate) fn encode(module: &[u8]) -> Vec<u8> {
    let mut encoder = ComponentEncoder::default();
    encoder.validate(true).module(module).unwrap();
    encoder.encode().unwrap()
}

fn text(bodies: &[(&str, &str)], extra: &str) -> String {
    let body = |name: &str, default: &str| {
        bodies.iter().find(|(known, _)| *known == name).map_or(default, |(_, body)| *body).to_owned()
    };
    let ten = "(param i32 i32 i64 i32 i32 i32 i32 i64 i32 i32)";
    let calls = [
        ("describe", "(result i32)", "(i32.const 2048)"),
        ("open", &format!("{ten} (result i32)"), "(i32.const 1024)"),
        ("relation-changed", "(param i32) (result i32)", "(i32.const 1024)"),
        ("deliver", &format!("(param{}) (result i32)", " i32".repeat(14)), "(i32.const 1040)"),
        ("flush", "(result i32)", "(i32.const 1024)"),
        ("close", "", ""),
    ]
    .map(|(name, signature, default)| {
        format!("(func (export \"walgate:cdc/sink@0.1.0#{name}\") {signature} {})\n", body(name, default))
    });
    format!("(module {IMPORTS} {REALLOC} {} {} {extra})", calls.concat(), data())
}

fn data() -> String {
    let capabilities = "logmetricsstateoutput:out";
    let entries = [(0, 3), (3, 7), (10, 5), (15, 10)].map(|(at, len)| [3000 + at, len]).concat();
    let failure = |first: &[u32]| words(&[first, &[0, 4006, 9, 4015, 5, 1, 250]].concat());
    [
        (1040, words(&[0, 1])),
        (1104, failure(&[1])),
        (1168, failure(&[1, 0])),
        (1232, words(&[0, 1, 1248, 1])),
        (1248, words(&[7, 4006, 9])),
        (2048, words(&[3100, 4, 3104, 1, 2048, 0, 2112, 4, 2048, 0])),
        (2112, words(&entries)),
        (3000, capabilities.to_owned()),
        (3100, "test1".to_owned()),
        (4000, TEXT.to_owned()),
    ]
    .map(|(at, bytes)| format!("(data (i32.const {at}) \"{bytes}\")\n"))
    .concat()
}

fn words(values: &[u32]) -> String {
    values.iter().flat_map(|value| value.to_le_bytes()).map(|byte| format!("\\{byte:02x}")).collect()
}

/// SHA-256.
pub(crate) fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// What `run` logs on this thread.
pub(crate) fn logged(run: impl FnOnce()) -> String {
    let buffer = Buffer::default();
    let writer = buffer.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    tracing::subscriber::with_default(subscriber, run);
    // Multi-line fields are escaped by the formatter.
    String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap().replace("\\n", "\n").replace("\\\"", "\"")
}

#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
