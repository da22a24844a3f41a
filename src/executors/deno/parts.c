/* The parts of the `deno` executor on this machine: their paths, the missing ones, and how to get them. */
#define _GNU_SOURCE
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "executors/deno/deno.h"
#include "executors/deno/files.h"
#include "executors/registry.h"
#include "executors/subprocess/subprocess.h"

static bool is_there(const char *folder, const char *name, int mode)
{
	char path[PATH_MAX];
	int n = snprintf(path, sizeof path, "%s%s", folder, name);
	return n > 0 && (size_t)n < sizeof path && access(path, mode) == 0;
}

/* 'text', for a shell. */
static void add_quoted(struct cell__buf *out, const char *text, int *rc)
{
	*rc |= cell__buf_add_str(out, "'");
	for (; *text; text++)
		*rc |= *text == '\'' ? cell__buf_add_str(out, "'\\''") : cell__buf_add(out, text, 1);
	*rc |= cell__buf_add_str(out, "'");
}

static void say_fix(const struct cell__deno *deno, struct cell_executor_info *info)
{
	CELL_AUTO_BUF struct cell__buf command = CELL_BUF_INIT, script = CELL_BUF_INIT;
	int rc = cell__buf_printf(&script, "%s/install.sh", deno->runner_dir);
	rc |= cell__buf_add_str(&command, "sh ");
	if (rc == 0)
		add_quoted(&command, script.data, &rc);
	rc |= cell__buf_add_str(&command, " ");
	add_quoted(&command, deno->folder, &rc);
	if (rc == 0 && command.size < sizeof info->fix)
		memcpy(info->fix, command.data, command.size + 1);
}

void cell__deno_probe(struct cell__executor_host *host, struct cell_executor_info *info)
{
	const struct cell__deno *deno = *cell__executor_state(host, &cell__deno_executor);
	cell__subprocess_probe(host, info); /* the spawner */
	if (!info->available)
		return;
#ifndef __x86_64__
	info->available = 0;
	snprintf(info->reason, sizeof info->reason, "Deno is only available for x86-64");
	snprintf(info->advice, sizeof info->advice, "use another executor");
	return;
#endif
	if (is_there(deno->folder, CELL_DENO_PROGRAM, X_OK) && is_there(deno->folder, "/node_modules/pyodide/pyodide.asm.wasm", R_OK))
		return;
	info->available = 0;
	snprintf(info->reason, sizeof info->reason, "Deno " CELL_DENO_VERSION " and Pyodide " CELL_PYODIDE_VERSION " are not in %.120s",
		 deno->folder);
	snprintf(info->advice, sizeof info->advice, "run `workcell doctor --fix deno` (it needs npm)");
	say_fix(deno, info);
}

/* One name for each, so that they do not take turns at one file. */
char *cell__deno_snapshot_path(const struct cell__deno *deno, const char *preload)
{
	uint64_t hash = 14695981039346656037u; /* FNV-1a */
	const char *parts[] = { deno->runner_dir, "\n", deno->kernel_dir, "\n", preload };
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
		for (const char *c = parts[i]; *c; c++)
			hash = (hash ^ (unsigned char)*c) * 1099511628211u;
	struct cell__buf path = CELL_BUF_INIT;
	if (cell__buf_printf(&path, "%s/%016llx.snapshot", deno->folder, (unsigned long long)hash) < 0)
		return NULL;
	return cell__buf_take(&path);
}

/* Without links: Deno checks the resolved path. */
static char *real_folder(const char *folder, const char *name)
{
	char path[PATH_MAX], real[PATH_MAX];
	int n = snprintf(path, sizeof path, "%s%s", folder, name);
	if (n < 0 || (size_t)n >= sizeof path)
		return NULL;
	return cell__strdup(realpath(path, real) ? real : path);
}

static void free_deno(struct cell__deno *deno)
{
	free(deno->runner_dir);
	free(deno->kernel_dir);
	free(deno->folder);
	free(deno);
}

int cell__deno_create(struct cell__executor_host *host, const struct cell_engine_options *opts, void **ret_state, struct cell_error *err)
{
	struct cell__deno *deno = cell__alloc(1, sizeof *deno);
	if (!deno)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	char folder[PATH_MAX];
	static const char name[] = "deno-" CELL_DENO_VERSION "-" CELL_PYODIDE_VERSION;
	int n = opts->cache_dir ? snprintf(folder, sizeof folder, "%s/%s", opts->cache_dir, name)
				: snprintf(folder, sizeof folder, "%s/.cache/workcell/%s", cell__home_dir(), name);
	deno->supervisor = host->supervisor;
	deno->start_timeout_ms = opts->start_timeout_ms;
	deno->runner_dir = real_folder(host->lib_dir, "/deno");
	deno->kernel_dir = real_folder(host->lib_dir, "/kernel/workcell_kernel");
	deno->folder = n > 0 && (size_t)n < sizeof folder ? real_folder(folder, "") : NULL;
	if (!deno->runner_dir || !deno->kernel_dir || !deno->folder) {
		free_deno(deno);
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	}
	*ret_state = deno;
	return 0;
}

void cell__deno_destroy(void *state, void (*done)(void *arg), void *arg)
{
	free_deno(state);
	done(arg);
}
