/* The command line of a runner, with its permissions in Deno. Pure. */
#include <stdio.h>
#include <string.h>

#include "executors/deno/files.h"

#define WASM_PAGES 4096u                    /* of 64 KiB: the Python heap, 256 MiB */
#define JS_HEAP_MIB 256u
#define STACK_KIB 2900u                     /* of the worker's thread, which has some 4 MiB */
#define DATA_LIMIT_KIB (4u * 1024u * 1024u) /* RLIMIT_DATA; an idle runner has mapped a third of it */
#define FILES_LIMIT 128u                    /* RLIMIT_NOFILE */

const char *const cell__deno_env[] = { "DENO_DIR=/dev/null/x", "DENO_WEBGPU_BACKEND=none",         "DENO_NO_UPDATE_CHECK=1",
				       "NO_COLOR=1",           "DENO_TLS_CA_STORE=system,mozilla", /* whom the host trusts */ NULL };

/* A list of paths for a --allow flag: a comma in one of them is written twice. */
static int add_path(struct cell__buf *out, const char *folder, const char *name)
{
	int rc = out->data && out->data[out->size - 1] != '=' ? cell__buf_add_str(out, ",") : 0;
	for (int part = 0; part < 2; part++)
		for (const char *c = part ? name : folder; *c; c++)
			rc |= cell__buf_add(out, *c == ',' ? ",," : c, *c == ',' ? 2 : 1);
	return rc;
}

/* `times` over: a file: URL is encoded once, and once more inside a data: URL. */
static int add_encoded(struct cell__buf *out, const char *path, int times)
{
	static const char *const percent[] = { "%", "%25", "%2525" };
	int rc = 0;
	for (const unsigned char *c = (const unsigned char *)path; *c; c++) {
		if ((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || strchr("/-_.~", *c))
			rc |= cell__buf_add(out, c, 1);
		else
			rc |= cell__buf_printf(out, "%s%02X", percent[times - 1], *c);
	}
	return rc;
}

void cell__deno_command_finish(struct cell__deno_command *command)
{
	struct cell__buf *const parts[] = { &command->program, &command->pyodide, &command->read, &command->map,
					    &command->v8,      &command->runner,  &command->shell };
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		cell__buf_finish(parts[i]);
}

int cell__deno_command_init(struct cell__deno_command *command, const struct cell__deno *deno, const char *snapshot, const char *preload,
			    const char *network, const char *allow_net, struct cell_error *err)
{
	static const char *const pyodide_files[] = { "/pyodide.asm.wasm", "/python_stdlib.zip", "/pyodide.mjs", "/pyodide.asm.mjs",
						     "/pyodide-lock.json" };
	static const char *const runner_files[] = { "/worker.mjs",          "/hide.mjs",           "/channel.mjs", "/_workcell.py",
						    "/workcell_network.py", "/workcell_pyodide.py" };
	int rc = cell__buf_printf(&command->program, "%s" CELL_DENO_PROGRAM, deno->folder);
	rc |= cell__buf_printf(&command->pyodide, "%s/node_modules/pyodide", deno->folder);
	rc |= cell__buf_add_str(&command->read, "--allow-read=");
	for (size_t i = 0; i < sizeof pyodide_files / sizeof *pyodide_files; i++)
		rc |= add_path(&command->read, command->pyodide.data ? command->pyodide.data : "", pyodide_files[i]);
	for (size_t i = 0; i < sizeof runner_files / sizeof *runner_files; i++)
		rc |= add_path(&command->read, deno->runner_dir, runner_files[i]);
	rc |= add_path(&command->read, deno->kernel_dir, "");
	rc |= add_path(&command->read, snapshot, "");
	rc |= cell__buf_add_str(&command->map, "--import-map=data:application/json,%7B%22imports%22:%7B%22pyodide/%22:%22file://");
	rc |= add_encoded(&command->map, command->pyodide.data ? command->pyodide.data : "", 2);
	rc |= cell__buf_add_str(&command->map, "/%22%7D%7D");
	rc |= cell__buf_printf(&command->v8,
			       "--v8-flags=--disallow-code-generation-from-strings,--wasm-max-mem-pages=%u,--max-old-space-size=%u,"
			       "--stack-size=%u",
			       WASM_PAGES, JS_HEAP_MIB, STACK_KIB);
	rc |= cell__buf_printf(&command->runner, "%s/runner.mjs", deno->runner_dir);
	/* No core file, no file written at all, few descriptors, and memory that is not only JavaScript's. */
	rc |= cell__buf_printf(&command->shell, "ulimit -c 0; ulimit -f 0; ulimit -n %u; ulimit -d %u; exec \"$@\"", FILES_LIMIT,
			       DATA_LIMIT_KIB);
	if (rc != 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	/* docs/executors.md explains each flag. */
	const char *const argv[CELL_DENO_WORDS] = {
		"/bin/sh",
		"-c",
		command->shell.data,
		"sh",
		command->program.data,
		"run",
		"--quiet",
		"--no-prompt",
		"--no-config",
		"--no-lock",
		"--no-remote",
		"--no-npm",
		"--cached-only",
		"--unstable-worker-options",
		command->v8.data,
		command->map.data,
		command->read.data,
		allow_net,
		command->runner.data,
		command->pyodide.data,
		deno->kernel_dir,
		snapshot,
		preload,
		network,
		NULL,
	};
	memcpy(command->argv, argv, sizeof argv);
	return 0;
}
