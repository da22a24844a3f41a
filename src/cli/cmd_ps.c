/*
 * `workcell ps` and `workcell top`: who runs what on a session server.  Names, addresses and code come from others: everything is shown
 * escaped (cell__cli_table_add()).
 */
#define _GNU_SOURCE 1
#include "client.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <poll.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#define SHORT_ID 12
#define NARROW 120 /* columns of a screen that has no room for all of a row */
#define MIN_CALLS 3 /* calls that wait and are shown, if the screen has room */

struct ps_flags {
	struct cell_cli_client_flags client;
	int64_t delay_ms, count;
	bool json;
};

static const struct cell_cli_flag ps_flag_table[] = {
	{ 0, "json", NULL, "print the server's answer: one JSON array", CELL_FLAG_SWITCH, offsetof(struct ps_flags, json) },
	CELL_CLI_CLIENT_FLAGS(offsetof(struct ps_flags, client)),
	{ 0 },
};

static const struct cell_cli_flag top_flag_table[] = {
	{ 'd', "delay", "SEC", "seconds between two updates", CELL_FLAG_SECONDS, offsetof(struct ps_flags, delay_ms) },
	{ 'n', "count", "N", "number of updates; 0: until it is stopped", CELL_FLAG_COUNT, offsetof(struct ps_flags, count) },
	CELL_CLI_CLIENT_FLAGS(offsetof(struct ps_flags, client)),
	{ 0 },
};

const struct cell_cli_command cell__cli_ps_command = {
	.name = "ps",
	.summary = "sessions of a server: who runs what",
	.synopsis = "[--json] [--remote-url URL] [--auth-token-file FILE]",
	.about =
		"Lists the sessions of the token, and those of all tokens if it has the scope admin: owner, client's address, age, state, pid,\n"
		"memory, CPU time, executor, and the first line of the running cell with secrets removed.",
	.examples = "  workcell ps --auth-token-file token\n"
		    "  workcell ps --remote-url https://cells.example.org --auth-token-file ops.token --json",
	.flags = ps_flag_table,
	.run = cell__cmd_ps,
};

const struct cell_cli_command cell__cli_top_command = {
	.name = "top",
	.summary = "the same, again and again, busiest first",
	.synopsis = "[-d SEC] [-n N] [--remote-url URL] [--auth-token-file FILE]",
	.about =
		"Shows the sessions of a server, those with the highest CPU use first, and the calls that wait for approval.  Ctrl-C ends it.\n\n"
		"On a terminal: up and down (k, j) choose, i interrupts the session, x ends it, a accepts and r rejects the first call that waits\n"
		"in it, after it was shown whole and y was pressed; space updates now, q ends.",
	.examples = "  workcell top --auth-token-file token\n"
		    "  workcell top -n 1 --auth-token-file token",
	.flags = top_flag_table,
	.run = cell__cmd_top,
};

/* ---- texts ---- */

static void show_size(const json_t *value, char out[static 16])
{
	static const char units[] = "kMGT";
	double number = (double)json_integer_value(value);
	int unit = -1;

	while (number >= 1024 && unit < 3) {
		number /= 1024;
		unit++;
	}
	if (!json_is_integer(value))
		strcpy(out, "-");
	else if (unit < 0)
		snprintf(out, 16, "%.0f", number);
	else
		snprintf(out, 16, "%.*f%c", number < 10, number, units[unit]);
}

static void show_seconds(double seconds, char out[static 16])
{
	if (!isfinite(seconds) || seconds < 0)
		strcpy(out, "-");
	else if (seconds < 60)
		snprintf(out, 16, "%.1fs", seconds);
	else if (seconds < 3600)
		snprintf(out, 16, "%dm%02ds", (int)seconds / 60, (int)seconds % 60);
	else if (seconds < 1e8)
		snprintf(out, 16, "%dh%02dm", (int)(seconds / 3600), (int)(seconds / 60) % 60);
	else
		strcpy(out, "years");
}

