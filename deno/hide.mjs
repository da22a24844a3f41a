// Imported before everything else in the worker.  Keeps what the worker itself needs of Deno, and takes the rest out of
// reach: Pyodide then takes this for a plain web worker, and code that gets hold of the global object finds little there.
// This is the second layer; the first is that the worker has no permissions.
const { stdout } = Deno;

export const writeSync = (bytes) => stdout.writeSync(bytes);
export const post = globalThis.postMessage.bind(globalThis);

// What Pyodide asks for by URL: the bytes that the main isolate handed over.
export const files = new Map();

const GONE = [
	"Deno", "process", "Buffer", "global", "setImmediate", "clearImmediate", "Worker", "caches", "navigator", "EventSource",
	"WebSocket", "WebSocketStream", "WebSocketError", "XMLHttpRequest", "BroadcastChannel", "localStorage", "sessionStorage",
	"Storage", "Cache", "CacheStorage", "GPU", "close", "postMessage", "prompt", "alert", "confirm", "WebTransport",
	"importScripts", "SharedWorker", "MessageChannel", "ShadowRealm", "eval",
];

export function hide() {
	for (const name of [...GONE, "fetch", "WorkerGlobalScope", "self"])
		delete globalThis[name];
	// Pyodide tells it of fatal errors, which on_fatal gets as well.
	const nothing = () => {};
	globalThis.console = { log: nothing, warn: nothing, error: nothing, info: nothing, debug: nothing };
	for (const name of Object.getOwnPropertyNames(globalThis))
		if (name.startsWith("GPU") || name.startsWith("WebGPU"))
			delete globalThis[name];
}

for (const name of ["Deno", "process", "Buffer", "global"])
	delete globalThis[name];
globalThis.fetch = (url) => {
	const name = String(url).split("/").pop();
	const bytes = files.get(name);
	files.delete(name);
	return Promise.resolve(new Response(bytes, {
		status: bytes ? 200 : 404, headers: { "content-type": name.endsWith(".wasm") ? "application/wasm" : "application/zip" },
	}));
};
