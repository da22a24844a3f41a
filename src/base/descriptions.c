/*
 * What glibc before 2.32 lacks: descriptions of errors and signals by functions that any thread may call (meson.build renames ours to
 * those). Below that version strerror() and strsignal() return constants for the numbers that exist, and a shared buffer for others,
 * which here count as unknown, as they do in the functions that are replaced.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <string.h>

#define MAX_ERRNO 133 /* EHWPOISON, the last of Linux */

const char *strerrordesc_np(int number)
{
	return number >= 0 && number <= MAX_ERRNO ? strerror(number) : NULL;
}

const char *sigdescr_np(int number)
{
	return number > 0 && number < SIGRTMIN ? strsignal(number) : NULL;
}