static double age_of(const json_t *session)
{
	struct tm tm = { 0 };

	return strptime(cell__cli_text(session, "created_at"), "%Y-%m-%dT%H:%M:%SZ", &tm) ? difftime(time(NULL), timegm(&tm)) : -1;
}

static const char *const heads[] = { "SESSION", "OWNER", "CLIENT", "AGE", "STATE", "PID", "MEMORY", "CPU", "%CPU", "EXECUTOR", "CODE" };
#define N_HEADS (sizeof(heads) / sizeof(heads[0]))
static const size_t narrow[] = { 0, 1, 4, 6, 8, 10 }; /* of these */
#define N_NARROW (sizeof(narrow) / sizeof(narrow[0]))

/* As many of the N_HEADS texts as the table has columns. */
static void add_texts(struct cell_cli_table *table, const char *const *texts)
{
	const char *few[N_NARROW];

	for (size_t i = 0; i < N_NARROW; i++)
		few[i] = texts[narrow[i]];
	cell__cli_table_add(table, table->columns == N_NARROW ? few : texts);
}

static void add_row(struct cell_cli_table *table, const json_t *session, const char *cpu)
{
	const json_t *pid = json_object_get(session, "pid"), *used = json_object_get(session, "cpu_seconds");
	char id[SHORT_ID + 1], age[16], memory[16], seconds[16] = "-", number[24] = "-", state[24];
	const char *code = cell__cli_text(json_object_get(session, "running"), "code");

	snprintf(id, sizeof(id), "%s", cell__cli_text(session, "session_id"));
	show_seconds(age_of(session), age);
	show_size(json_object_get(session, "memory_bytes"), memory);
	if (json_is_number(used))
		show_seconds(json_number_value(used), seconds);
	if (json_is_integer(pid))
		snprintf(number, sizeof(number), "%" JSON_INTEGER_FORMAT, json_integer_value(pid));
	snprintf(state, sizeof(state), "%.20s", cell__cli_text(session, "state"));
	add_texts(table, (const char *[]){ id, cell__cli_text(session, "owner"), cell__cli_text(session, "client"), age, state, number,
					   memory, seconds, cpu, cell__cli_text(session, "executor"), code });
}

/* ---- ps ---- */

int cell__cmd_ps(int argc, char **argv)
{
	struct ps_flags flags = { 0 };
	struct cell_client *client = NULL;
	struct cell_cli_table table = { .columns = N_HEADS };
	struct cell_error err;
	json_t *list = NULL, *each;
	size_t i;
	int status;

	if (!cell__cli_parse(&cell__cli_ps_command, argc, argv, &flags, NULL, &status))
		return status;
	status = cell__cli_client_open(&flags.client, &client, &err);
	if (!status)
		status = cell__cli_client_sessions(client, &list, &err);
	if (!status && flags.json) {
		status = cell__cli_print_json(list, &err);
	} else if (!status) {
		cell__cli_table_add(&table, heads);
		json_array_foreach(list, i, each)
			add_row(&table, each, "");
		status = cell__cli_table_print(&table, &err);
	}
	json_decref(list);
	cell_client_destroy(client);
	return status < 0 ? cell__cli_report(&err, flags.json) : 0;
}

/* ---- top ---- */

struct busy {
	const json_t *session;
	double share;
};

/* What is shown, and what a person does with it. */
struct top {
	struct cell_client *client;
	json_t *list, *approvals; /* of the last update */
	struct busy *all; /* of the list, busiest first */
	size_t count;
	char chosen[64]; /* an id; "": none */
	char note[sizeof(((struct cell_error *)0)->msg)]; /* what the last key did */
	bool keys; /* a terminal: keys are read */
	bool asks_end; /* whether to end the chosen session */
	struct winsize screen; /* 0 columns: not a terminal, and nothing is cut */
	struct {
		char session[64]; /* "": nothing is asked */
		json_int_t id;
		bool accept, shown;
	} question; /* whether to answer this call */
	struct termios before;
};

static volatile sig_atomic_t stopped;

