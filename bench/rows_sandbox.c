/*
 * Rows of the `sandbox` executor.  What stands in the floor's column here is what it is compared with: the same thing in
 * `subprocess`, or python3 started by bubblewrap; both are measured in turns.
 */
#define _GNU_SOURCE 1
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rows_internal.h"

#define MANY_SANDBOXES 300
#define POOL_REFILL_US 80000 /* between opens: the pool is full again */
#define OFFENDERS 5
#define DOCKER_IMAGES 8 /* that are tried */

static int open_one(struct cell__bench *b, struct cell_engine *engine, const char *executor, struct cell_session **ret)
{
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	struct cell_error err = { 0 };

	opts.executor = executor;
	opts.python = b->python;
	opts.cwd = b->folder.path;
	return cell_session_open(engine, &opts, ret, &err) ? complain_err("open a session", &err) : 0;
}

static int time_open(struct cell__bench *b, struct cell_engine *engine, const char *executor, double *ret_ns)
{
	struct cell_session *session = NULL;
	double began = now_ns();
	int r = open_one(b, engine, executor, &session);

	if (!r)
		r = run_cell(session, "1+1", "2", NULL, NULL);
	*ret_ns = now_ns() - began;
	cell_session_close(session);
	return r;
}

/* Is there a sandbox at all?  If not, the row is left out and says why. */
bool cell__bench_has_sandbox(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_executor_info info = { .size = sizeof(info) };

	for (size_t i = 0; !cell_executor_probe(b->engine, i, &info); i++)
		if (!strcmp(info.name, "sandbox") && info.available && !info.reason[0])
			return true;
	row->skipped = "no sandbox of level full on this machine";
	return false;
}

static int sample_opens(struct cell__bench *b, struct cell_engine *engine, int n, int pause_us, struct cell__bench_row *row)
{
	double ns;

	for (int i = -3; i < n; i++)
		for (int side = 0; side < 2; side++) {
			if (pause_us)
				usleep((useconds_t)pause_us);
			if (time_open(b, engine, side ? "subprocess" : "sandbox", &ns) ||
			    (i >= 0 && add_sample(side ? &row->floor : &row->cell, ns)))
				return -1;
		}
	return 0;
}

int cell__bench_measure_sandbox_open(struct cell__bench *b, struct cell__bench_row *row)
{
	return cell__bench_has_sandbox(b, row) ? sample_opens(b, b->engine, rounds(b, 200), 5000, row) : 0;
}

/* As it comes, with a pool, and that is full. */
static int create_pooled(struct cell__bench *b, struct cell_engine **ret_engine)
{
	struct cell_engine_options opts = CELL_ENGINE_OPTIONS_INIT;
	struct cell_session_options kind = CELL_SESSION_OPTIONS_INIT;
	struct cell_error err = { 0 };

	kind.executor = "sandbox";
	kind.python = b->python;
	kind.cwd = b->folder.path;
	if (!cell_engine_create(&opts, ret_engine, &err) && !cell_engine_prewarm(*ret_engine, b->python, NULL, NULL, &err) &&
	    !cell_session_prewarm(*ret_engine, &kind, &err))
		return 0;
	return complain_err("start an engine", &err);
}

int cell__bench_measure_sandbox_pool(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_engine *engine = NULL;
	int r;

	if (!cell__bench_has_sandbox(b, row))
		return 0;
	r = create_pooled(b, &engine);
	if (!r)
		r = sample_opens(b, engine, rounds(b, 60), POOL_REFILL_US, row);
	cell_engine_destroy(engine);
	return r;
}

int cell__bench_measure_sandbox_cell(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_session *both[2] = { NULL, NULL };
	double ns;
	int r = -1;

	if (!cell__bench_has_sandbox(b, row))
		return 0;
	if (open_one(b, b->engine, "sandbox", &both[0]) || open_one(b, b->engine, "subprocess", &both[1]))
		goto out;
	for (int round = -1; round < rounds(b, 20); round++)
		for (int side = 0; side < 2; side++)
			for (int i = 0; i < 100; i++)
				if (run_cell(both[side], "1+1", "2", NULL, &ns) ||
				    (round >= 0 && add_sample(side ? &row->floor : &row->cell, ns)))
					goto out;
	r = 0;
out:
	cell_session_close(both[0]);
	cell_session_close(both[1]);
	return r;
}

