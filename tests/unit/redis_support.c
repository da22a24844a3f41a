#define _GNU_SOURCE
#include "redis_support.h"

#include <signal.h>
#include <sys/wait.h>

#include "support.h"

static char folder[64], socket_path[96];
static pid_t server;

const char *redis_socket(void)
{
	return socket_path;
}

pid_t redis_pid(void)
{
	return server;
}

#ifdef CELL_HAVE_REDIS
#include <hiredis/hiredis.h>

static redisReply *ask(const char *fmt, va_list args)
{
	redisContext *context = redisConnectUnix(socket_path);
	assert_true(context && !context->err);
	redisReply *reply = redisvCommand(context, fmt, args);
	redisFree(context);
	assert_non_null(reply);
	if (reply->type == REDIS_REPLY_ERROR)
		fail_msg("%s: %s", fmt, reply->str);
	return reply;
}

void redis_do(const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	freeReplyObject(ask(fmt, args));
	va_end(args);
}

void redis_expect(const char *expected, const char *fmt, ...)
{
	char number[32];
	va_list args;
	va_start(args, fmt);
	redisReply *reply = ask(fmt, args);
	va_end(args);
	snprintf(number, sizeof number, "%lld", reply->integer);
	assert_string_equal(reply->str ? reply->str : reply->type == REDIS_REPLY_INTEGER ? number : "(nil)", expected);
	freeReplyObject(reply);
}

int redis_count(const char *pattern)
{
	redisContext *context = redisConnectUnix(socket_path);
	assert_true(context && !context->err);
	redisReply *reply = redisCommand(context, "KEYS %s", pattern);
	redisFree(context);
	assert_non_null(reply);
	int n = (int)reply->elements;
	freeReplyObject(reply);
	return n;
}

static bool answers(void *arg)
{
	(void)arg;
	redisContext *context = redisConnectUnix(socket_path);
	redisReply *reply = context && !context->err ? redisCommand(context, "PING") : NULL;
	bool ok = reply && reply->type == REDIS_REPLY_STATUS;
	if (reply)
		freeReplyObject(reply);
	if (context)
		redisFree(context);
	return ok;
}

int redis_restart(void)
{
	server = fork();
	if (server == 0) {
		const char *argv[] = { "redis-server",
				       "--port",
				       "0",
				       "--unixsocket",
				       socket_path,
				       "--dir",
				       folder,
				       "--save",
				       "",
				       "--appendonly",
				       "yes",
				       "--appendfsync",
				       "always",
				       "--auto-aof-rewrite-percentage",
				       "0",
				       "--logfile",
				       "log",
				       NULL };
		const char *other = getenv("WORKCELL_TEST_REDIS"); /* one that speaks the same: Valkey */

		execvp(other ? other : "redis-server", (char **)argv);
		if (!other)
			execvp("redis-check-rdb",
			       (char **)argv); /* the same program, which goes by its name; Debian's redis-tools has it */
		fprintf(stderr, "redis-server cannot be started; scripts/setup.sh test installs it\n");
		_exit(127);
	}
	support_keep_pid(server);
	if (server < 0 || !support_wait(answers, NULL)) {
		fprintf(stderr, "redis-server does not answer\n");
		return -1;
	}
	return 0;
}

int redis_start(void)
{
	strcpy(folder, "/tmp/cell-redis-XXXXXX");
	if (!mkdtemp(folder))
		return -1;
	snprintf(socket_path, sizeof socket_path, "%s/s", folder);
	return redis_restart();
}

void redis_kill(void)
{
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	server = 0;
	support_keep_pid(0);
}

void redis_stop(void)
{
	char command[128];
	if (!socket_path[0])
		return;
	if (server > 0)
		redis_kill();
	snprintf(command, sizeof command, "rm -rf '%s'", folder);
	if (system(command) != 0)
		fprintf(stderr, "%s is left over\n", folder);
	socket_path[0] = '\0';
}
#else
void redis_do(const char *fmt, ...)
{
	(void)fmt;
	abort();
}
void redis_expect(const char *expected, const char *fmt, ...)
{
	(void)expected;
	(void)fmt;
	abort();
}
int redis_count(const char *pattern)
{
	(void)pattern;
	abort();
}
int redis_start(void)
{
	return -1;
}
int redis_restart(void)
{
	return -1;
}
void redis_kill(void)
{
}
void redis_stop(void)
{
}
#endif