static void handle_stop(int number)
{
	(void)number;
	stopped = 1;
}

static int compare(const void *a, const void *b)
{
	const struct busy *x = a, *y = b;

	return x->share < y->share ? 1 : x->share > y->share ? -1 : 0;
}

/* CPU time since the update before, of the same kernel. */
static double share_of(const json_t *session, const json_t *before, double seconds)
{
	const json_t *old = json_object_get(before, cell__cli_text(session, "session_id"));
	double used = json_number_value(json_object_get(session, "cpu_seconds")) - json_number_value(json_object_get(old, "cpu_seconds"));
	bool same = json_equal(json_object_get(session, "pid"), json_object_get(old, "pid"));

	return old && same && used > 0 && seconds > 0 ? 100 * used / seconds : 0;
}

static int sort_top(struct top *top, const json_t *before, double seconds, struct cell_error *err)
{
	size_t count = json_array_size(top->list);
	struct busy *all = calloc(count + 1, sizeof(*all));

	if (!all)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a table");
	for (size_t i = 0; i < count; i++) {
		all[i].session = json_array_get(top->list, i);
		all[i].share = share_of(all[i].session, before, seconds);
	}
	qsort(all, count, sizeof(*all), compare);
	free(top->all);
	top->all = all;
	top->count = count;
	return 0;
}

static size_t place_of(const struct top *top)
{
	size_t i = 0;

	while (i < top->count && strcmp(cell__cli_text(top->all[i].session, "session_id"), top->chosen))
		i++;
	return i < top->count ? i : 0;
}

static bool is_of_chosen(const struct top *top, const json_t *call)
{
	const char *chosen = top->count ? cell__cli_text(top->all[place_of(top)].session, "session_id") : top->chosen;

	return !strcmp(cell__cli_text(call, "session_id"), chosen);
}

/* The first call that waits in the chosen session, else of all; NULL: none waits. */
static const json_t *waiting_call(const struct top *top)
{
	const json_t *each;
	size_t i;

	json_array_foreach(top->approvals, i, each) {
		if (is_of_chosen(top, each))
			return each;
	}
	return json_array_get(top->approvals, 0);
}

static char *name_of(const json_t *call)
{
	const char *callable = cell__cli_text(call, "callable");
	char *name = NULL;

	return asprintf(&name, "%s%s%s", cell__cli_text(call, "tool"), *callable ? "." : "", callable) < 0 ? NULL : name;
}

static void add_call(struct cell_cli_table *table, const json_t *call)
{
	char *args = json_dumps(json_object_get(call, "args"), JSON_COMPACT), *name = name_of(call);
	char session[SHORT_ID + 1], waited[16];

	show_seconds(json_number_value(json_object_get(call, "waited_ms")) / 1000, waited);
	snprintf(session, sizeof(session), "%s", cell__cli_text(call, "session_id"));
	cell__cli_table_add(table, (const char *[]){ waited, session, name ? name : "", cell__cli_text(call, "reason"), args ? args : "" });
	free(args);
	free(name);
}

static void add_more(struct cell_cli_table *table, size_t count, const char *what)
{
	const char *texts[CELL_CLI_MAX_COLUMNS] = { "" };
	char words[64];

	if (!count)
		return;
	for (size_t i = 0; i < table->columns; i++)
		texts[i] = "";
	snprintf(words, sizeof(words), "%zu more %s", count, what);
	texts[table->columns - 1] = words;
	cell__cli_table_add(table, texts);
}

/* Those of the chosen session first: a flood of others hides none of them. */
static void show_approvals(const struct top *top, size_t most, struct cell_cli_table *table)
{
	size_t i, shown = 0;
	const json_t *each;

	cell__cli_table_add(table, (const char *[]){ "WAITS", "SESSION", "CALL", "WHY", "ARGUMENTS" });
	for (int others = 0; others < 2; others++) {
		json_array_foreach(top->approvals, i, each) {
			if (shown < most && is_of_chosen(top, each) == !others) {
				add_call(table, each);
				shown++;
			}
		}
	}
	add_more(table, json_array_size(top->approvals) - shown, "calls wait");
}