/* A program that prints the 2 of 1 + 1, from its start until that is there.  0 when it did. */
static int time_program(char *const argv[], char *const envp[], double *ret_ns)
{
	posix_spawn_file_actions_t actions;
	int out[2], status = -1;
	char answer[8] = "";
	pid_t pid;
	double began = now_ns();

	if (pipe2(out, O_CLOEXEC))
		return complain("pipe failed");
	posix_spawn_file_actions_init(&actions);
	posix_spawn_file_actions_adddup2(&actions, out[1], 1);
	posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
	int rc = posix_spawnp(&pid, argv[0], &actions, NULL, argv, envp);
	posix_spawn_file_actions_destroy(&actions);
	close(out[1]);
	if (!rc) {
		rc = read(out[0], answer, sizeof(answer) - 1) == 2 && !strcmp(answer, "2\n") ? 0 : -1;
		*ret_ns = now_ns() - began;
		waitpid(pid, &status, 0);
	}
	close(out[0]);
	return rc || status ? 1 : 0;
}

/* bwrap with the same namespaces and much the same mounts, and a plain python3 in it. */
static int time_bwrap(struct cell__bench *b, double *ret_ns)
{
	char *argv[] = { (char *)"bwrap",     (char *)"--unshare-all", (char *)"--die-with-parent",
			 (char *)"--ro-bind", (char *)"/usr",          (char *)"/usr",
			 (char *)"--symlink", (char *)"usr/lib",       (char *)"/lib",
			 (char *)"--symlink", (char *)"usr/lib64",     (char *)"/lib64",
			 (char *)"--symlink", (char *)"usr/bin",       (char *)"/bin",
			 (char *)"--proc",    (char *)"/proc",         (char *)"--dev",
			 (char *)"/dev",      (char *)"--tmpfs",       (char *)"/tmp",
			 (char *)"--bind",    b->folder.path,          (char *)"/work",
			 (char *)"--chdir",   (char *)"/work",         (char *)"/usr/bin/python3",
			 (char *)"-c",        (char *)"print(1 + 1)",  NULL };
	char *const envp[] = { (char *)"PATH=/usr/bin:/bin", NULL };

	return time_program(argv, envp, ret_ns);
}

static int time_docker(char *image, double *ret_ns)
{
	char *argv[] = { (char *)"docker",
			 (char *)"run",
			 (char *)"--rm",
			 (char *)"--pull",
			 (char *)"never",
			 (char *)"--network",
			 (char *)"none",
			 (char *)"--entrypoint",
			 (char *)"python3",
			 image,
			 (char *)"-c",
			 (char *)"print(1 + 1)",
			 NULL };

	return time_program(argv, environ, ret_ns); /* $DOCKER_HOST says where the engine is */
}

/* An image of the engine here that has a python3; nothing is fetched.  NULL, or why there is none. */
static const char *find_image(char *image, size_t size)
{
	FILE *list = popen("docker image ls --format '{{.ID}}' 2>/dev/null", "re");
	const char *problem = "no image with a python3 in it";
	double ns;

	if (!list)
		return "docker cannot be run";
	for (int i = 0; problem && i < DOCKER_IMAGES && fgets(image, (int)size, list); i++) {
		image[strcspn(image, "\n")] = '\0';
		if (!time_docker(image, &ns))
			problem = NULL;
	}
	while (fgetc(list) != EOF) {
	}
	return pclose(list) ? "no engine (docker does not answer)" : problem;
}

struct rival {
	int (*time)(struct cell__bench *b, char *image, double *ret_ns);
	char image[80];
	int rounds;
};

static int time_rival_bwrap(struct cell__bench *b, char *image, double *ret_ns)
{
	(void)image;
	return time_bwrap(b, ret_ns);
}

static int time_rival_docker(struct cell__bench *b, char *image, double *ret_ns)
{
	(void)b;
	return time_docker(image, ret_ns);
}

/* In turns.  pooled: the engine as it comes; else each sandbox is made when it is asked for. */
static int measure_against(struct cell__bench *b, struct cell__bench_row *row, struct rival *rival, bool pooled)
{
	struct cell_engine *own = NULL;
	double ns;
	int r = pooled ? create_pooled(b, &own) : 0;

	for (int i = -2; !r && i < rounds(b, rival->rounds); i++) {
		r = time_open(b, own ? own : b->engine, "sandbox", &ns) || (i >= 0 && add_sample(&row->cell, ns)) ? -1 : 0;
		if (!r && rival->time(b, rival->image, &ns))
			r = complain("what a sandbox is compared with failed");
		if (!r && i >= 0)
			r = add_sample(&row->floor, ns);
		if (own)
			usleep(POOL_REFILL_US);
	}
	cell_engine_destroy(own);
	return r;
}

