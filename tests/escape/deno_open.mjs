// Tries expressions of JavaScript in a worker as the runner makes it, but with everything left in reach.
// stdin: {name: expression}; stdout: {name: what was raised, or "GOT THROUGH: value"}.
if (globalThis.WorkerGlobalScope) {
	const AsyncFunction = (async () => {}).constructor;
	globalThis.onmessage = async ({ data }) => {
		const outcomes = {};
		let fail;
		// Some refusals come out of a later turn of the loop.
		for (const kind of ["unhandledrejection", "error"])
			globalThis.addEventListener(kind, (event) => {
				event.preventDefault();
				fail?.(event.reason ?? event.error);
			});
		for (const [name, expression] of Object.entries(data)) {
			let timer;
			const late = new Promise((_, no) => {
				fail = no;
				timer = setTimeout(() => no(new Error("HANGS")), 10000);
			});
			try {
				const value = await Promise.race([new AsyncFunction(`return (${expression})`)(), late]);
				outcomes[name] = `GOT THROUGH: ${String(value).slice(0, 100)}`;
			} catch (error) {
				outcomes[name] = `${error?.name}: ${error?.message ?? error}`;
			}
			clearTimeout(timer);
		}
		postMessage(outcomes);
	};
} else {
	const attempts = JSON.parse(new TextDecoder().decode(await new Response(Deno.stdin.readable).arrayBuffer()));
	const worker = new Worker(import.meta.url, { type: "module", deno: { permissions: "none" } });
	worker.onmessage = ({ data }) => {
		Deno.stdout.writeSync(new TextEncoder().encode(JSON.stringify(data)));
		Deno.exit(0);
	};
	worker.postMessage(attempts);
}
