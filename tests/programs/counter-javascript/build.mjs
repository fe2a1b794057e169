// Makes a component of counter.js.
//
//     npm ci && node build.mjs [SOURCE [WIT [COMPONENT]]]

import { writeFile } from "node:fs/promises";

import { componentize } from "@bytecodealliance/componentize-js";

const [source = "counter.js", wit = "../../../wit/v0.1", target = "counter-javascript.wasm"] = process.argv.slice(2);

const { component } = await componentize({
  sourcePath: source,
  witPath: wit,
  worldName: "sink-plugin",
  // A counter needs none of them, and what is not built in is not asked of the host.
  disableFeatures: ["random", "stdio", "clocks", "http", "fetch-event"],
});
await writeFile(target, component);