static int measure_docker(struct cell__bench *b, struct cell__bench_row *row, bool pooled)
{
	struct rival docker = { .time = time_rival_docker, .rounds = 12 };

	if (!cell__bench_has_sandbox(b, row) || (row->skipped = find_image(docker.image, sizeof(docker.image))))
		return 0;
	return measure_against(b, row, &docker, pooled);
}

int cell__bench_measure_sandbox_docker(struct cell__bench *b, struct cell__bench_row *row)
{
	return measure_docker(b, row, true);
}

int cell__bench_measure_sandbox_docker_bare(struct cell__bench *b, struct cell__bench_row *row)
{
	return measure_docker(b, row, false);
}

/* A container that is up already: a session in it, open to first result, against a container for it alone. */
int cell__bench_measure_container_open(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_container_options container = CELL_CONTAINER_OPTIONS_INIT;
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	struct cell_session *warm = NULL, *session;
	struct cell_error err = { 0 };
	char image[80];
	double ns;
	int r = -1;

	/* Made from this build where scripts/docker_engine.py has an engine. */
	if (getenv("WORKCELL_TEST_IMAGE"))
		snprintf(image, sizeof(image), "%s", getenv("WORKCELL_TEST_IMAGE"));
	else
		snprintf(image, sizeof(image), "workcell:%s", cell_version());
	container.engine = getenv("DOCKER_HOST");
	container.image = image;
	container.network_disabled = 1;
	opts.executor = "container";
	opts.container = &container;
	if (cell_session_open(b->engine, &opts, &warm, &err)) {
		row->skipped = "no container engine, or no image (workcell container build)";
		return 0;
	}
	for (int i = -1; i < rounds(b, 12); i++) {
		/* Several of them to one of docker's, which is what takes the time. */
		for (int k = 0; k < 5; k++) {
			double began = now_ns();

			if (cell_session_open(b->engine, &opts, &session, &err)) {
				complain_err("open a session in a container", &err);
				goto out;
			}
			int failed = run_cell(session, "1+1", "2", NULL, NULL);
			ns = now_ns() - began;
			cell_session_close(session);
			if (failed || (i >= 0 && add_sample(&row->cell, ns)))
				goto out;
		}
		if (time_docker(image, &ns) || (i >= 0 && add_sample(&row->floor, ns))) {
			complain("docker run failed");
			goto out;
		}
	}
	r = 0;
out:
	cell_session_close(warm);
	return r;
}

static int measure_bwrap(struct cell__bench *b, struct cell__bench_row *row, bool pooled)
{
	struct rival bwrap = { .time = time_rival_bwrap, .rounds = 40 };
	double ns;

	if (!cell__bench_has_sandbox(b, row))
		return 0;
	if (time_bwrap(b, &ns)) {
		row->skipped = "bwrap (bubblewrap) does not run here";
		return 0;
	}
	return measure_against(b, row, &bwrap, pooled);
}

int cell__bench_measure_sandbox_bwrap(struct cell__bench *b, struct cell__bench_row *row)
{
	return measure_bwrap(b, row, true);
}

int cell__bench_measure_sandbox_bwrap_bare(struct cell__bench *b, struct cell__bench_row *row)
{
	return measure_bwrap(b, row, false);
}

/* Programs in fresh processes of one sandbox, as POST /run_code runs them, one after the other. */
int cell__bench_measure_sandbox_script(struct cell__bench *b, struct cell__bench_row *row)
{
	static const char cell[] = "%%workcell_script\n10000 0 0\nprint(1 + 1)";
	struct cell_session_options opts = CELL_SESSION_OPTIONS_INIT;
	struct cell_session *session = NULL;
	struct cell_error err = { 0 };
	double ns;
	int r = 0;

	if (!cell__bench_has_sandbox(b, row))
		return 0;
	if (time_bwrap(b, &ns)) {
		row->skipped = "bwrap (bubblewrap) does not run here";
		return 0;
	}
	opts.executor = "sandbox";
	opts.python = b->python;
	opts.workspace_mode = "none";
	opts.zygote_owner = "\x1fprograms"; /* as the server's: CELL__ZYGOTE_PROGRAMS */
	if (cell_session_open(b->engine, &opts, &session, &err))
		return complain_err("open a session", &err);
	for (int i = -2; !r && i < rounds(b, 40); i++) {
		for (int k = 0; !r && k < 10; k++) {
			struct cell_result *result = NULL;
			struct cell_text text = { 0 };
			double began = now_ns();

			r = cell_session_run(session, cell, sizeof(cell) - 1, NULL, &result, &err);
			ns = now_ns() - began;
			if (!r)
				cell_result_stdout(result, &text);
			if (r || cell_result_error(result) || text.size != 2)
				r = complain("a program in a fresh process failed");
			else if (i >= 0)
				r = add_sample(&row->cell, ns);
			cell_result_destroy(result);
		}
		if (!r && (time_bwrap(b, &ns) || (i >= 0 && add_sample(&row->floor, ns))))
			r = complain("bwrap failed");
	}
	cell_session_close(session);
	return r;
}

