/*
 * Who has what among several servers (durable/owners.h), asked and noted on a thread of its own, so that neither the loop waits for a storage nor these
 * questions for the saves that are on libuv's pool.
 *
 *     loop: a question, a change ──queue──▶ thread: takes what is there, in one go ──▶ loop: questions answered (peers.c), held answers leave
 *
 * The answer that tells a client of a new session is held until other servers can find it: of a request, of a task, and of a session whose code
 * has forked children.  What could not be noted, because the storage did not answer or has lost it, is noted again by cell__directory_sweep().
 */
#define _GNU_SOURCE
#include "server/pool.h"

#include <pthread.h>
#include <string.h>

#include "base/random.h"
#include "durable/owners.h"
#include "server/peers.h"

#define CHECK_US 5000000 /* whether the storage has forgotten */
#define KEEP_US ((int64_t)CELL_OWNER_EXPIRES_S * 1000000 / 3)

struct job {
	struct cell__owner_step step;
	struct cell__request *request; /* of a question */
	struct job *next;
};

struct cell__directory {
	struct cell_server *server;
	struct cell__owners *owners;
	char name[33]; /* of this process, for CELL_OWNER_CHECK */
	char key[65];  /* for CELL_OWNER_KEY: the one that was found, or a new one */
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct job *queue, **queue_end; /* guarded, with `ends` */
	bool ends;
	/* the loop's */
	uint64_t queued, done; /* jobs, which end in their order */
	struct cell__request *held;
	int64_t checked_us, kept_us;
	bool unsure; /* something may not have been noted */
};

/* What was taken off the queue. */
struct round {
	struct cell__task task; /* first */
	struct cell__directory *directory;
	struct job *jobs;
	size_t n;
	struct cell_error err; /* code 0: all were carried out */
};

/* ---- on the loop ---- */

static void release_held(struct cell__directory *directory)
{
	struct cell__request **at = &directory->held, *request;

	while ((request = *at)) {
		if (request->announced > directory->done) {
			at = &request->held_next;
			continue;
		}
		*at = cell__take_ptr(request->held_next);
		request->held = false;
		if (request->task) {
			cell__task_release(request);
			continue;
		}
		request->state = CELL_REQUEST_ANSWERED;
		cell__request_resume(request);
	}
}

static void finish_job(struct cell__directory *directory, struct job *job, const struct cell_error *err)
{
	switch (job->step.verb) {
	case CELL_OWNER_FIND:
		cell__peers_found(job->request, job->step.url, err);
		break;
	case CELL_OWNER_ADD:
		if (err && !directory->unsure)
			cell__server_log(directory->server, CELL_LOG_WARN, "other servers do not find new sessions: %s", err->msg);
		directory->unsure |= err != NULL;
		break;
	case CELL_OWNER_CHECK:
		directory->unsure |= err || !*job->step.url;
		break;
	case CELL_OWNER_KEY:
		if (!err && cell__greeting_key(directory->server, job->step.url))
			strcpy(directory->key, job->step.url);
		break;
	case CELL_OWNER_KEEP:
		directory->unsure |= err != NULL;
		break;
	case CELL_OWNER_REMOVE: /* a hint that stays is wrong, and costs a request a little */
		break;
	}
	free(job);
}

static void handle_round(struct cell__task *task)
{
	struct round *round = (struct round *)task;
	struct cell__directory *directory = round->directory;
	struct job *job = round->jobs, *next;

	for (; job; job = next) {
		next = job->next;
		finish_job(directory, job, round->err.code ? &round->err : NULL);
	}
	directory->done += round->n;
	release_held(directory);
	cell__server_advance(directory->server);
	free(round);
}

/* ---- the thread ---- */

static void run_round(struct cell__directory *directory, struct round *round)
{
	struct cell__owner_step *steps[CELL_OWNER_STEPS];
	size_t n = 0;

	for (struct job *job = round->jobs; job; job = job->next)
		steps[n++] = &job->step;
	if (cell__owners_run(directory->owners, steps, n, &round->err) < 0 && !round->err.code)
		round->err.code = CELL_E_IO;
	cell__loop_post(directory->server->engine->loop, &round->task);
}

static void *run_thread(void *arg)
{
	struct cell__directory *directory = arg;
	struct round *round;

	pthread_mutex_lock(&directory->lock);
	while (true) {
		while (!directory->queue && !directory->ends)
			pthread_cond_wait(&directory->changed, &directory->lock);
		if (!directory->queue)
			break;
		round = cell__alloc(1, sizeof(*round));
		if (!round) { /* memory comes back */
			pthread_mutex_unlock(&directory->lock);
			sched_yield();
			pthread_mutex_lock(&directory->lock);
			continue;
		}
		struct job **at = &directory->queue;

		*round = (struct round){ .task.fn = handle_round, .directory = directory, .jobs = directory->queue };
		while (*at && round->n < CELL_OWNER_STEPS) {
			at = &(*at)->next;
			round->n++;
		}
		directory->queue = *at;
		*at = NULL;
		if (!directory->queue)
			directory->queue_end = &directory->queue;
		pthread_mutex_unlock(&directory->lock);
		run_round(directory, round);
		pthread_mutex_lock(&directory->lock);
	}
	pthread_mutex_unlock(&directory->lock);
	return NULL;
}

