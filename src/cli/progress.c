#define _GNU_SOURCE 1
#include "progress.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/words.h"
#include "workcell.h"

#define SILENT_US 1000000 /* at first */
#define DRAW_US 200000    /* a terminal */
#define LINE_US 5000000   /* elsewhere */
#define LINE_BYTES 240
#define BAR_WIDTH 12
#define MAX_DOWNLOADS 64 /* at once */

static struct {
	pthread_mutex_t lock; /* guards the rest, and what is on the screen */
	pthread_cond_t ended;
	pthread_t thread;
	bool runs, stop, terminal, drawn, counted;
	const char *what, *unit; /* unit NULL: bytes */
	int64_t began_us, since_us; /* since when the rate counts */
	uint64_t done, total;
} progress = { .lock = PTHREAD_MUTEX_INITIALIZER, .ended = PTHREAD_COND_INITIALIZER };

/* Of uv's downloads, which run side by side; those of pip follow one another. */
static struct {
	struct {
		char name[64];
		uint64_t bytes;
	} running[MAX_DOWNLOADS];
	size_t count;
	uint64_t of_pip, done, total;
} downloads;

static void amount_words(uint64_t amount, char words[static 32])
{
	if (progress.unit)
		snprintf(words, 32, "%" PRIu64, amount);
	else
		cell__size_words(amount, words);
}

static void rate_words(double each_second, char words[static 32])
{
	char size[32];

	if (!progress.unit)
		snprintf(words, 32, "%s/s", cell__size_words((uint64_t)each_second, size));
	else if (each_second >= 1)
		snprintf(words, 32, "%.1f/s", each_second);
	else
		snprintf(words, 32, "%.1f/min", each_second * 60);
}

/* "3 MiB of 8 MiB, 1.5 MiB/s, 3.3 s left" */
static void make_figures(char line[static LINE_BYTES])
{
	int64_t now_us = cell__now_us();
	double seconds = (double)(now_us - progress.since_us) / 1e6, rate = seconds > 0 ? (double)progress.done / seconds : 0;
	const char *space = progress.unit ? " " : "", *unit = progress.unit ? progress.unit : "";
	char done[32], total[32], speed[32], span[32];

	cell__duration_words((double)(now_us - progress.began_us) / 1000, span);
	amount_words(progress.done, done);
	amount_words(progress.total, total);
	rate_words(rate, speed);
	if (!progress.done && !progress.total) {
		snprintf(line, LINE_BYTES, "%s", span);
	} else if (rate <= 0) {
		snprintf(line, LINE_BYTES, "%s of %s%s%s, %s", done, total, space, unit, span);
	} else if (progress.total > progress.done) {
		cell__duration_words((double)(progress.total - progress.done) / rate * 1000, span);
		snprintf(line, LINE_BYTES, "%s of %s%s%s, %s, %s left", done, total, space, unit, speed, span);
	} else {
		snprintf(line, LINE_BYTES, "%s%s%s, %s", done, space, unit, speed);
	}
}

/* "name: [####----] 3 MiB of 8 MiB, 1.5 MiB/s, 3.3 s left"; the bar only on a terminal that is wide enough. */
static void make_line(char line[static LINE_BYTES])
{
	char figures[LINE_BYTES], bar[BAR_WIDTH + 4] = "";
	struct winsize size = { 0 };
	size_t width = LINE_BYTES, done;

	make_figures(figures);
	if (progress.terminal && ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 && size.ws_col < LINE_BYTES)
		width = size.ws_col;
	if (progress.terminal && progress.total && strlen(progress.what) + strlen(figures) + sizeof(bar) + 1 < width) {
		done = progress.done < progress.total ? (size_t)(progress.done * BAR_WIDTH / progress.total) : BAR_WIDTH;
		bar[0] = '[';
		memset(bar + 1, '#', done);
		memset(bar + 1 + done, '-', BAR_WIDTH - done);
		memcpy(bar + 1 + BAR_WIDTH, "] ", 3);
	}
	snprintf(line, width, "%.60s: %s%s", progress.what, bar, figures);
}

static void clear(void)
{
	if (progress.drawn)
		dprintf(STDERR_FILENO, "\r\033[K");
	progress.drawn = false;
}

/* With the lock. */
static void draw_once(void)
{
	char line[LINE_BYTES];

	make_line(line);
	dprintf(STDERR_FILENO, progress.terminal ? "\r\033[K%s" : "%s\n", line);
	progress.drawn = progress.terminal;
}

static void *draw(void *arg)
{
	int64_t next_us = progress.began_us + (progress.terminal ? SILENT_US : LINE_US);

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
		draw_once();
	}
	clear();
	pthread_mutex_unlock(&progress.lock);
	return NULL;
}