static void show_sessions(const struct top *top, size_t most, struct cell_cli_table *table)
{
	size_t place = place_of(top), from = place < most ? 0 : place - most + 1;
	char share[16];

	add_texts(table, heads);
	for (size_t i = from; i < top->count && i - from < most; i++) {
		snprintf(share, sizeof(share), "%s%.0f", top->keys && i == place ? ">" : "", top->all[i].share);
		add_row(table, top->all[i].session, share);
	}
	add_more(table, top->count > most ? top->count - most : 0, "sessions");
}

/* Lines of the screen that a text takes, which has no wide characters. */
static size_t lines_of(const struct top *top, const char *text)
{
	size_t lines = 0, size, columns = top->screen.ws_col ? top->screen.ws_col : SIZE_MAX;

	for (;; text += size + 1) {
		size = strcspn(text, "\n");
		lines += size ? (size - 1) / columns + 1 : 1;
		if (!text[size])
			return lines;
	}
}

static const json_t *asked_call(const struct top *top)
{
	const json_t *each;
	size_t i;

	json_array_foreach(top->approvals, i, each) {
		if (json_integer_value(json_object_get(each, "id")) == top->question.id &&
		    !strcmp(cell__cli_text(each, "session_id"), top->question.session))
			return each;
	}
	return NULL;
}

/* The call with all of its arguments as lines; NULL: err says why nobody can be asked. */
static char *question_of(const struct top *top, const json_t *call, struct cell_error *err)
{
	char *args = json_dumps(json_object_get(call, "args"), JSON_COMPACT | JSON_ENCODE_ANY), *name = name_of(call), *lines = NULL;
	char *plain = name ? cell_shown_text(name, strlen(name), CELL_SHOWN_ASCII) : NULL, *text = NULL;
	const char *reason = cell__cli_text(call, "reason");
	char *why = cell_shown_text(reason, strlen(reason), CELL_SHOWN_ASCII);

	if (!args || !plain || !why) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a question");
	} else if (cell_shown_args(args, strlen(args), CELL_SHOWN_ALL, &lines, err) == 0 &&
		   asprintf(&text, "%s %s of %.12s?%s%s%s", top->question.accept ? "accept" : "reject", plain, top->question.session,
			    *why ? "\n" : "", why, lines) < 0) {
		text = NULL;
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a question");
	}
	free(args);
	free(name);
	free(lines);
	free(plain);
	free(why);
	if (text && top->screen.ws_row && lines_of(top, text) + 2 > top->screen.ws_row) {
		cell_fail(err, CELL_E_LIMIT, 0,
			  "the arguments of this call do not fit on this screen: make it larger, or answer in the console");
		free(text);
		text = NULL;
	}
	return text;
}

/* Whether it is shown; if not, the note says why. */
static bool show_question(struct top *top)
{
	const json_t *call = asked_call(top);
	struct cell_error err;
	char *text;

	if (!*top->question.session)
		return false;
	text = call ? question_of(top, call, &err) : NULL;
	if (!text) {
		snprintf(top->note, sizeof(top->note), "%s", call ? err.msg : "the call no longer waits");
		*top->question.session = '\0';
		return false;
	}
	cell__cli_line(text);
	cell__cli_line("y: yes, another key: back");
	free(text);
	if (!top->question.shown)
		tcflush(STDIN_FILENO, TCIFLUSH); /* keys that were pressed before it was seen answer nothing */
	top->question.shown = true;
	return true;
}