static bool ask(struct cell_server *server, enum cell__owner_verb verb, const char *id, struct cell__request *request)
{
	struct cell__directory *directory = server->directory;
	struct job *job = directory ? cell__alloc(1, sizeof(*job)) : NULL;

	if (!job)
		return false;
	*job = (struct job){ .step.verb = verb, .request = request };
	strcpy(job->step.id, id);
	if (verb == CELL_OWNER_KEY)
		strcpy(job->step.url, directory->key);
	pthread_mutex_lock(&directory->lock);
	*directory->queue_end = job;
	directory->queue_end = &job->next;
	pthread_cond_signal(&directory->changed);
	pthread_mutex_unlock(&directory->lock);
	directory->queued++;
	return true;
}

/* One that was emptied gets the key again that all have. */
static void ask_for_key(struct cell_server *server)
{
	(void)ask(server, CELL_OWNER_KEY, "", NULL);
}

/* ---- for others ---- */

int cell__directory_start(struct cell_server *server, struct cell_error *err)
{
	struct cell__directory *directory = cell__alloc(1, sizeof(*directory));

	if (!directory)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for the server");
	*directory = (struct cell__directory){ .server = server, .queue_end = &directory->queue };
	cell__random_hex(directory->name, 32);
	cell__random_hex(directory->key, 64);
	if (cell__owners_open(server->session.saved_dir, server->opts.advertise, &directory->owners, err) < 0) {
		free(directory);
		return -1;
	}
	pthread_mutex_init(&directory->lock, NULL);
	pthread_cond_init(&directory->changed, NULL);
	if (pthread_create(&directory->thread, NULL, run_thread, directory)) {
		cell__owners_close(directory->owners);
		free(directory);
		return cell_fail(err, CELL_E_NOMEM, EAGAIN, "start a thread that asks who has a session");
	}
	server->directory = directory;
	ask_for_key(server); /* before the first question for an owner */
	return 0;
}

void cell__directory_stop(struct cell_server *server)
{
	struct cell__directory *directory = cell__take_ptr(server->directory);

	if (!directory)
		return;
	pthread_mutex_lock(&directory->lock);
	directory->ends = true;
	pthread_cond_signal(&directory->changed);
	pthread_mutex_unlock(&directory->lock);
	pthread_join(directory->thread, NULL);
	pthread_mutex_destroy(&directory->lock);
	pthread_cond_destroy(&directory->changed);
	cell__owners_close(directory->owners);
	free(directory);
}

bool cell__directory_is_idle(const struct cell_server *server)
{
	return !server->directory || server->directory->queued == server->directory->done;
}

void cell__directory_add(struct cell_server *server, const char *id, uint64_t *ret_announced)
{
	if (!server->directory)
		return;
	if (!ask(server, CELL_OWNER_ADD, id, NULL))
		server->directory->unsure = true;
	else if (ret_announced)
		*ret_announced = server->directory->queued;
}

void cell__directory_remove(struct cell_server *server, const char *id)
{
	(void)ask(server, CELL_OWNER_REMOVE, id, NULL);
}

void cell__directory_keep(struct cell_server *server, const char *id)
{
	(void)ask(server, CELL_OWNER_KEEP, id, NULL);
}

bool cell__directory_find(struct cell__request *request, const char *id)
{
	return ask(request->server, CELL_OWNER_FIND, id, request);
}

bool cell__directory_hold(struct cell__request *request)
{
	struct cell__directory *directory = request->server->directory;

	/* Of the session, and what its code has forked. */
	if (request->served && request->served->announced > request->announced)
		request->announced = request->served->announced;
	if (!directory || request->announced <= directory->done)
		return false;
	request->held = true;
	request->held_next = directory->held;
	directory->held = request;
	return true;
}

void cell__directory_forget(struct cell__request *request)
{
	struct cell__request **at;

	if (!request->held)
		return;
	at = &request->server->directory->held;
	while (*at != request)
		at = &(*at)->held_next;
	*at = request->held_next;
	request->held = false;
}

void cell__directory_sweep(struct cell_server *server, int64_t now_us)
{
	struct cell__directory *directory = server->directory;

	if (!directory || !cell__directory_is_idle(server) || server->stopping)
		return;
	if (directory->unsure || now_us - directory->kept_us > KEEP_US) {
		directory->unsure = false;
		directory->kept_us = now_us;
		for (const struct cell__served *served = server->sessions; served; served = served->next)
			cell__directory_keep(server, served->id);
		cell__batches_keep(server);
		cell__tasks_keep(server);
		if (server->mcp)
			cell__mcp_keep(server, true);
	}
	if (now_us - directory->checked_us > CHECK_US) {
		directory->checked_us = now_us;
		(void)ask(server, CELL_OWNER_CHECK, directory->name, NULL);
		ask_for_key(server);
	}
}
