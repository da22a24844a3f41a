#include "base/home.h"

#include <pthread.h>
#include <pwd.h>
#include <stdio.h>
#include <unistd.h>

static char home[4096];

static void find_home(void)
{
	struct passwd entry, *found = NULL;
	char memory[8192];
	if (getpwuid_r(getuid(), &entry, memory, sizeof memory, &found) == 0 && found && found->pw_dir[0] == '/')
		snprintf(home, sizeof home, "%s", found->pw_dir);
	else
		snprintf(home, sizeof home, "/");
}

const char *cell__home_dir(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, find_home);
	return home;
}