static int show_tables(const struct top *top, const char *note, struct cell_error *err)
{
	size_t rows = top->screen.ws_row, waiting = json_array_size(top->approvals), calls = waiting, most = top->count;
	struct cell_cli_table table = { .columns = N_HEADS, .width = top->screen.ws_col },
			      below = { .columns = 5, .width = top->screen.ws_col };

	if (top->screen.ws_col && top->screen.ws_col < NARROW)
		table.columns = N_NARROW;
	if (rows) {
		/* Heads, empty lines, the note, and the cursor. */
		size_t taken = 3 + (top->keys ? lines_of(top, note) : 0);

		calls = rows / 3 > MIN_CALLS ? rows / 3 : MIN_CALLS;
		calls = waiting < calls ? waiting : calls;
		taken += waiting ? calls + 2 + (calls < waiting) : 0;
		most = rows > taken + 1 ? rows - taken : 1;
		most = top->count <= most ? top->count : most > 1 ? most - 1 : 1;
	}
	show_sessions(top, most, &table);
	if (cell__cli_table_print(&table, err) < 0)
		return -1;
	if (!waiting)
		return 0;
	cell__cli_line("");
	show_approvals(top, calls, &below);
	return cell__cli_table_print(&below, err);
}

static int show_top(struct top *top, struct cell_error *err)
{
	const char *note;

	top->screen = (struct winsize){ 0 };
	if (isatty(STDOUT_FILENO)) {
		if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &top->screen) < 0)
			top->screen = (struct winsize){ 0 };
		cell__cli_write(STDOUT_FILENO, "\x1b[H\x1b[2J", 7);
	}
	if (show_question(top))
		return 0;
	note = *top->note ? top->note : "j k choose  i interrupt  x end  a accept  r reject  space update  q quit";
	if (show_tables(top, note, err) < 0)
		return -1;
	if (top->keys) {
		cell__cli_line("");
		cell__cli_line(note);
	}
	return 0;
}

/* {id: session} */
static json_t *by_id(const json_t *list)
{
	json_t *all = json_object(), *each;
	size_t i;

	json_array_foreach(list, i, each)
		json_object_set(all, cell__cli_text(each, "session_id"), each);
	return all;
}

/* A failure of an action is shown; the next update may go well. */
static void act_top(struct top *top, const char *method, const char *verb, const json_t *body, const char *done)
{
	struct cell_error err;
	char path[160];

	snprintf(path, sizeof(path), "/v1/sessions/%.63s%s", top->chosen, verb);
	if (cell__cli_client_ask(top->client, method, path, body, NULL, &err) < 0)
		snprintf(top->note, sizeof(top->note), "%s", err.msg);
	else
		snprintf(top->note, sizeof(top->note), "%s %.12s", done, top->chosen);
}

static void ask_answer(struct top *top, bool accept)
{
	const json_t *call = waiting_call(top);

	if (!call) {
		snprintf(top->note, sizeof(top->note), "no call waits");
		return;
	}
	snprintf(top->chosen, sizeof(top->chosen), "%s", cell__cli_text(call, "session_id"));
	memcpy(top->question.session, top->chosen, sizeof(top->chosen));
	top->question.id = json_integer_value(json_object_get(call, "id"));
	top->question.accept = accept;
	top->question.shown = false;
}

/* The call that was shown, whatever waits now. */
static void answer_top(struct top *top)
{
	json_t *body = json_pack("{s:b}", "accept", top->question.accept);
	char verb[64];

	memcpy(top->chosen, top->question.session, sizeof(top->chosen));
	snprintf(verb, sizeof(verb), "/approvals/%" JSON_INTEGER_FORMAT, top->question.id);
	act_top(top, "POST", verb, body, top->question.accept ? "accepted a call of" : "rejected a call of");
	json_decref(body);
}