int cell__bench_measure_sandbox_call(struct cell__bench *b, struct cell__bench_row *row)
{
	return cell__bench_has_sandbox(b, row) ? cell__bench_executor_call(b, row, "sandbox") : 0;
}

int cell__bench_measure_sandbox_reset(struct cell__bench *b, struct cell__bench_row *row)
{
	return cell__bench_has_sandbox(b, row) ? cell__bench_executor_reset(b, row, "sandbox") : 0;
}

int cell__bench_measure_sandbox_memory(struct cell__bench *b, struct cell__bench_row *row)
{
	return cell__bench_has_sandbox(b, row) ? cell__bench_executor_memory(b, row, "sandbox") : 0;
}

/* All open at the same time, each answers; the time is that of each open. */
int cell__bench_measure_sandbox_many(struct cell__bench *b, struct cell__bench_row *row)
{
	struct cell_session *sessions[MANY_SANDBOXES] = { NULL };
	int count = b->quick ? MANY_SANDBOXES / 4 : MANY_SANDBOXES, r = -1;

	if (!cell__bench_has_sandbox(b, row))
		return 0;
	for (int i = 0; i < count; i++) {
		double began = now_ns();

		if (open_one(b, b->engine, "sandbox", &sessions[i]) || run_cell(sessions[i], "1+1", "2", NULL, NULL) ||
		    add_sample(&row->cell, now_ns() - began)) {
			complain("sandbox %d of %d did not come up", i + 1, count);
			goto out;
		}
	}
	for (int i = 0; i < count; i++)
		if (run_cell(sessions[i], "2+2", "4", NULL, NULL))
			goto out;
	r = 0;
out:
	for (int i = 0; i < count; i++)
		cell_session_close(sessions[i]);
	return r;
}

/* A quiet session's cells (floor), and the same while five sandboxes do their worst. */
int cell__bench_measure_sandbox_starved(struct cell__bench *b, struct cell__bench_row *row)
{
	static const char *const worst[OFFENDERS] = {
		"import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
		"kept = []\nwhile True:\n    kept.append(bytearray(1 << 20))",
		"import os\nfor i in range(4): os.fork()\nwhile True: pass",
		"import os\nwhile True:\n    try:\n        os.dup(1)\n    except OSError:\n        pass",
		"while True: print('x' * 10000)",
	};
	struct cell_session *quiet = NULL, *bad[OFFENDERS] = { NULL };
	struct cell_error err = { 0 };
	double ns;
	int r = -1;

	if (!cell__bench_has_sandbox(b, row))
		return 0;
	if (open_one(b, b->engine, "sandbox", &quiet))
		return -1;
	for (int i = 0; i < 300; i++)
		if (run_cell(quiet, "1+1", "2", NULL, &ns) || (i >= 100 && add_sample(&row->floor, ns)))
			goto out;
	for (int i = 0; i < OFFENDERS; i++)
		if (open_one(b, b->engine, "sandbox", &bad[i]) ||
		    cell_session_start(bad[i], worst[i], strlen(worst[i]), NULL, NULL, &err)) {
			complain_err("start an offender", &err);
			goto out;
		}
	usleep(500000);
	for (int i = 0; i < rounds(b, 1000); i++)
		if (run_cell(quiet, "1+1", "2", NULL, &ns) || add_sample(&row->cell, ns))
			goto out;
	r = 0;
out:
	for (int i = 0; i < OFFENDERS; i++)
		cell_session_close(bad[i]);
	cell_session_close(quiet);
	return r;
}
