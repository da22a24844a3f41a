#define _GNU_SOURCE 1
#include "progress.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/words.h"
#include "cli.h"

#define SILENT_US 1000000 /* at first */
#define DRAW_US 200000    /* a terminal */
#define LINE_US 5000000   /* elsewhere */
#define LINE_BYTES 240

static struct {
	pthread_mutex_t lock; /* guards the rest, and what is on the screen */
	pthread_cond_t ended;
	pthread_t thread;
	bool runs, stop, terminal, drawn;
	const char *what;
	int64_t began_us;
	uint64_t done, total;
} progress = { .lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER };

/* "name: 3 MiB of 8 MiB, 1.5 MiB/s, 3.3 s left" */
static void make_line(char line[static LINE_BYTES])
{
	double seconds = (double)(cell__now_us() - progress.began_us) / 1e6, rate = (double)progress.done / seconds;
	char done[32], total[32], speed[32], span[32];

	cell__duration_words(seconds * 1000, span);
	cell__size_words(progress.done, done);
	cell__size_words(progress.total, total);
	cell__size_words((uint64_t)rate, speed);
	if (!progress.done) {
		snprintf(line, LINE_BYTES, "%.60s: %s", progress.what, span);
	} else if (progress.total > progress.done) {
		cell__duration_words((double)(progress.total - progress.done) / rate * 1000, span);
		snprintf(line, LINE_BYTES, "%.60s: %s of %s, %s/s, %s left", progress.what, done, total, speed, span);
	} else {
		snprintf(line, LINE_BYTES, "%.60s: %s, %s/s", progress.what, done, speed);
	}
}

static void clear(void)
{
	if (progress.drawn)
		dprintf(STDERR_FILENO, "\r\033[K");
	progress.drawn = false;
}

static void *draw(void *arg)
{
	int64_t next_us = progress.began_us + (progress.terminal ? SILENT_US : LINE_US);
	char line[LINE_BYTES];

	(void)arg;
	pthread_mutex_lock(&progress.lock);
	while (!progress.stop) {
		struct timespec until;
		int64_t wait_us = next_us - cell__now_us();

		if (wait_us > 0) {
			clock_gettime(CLOCK_REALTIME, &until);
			until.tv_sec += wait_us / 1000000;
			until.tv_nsec += wait_us % 1000000 * 1000;
			until.tv_sec += until.tv_nsec / 1000000000;
			until.tv_nsec %= 1000000000;
			pthread_cond_timedwait(&progress.ended, &progress.lock, &until);
			continue;
		}
		next_us = cell__now_us() + (progress.terminal ? DRAW_US : LINE_US);
		make_line(line);
		dprintf(STDERR_FILENO, progress.terminal ? "\r\033[K%s" : "%s\n", line);
		progress.drawn = progress.terminal;
	}
	clear();
	pthread_mutex_unlock(&progress.lock);
	return NULL;
}

void cell__progress_begin(const char *what)
{
	const char *term = getenv("TERM");

	if (progress.runs)
		return;
	progress.what = what;
	progress.began_us = cell__now_us();
	progress.done = progress.total = 0;
	progress.stop = progress.drawn = false;
	progress.terminal = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
	progress.runs = pthread_create(&progress.thread, NULL, draw, NULL) == 0;
}

void cell__progress_set(uint64_t done, uint64_t total)
{
	pthread_mutex_lock(&progress.lock);
	progress.done = done;
	progress.total = total;
	pthread_mutex_unlock(&progress.lock);
}

void cell__progress_note(const char *line)
{
	pthread_mutex_lock(&progress.lock);
	clear();
	cell__cli_note(line);
	pthread_mutex_unlock(&progress.lock);
}

void cell__progress_hide(void)
{
	pthread_mutex_lock(&progress.lock);
	clear();
	pthread_mutex_unlock(&progress.lock);
}

void cell__progress_end(void)
{
	if (!progress.runs)
		return;
	pthread_mutex_lock(&progress.lock);
	progress.stop = true;
	pthread_cond_signal(&progress.ended);
	pthread_mutex_unlock(&progress.lock);
	pthread_join(progress.thread, NULL);
	progress.runs = false;
}
