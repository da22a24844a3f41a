/*
 * A real redis-server of the test's own: on a Unix socket in a folder of its own, with every write synced to its log,
 * ended by its pid.  And what a test has to say to it past the store.
 */
#ifndef CELL_TEST_REDIS_SUPPORT_H
#define CELL_TEST_REDIS_SUPPORT_H

#include <stdbool.h>
#include <sys/types.h>

/* 0 once it answers; -1 with words on stderr. */
int redis_start(void);
void redis_stop(void); /* fine when there is none */
/* kill -9, and started again with what it had acknowledged. */
void redis_kill(void);
int redis_restart(void);
pid_t redis_pid(void);
/* "" when there is none. */
const char *redis_socket(void);
/* One command, as hiredis formats them.  What comes back is not an error, or the test fails. */
void redis_do(const char *fmt, ...);
/* The same, and the answer is this text or number. */
void redis_expect(const char *expected, const char *fmt, ...);
/* How many keys match. */
int redis_count(const char *pattern);

#endif
