// The TypeScript SDKs as clients: judge.mjs sdk1|legacy|auto SECONDS http URL TOKEN | stdio COMMAND...
//     sdk1: @modelcontextprotocol/sdk; else @modelcontextprotocol/client with this mode of finding the revision
const [which, seconds, kind, ...where] = process.argv.slice(2);
const CALL = "__import__('json').loads(tools.probe.go(a='x'))['argv'][-1]";
const IMAGE = "import os\nclass P:\n    def _repr_png_(self): return b'\\x89PNG\\r\\n\\x1a\\n' + os.urandom(3 << 20)\nP()";
const PACKAGES = process.env.PACKAGES;
let sdk, http, stdio, form;
if (which === "sdk1") {
    const root = `${PACKAGES}/@modelcontextprotocol/sdk/dist/esm/`;
    sdk = await import(root + "client/index.js");
    http = (await import(root + "client/streamableHttp.js")).StreamableHTTPClientTransport;
    stdio = (await import(root + "client/stdio.js")).StdioClientTransport;
    form = (await import(root + "types.js")).ElicitRequestSchema;
} else {
    const root = `${PACKAGES}/@modelcontextprotocol/client/dist/`;
    sdk = await import(root + "index.mjs");
    http = sdk.StreamableHTTPClientTransport;
    stdio = (await import(root + "stdio.mjs")).StdioClientTransport;
    form = "elicitation/create";
}
const client = new sdk.Client({ name: "judge", version: "1" },
    { capabilities: { elicitation: {} }, ...(which === "sdk1" ? {} : { versionNegotiation: { mode: which } }) });
client.setRequestHandler(form, async () => ({ action: "accept", content: { decision: "accept" } }));
await client.connect(kind === "http" ? new http(new URL(where[0]), { requestInit: { headers: { Authorization: "Bearer " + where[1] } } }) : new stdio({ command: where[0], args: where.slice(1) }));

// Its own limit is 60 s; progress sets it back.
const options = { resetTimeoutOnProgress: true, maxTotalTimeout: 600000, onprogress: () => {} };
const call = (name, args, more = {}) => which === "sdk1" ? client.callTool({ name, arguments: args }, undefined, { ...options, ...more })
    : client.callTool({ name, arguments: args }, { ...options, ...more });
const found = {};
const first = (await call("run_code", { code: "x = 42" })).structuredContent;
const session = first.session ? { session: first.session } : {};
found.value = (await call("run_code", { code: "x", ...session })).structuredContent.value;
found.silent = (await call("run_code", { code: `import time; time.sleep(${seconds}); 'slept'`, ...session })).structuredContent.value;
const stop = new AbortController();
setTimeout(() => stop.abort(), 1000);
try {
    await call("run_code", { code: "time.sleep(600)", ...session }, { signal: stop.signal });
    found.cancelled = false;
} catch {
    found.cancelled = (await call("run_code", { code: "x", ...session })).structuredContent.value === 42;
}
const shown = await call("run_code", { code: IMAGE, ...session });
found.image = shown.content.filter((part) => part.type === "image").map((part) => Buffer.from(part.data, "base64").length);
found.approved = (await call("run_code", { code: CALL, ...session })).structuredContent.value;
const { job } = (await call("run_code", { code: "time.sleep(1); 'went on'", wait_ms: 0, ...session })).structuredContent;
for (let i = 0; i < 100 && !found.job; i++)
    found.job = (await call("get_job", { job, wait_ms: 1000 })).structuredContent.value;
console.log(JSON.stringify(found));
await client.close();
process.exit(0);