/* Before the thread starts. */
static void set_up(const char *what)
{
	const char *term = getenv("TERM");

	progress.what = what;
	progress.unit = NULL;
	progress.began_us = progress.since_us = cell__now_us();
	progress.done = progress.total = 0;
	progress.stop = progress.drawn = progress.counted = false;
	progress.terminal = isatty(STDERR_FILENO) && term && strcmp(term, "dumb") != 0;
	memset(&downloads, 0, sizeof(downloads));
}

void cell__progress_begin(const char *what)
{
	if (progress.runs)
		return;
	set_up(what);
	progress.runs = pthread_create(&progress.thread, NULL, draw, NULL) == 0;
}

void cell__progress_count(uint64_t done, uint64_t total, const char *unit)
{
	pthread_mutex_lock(&progress.lock);
	if (!progress.counted && !done)
		progress.since_us = cell__now_us();
	progress.counted = true;
	progress.done = done;
	progress.total = total;
	progress.unit = unit;
	pthread_mutex_unlock(&progress.lock);
}

void cell__progress_set(uint64_t done, uint64_t total)
{
	cell__progress_count(done, total, NULL);
}

void cell__progress_step(const char *what, uint64_t done, uint64_t total, const char *unit)
{
	if (!progress.counted)
		set_up(what);
	progress.what = what;
	cell__progress_count(done, total, unit);
	pthread_mutex_lock(&progress.lock);
	draw_once();
	pthread_mutex_unlock(&progress.lock);
}

/* "16.1MiB" of uv, "16.9 MB" of pip; 0: not a size. */
static uint64_t read_size(const char *text)
{
	static const char units[] = "kMGT";
	char *end;
	double size = strtod(text, &end);
	const char *unit;

	end += *end == ' ';
	if (end == text || size < 0)
		return 0;
	if (*end == 'B')
		return (uint64_t)size;
	if (!*end || !(unit = strchr(units, *end == 'K' ? 'k' : *end)))
		return 0;
	for (const char *at = units; at <= unit; at++)
		size *= end[1] == 'i' ? 1024 : 1000;
	return size < 1e18 ? (uint64_t)size : 0;
}

/* "Downloading NAME (SIZE)" */
static void handle_download(const char *line)
{
	const char *open = strrchr(line, '(');
	size_t name = strcspn(line, " ");
	uint64_t bytes = open ? read_size(open + 1) : 0;

	if (!bytes)
		return;
	downloads.total += bytes;
	if (memmem(line, name, ".whl", 4) || memmem(line, name, ".tar", 4)) {
		downloads.of_pip = bytes;
	} else if (downloads.count < MAX_DOWNLOADS) {
		snprintf(downloads.running[downloads.count].name, sizeof(downloads.running[0].name), "%.*s", (int)name, line);
		downloads.running[downloads.count++].bytes = bytes;
	}
	cell__progress_set(downloads.done, downloads.total);
}

static void handle_downloaded(const char *name)
{
	for (size_t i = 0; i < downloads.count; i++) {
		if (strcmp(downloads.running[i].name, name) != 0)
			continue;
		downloads.done += downloads.running[i].bytes;
		downloads.running[i] = downloads.running[--downloads.count];
		cell__progress_set(downloads.done, downloads.total);
		return;
	}
}

void cell__progress_note(const char *line)
{
	const char *text = line + strspn(line, " ");
	unsigned step, steps;
	char *shown;

	if (downloads.of_pip) { /* it goes on after a download */
		downloads.done += downloads.of_pip;
		downloads.of_pip = 0;
		cell__progress_set(downloads.done, downloads.total);
	}
	if (!strncmp(text, "Downloading ", 12))
		handle_download(text + 12);
	else if (!strncmp(text, "Downloaded ", 11))
		handle_downloaded(text + 11);
	else if (!strncasecmp(text, "step ", 5) && sscanf(text + 5, "%u/%u", &step, &steps) == 2 && step && step <= steps)
		cell__progress_count(step - 1, steps, "steps");
	pthread_mutex_lock(&progress.lock);
	clear();
	shown = cell_shown_text(line, strcspn(line, "\r\n"), CELL_SHOWN_LINE);
	if (shown) /* else no memory: a line of progress less */
		dprintf(STDERR_FILENO, "%s\n", shown);
	free(shown);
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
	if (!progress.runs) {
		cell__progress_hide();
		return;
	}
	pthread_mutex_lock(&progress.lock);
	progress.stop = true;
	pthread_cond_signal(&progress.ended);
	pthread_mutex_unlock(&progress.lock);
	pthread_join(progress.thread, NULL);
	progress.runs = false;
}