/* False: it ends. */
static bool take_key(struct top *top, char key)
{
	size_t at = place_of(top);
	bool asked = top->asks_end;

	top->asks_end = false;
	*top->note = '\0';
	if (*top->question.session) {
		if (key == 'y')
			answer_top(top);
		*top->question.session = '\0';
		return true;
	}
	if (key == 'q' || key == 4)
		return false;
	if (key == 'j' || key == 'B' || key == 'k' || key == 'A') { /* arrows end with A and B */
		at = key == 'j' || key == 'B' ? at + 1 : at ? at - 1 : 0;
		if (at < top->count)
			snprintf(top->chosen, sizeof(top->chosen), "%s", cell__cli_text(top->all[at].session, "session_id"));
		return true;
	}
	if (top->count)
		snprintf(top->chosen, sizeof(top->chosen), "%s", cell__cli_text(top->all[at].session, "session_id"));
	if (key == 'a' || key == 'r') {
		ask_answer(top, key == 'a');
	} else if (!*top->chosen) {
		return true;
	} else if (key == 'i') {
		act_top(top, "POST", "/interrupt", NULL, "interrupted");
	} else if (key == 'x') {
		top->asks_end = true;
		snprintf(top->note, sizeof(top->note), "end %.12s? y: yes", top->chosen);
	} else if (key == 'y' && asked) {
		act_top(top, "DELETE", "", NULL, "ended");
	}
	return true;
}

/* Waits for the time of the next update, or for a key that changes something.  False: it ends. */
static bool wait_top(struct top *top, int64_t delay_ms)
{
	struct pollfd input = { .fd = top->keys ? STDIN_FILENO : -1, .events = POLLIN };
	char bytes[64];
	ssize_t n;

	if (poll(&input, 1, (int)delay_ms) <= 0)
		return !stopped;
	n = read(STDIN_FILENO, bytes, sizeof(bytes));
	for (ssize_t i = 0; i < n; i++) {
		if (bytes[i] == '\x1b' && n - i > 2) /* an arrow: three bytes, of which the last counts */
			i += 2;
		if (!take_key(top, bytes[i]))
			return false;
		if (top->asks_end || *top->question.session)
			break; /* nobody has seen the question yet */
	}
	return n > 0;
}

static void set_keys(struct top *top)
{
	struct termios raw;

	top->keys = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && tcgetattr(STDIN_FILENO, &top->before) == 0;
	if (!top->keys)
		return;
	raw = top->before;
	raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	tcsetattr(STDIN_FILENO, TCSANOW, &raw);
}

static int update(struct top *top, json_t **before, int64_t *last_us, struct cell_error *err)
{
	json_t *answer = NULL;
	int64_t now_us;
	int status;

	json_decref(top->list);
	top->list = NULL;
	status = cell__cli_client_sessions(top->client, &top->list, err);
	if (!status)
		status = cell__cli_client_ask(top->client, "GET", "/v1/approvals?all=true", NULL, &answer, err);
	now_us = cell__now_us();
	json_decref(top->approvals);
	top->approvals = json_incref(json_object_get(answer, "approvals"));
	json_decref(answer);
	if (!status)
		status = sort_top(top, *before, (double)(now_us - *last_us) / 1e6, err);
	if (!status)
		status = show_top(top, err);
	json_decref(*before);
	*before = by_id(top->list);
	*last_us = now_us;
	return status;
}

int cell__cmd_top(int argc, char **argv)
{
	struct ps_flags flags = { .delay_ms = 2000 };
	struct sigaction action = { .sa_handler = handle_stop }, old;
	struct top top = { 0 };
	struct cell_error err;
	json_t *before = NULL;
	int64_t last_us = 0;
	int status;

	if (!cell__cli_parse(&cell__cli_top_command, argc, argv, &flags, NULL, &status))
		return status;
	if (flags.delay_ms < 100)
		flags.delay_ms = 100;
	sigaction(SIGINT, &action, &old);
	status = cell__cli_client_open(&flags.client, &top.client, &err);
	set_keys(&top);
	for (int64_t updates = 0; !status && !stopped && (!flags.count || updates < flags.count); updates++) {
		if (updates && !wait_top(&top, flags.delay_ms))
			break;
		status = update(&top, &before, &last_us, &err);
	}
	if (top.keys)
		tcsetattr(STDIN_FILENO, TCSANOW, &top.before);
	sigaction(SIGINT, &old, NULL);
	json_decref(before);
	json_decref(top.list);
	json_decref(top.approvals);
	free(top.all);
	cell_client_destroy(top.client);
	return status < 0 ? cell__cli_report(&err, false) : 0;
}
