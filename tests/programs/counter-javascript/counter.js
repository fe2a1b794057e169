// A sink in JavaScript, straight from the WIT: it reads every value it is granted, and counts.
//
// Holds: the six calls of a sink, on nothing but what componentize-js makes of `wit/v0.1`. Refuses to know commit order,
// because counts need none. Read next: `wit/v0.1/change.wit`, which says what every type becomes, and `build.mjs`.

import { count } from "walgate:host/metrics@0.1.0";
import { append } from "walgate:host/output@0.1.0";
import { get as setting } from "walgate:host/settings@0.1.0";
import * as state from "walgate:host/state@0.1.0";

// The code of `presence` for a slot that holds a value. The others are NULL, unchanged and not sent.
const VALUE = 0;

const encoder = new TextEncoder();
const decoder = new TextDecoder();

export const sink = {
  describe() {
    const everything = { namespace: "*", name: "*", columns: ["*"], optionalColumns: [], operations: [] };
    return {
      name: "counter-javascript",
      version: "0.0.0",
      tables: [everything],
      capabilities: ["metrics", "state"],
      settingsSchema: "",
    };
  },

  open(context) {
    if (setting("overreach")) overreach();
    return undefined; // the host keeps the position
  },

  relationChanged(current, previous) {
    return "accept";
  },

  deliver(batch) {
    let rows = 0;
    let values = 0;
    let fingerprint = 0n;
    for (const group of batch.groups) {
      rows += group.ordinals.length;
      for (const column of [...group.after, ...group.before]) {
        for (const bits of weights(column)) {
          values += 1;
          fingerprint += bits;
        }
      }
    }
    try {
      add("rows", BigInt(rows));
      add("fingerprint", fingerprint);
    } catch (error) {
      // A denial is an answer like any other: what can be counted without a state is counted.
      const fault = faultOf(error);
      if (fault.code !== "not-granted") {
        throw failure(fault.retryable ? "retry" : "halt", fault.code, "the state was not kept");
      }
      count("state_get_denied", 1n);
    }
    count("rows", BigInt(rows));
    count("values", BigInt(values));
    return { durable: true, rejected: [] };
  },

  flush() {},

  close() {},
};

// Adds to a number in the state, which wraps at 64 bits. What a failed delivery has set, the host drops.
function add(key, more) {
  const known = state.get(key);
  const sum = BigInt.asUintN(64, (known ? BigInt(decoder.decode(known)) : 0n) + more);
  state.set(key, encoder.encode(sum.toString()));
}

// Calls what no grant allows: every import is there to be called, and an ungranted one answers its fault.
function overreach() {
  try {
    append("changes", encoder.encode("a line"));
    count("output_allowed", 1n);
  } catch (error) {
    count(faultOf(error).code === "not-granted" ? "output_denied" : "output_failed", 1n);
  }
}

// The fault that a host call answered; what is none is a mistake in this file, and ends the instance.
function faultOf(error) {
  if (error?.payload === undefined) throw error;
  return error.payload;
}

// What a call throws for the failure of its WIT result.
function failure(disposition, code, message) {
  return { disposition, code, message, retryAfterMs: undefined };
}

// One number for each value of a column: integers as they are, floats by their bits, all else byte by byte.
function* weights(column) {
  let slot = 0;
  for (const value of read(column.values)) {
    if (column.presence === undefined || column.presence[slot] === VALUE) yield weight(value, column.values.tag);
    slot += 1;
  }
}

const float = new DataView(new ArrayBuffer(8));

function weight(value, tag) {
  switch (typeof value) {
    case "boolean":
    case "bigint":
      return BigInt(value);
    case "string":
      return sum(encoder.encode(value));
    case "number":
      if (tag === "float64") {
        float.setFloat64(0, value);
        return float.getBigUint64(0);
      }
      if (tag === "float32") {
        float.setFloat32(0, value);
        return BigInt(float.getUint32(0));
      }
      return BigInt(value);
    default:
      return sum(value);
  }
}

function sum(bytes) {
  let total = 0;
  for (let at = 0; at < bytes.length; at += 1) total += bytes[at];
  return BigInt(total);
}

// The slots of a column, one a row, as JavaScript has them: 64 bits are a BigInt, bytes are a Uint8Array. Dates and times
// are numbers, counted from 2000-01-01.
function* read({ tag, val }) {
  switch (tag) {
    case "boolean":
      for (const flag of val) yield flag !== 0;
      return;
    case "uuid":
      for (let start = 0; start < val.length; start += 16) yield val.subarray(start, start + 16);
      return;
    case "bytes":
      yield* cut(val.data, val.ends);
      return;
    case "text":
      // `ends` counts bytes of UTF-8, and a JavaScript string counts units of UTF-16: cut first, then decode.
      for (const text of cut(encoder.encode(val.data), val.ends)) yield decoder.decode(text);
      return;
    default:
      yield* val;
  }
}

// The pieces of `data` that end at `ends`.
function* cut(data, ends) {
  let start = 0;
  for (const end of ends) {
    yield data.subarray(start, end);
    start = end;
  }
}
