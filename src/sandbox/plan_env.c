/* The files of an interpreter that are visible to everything confined with it (struct cell__plan_env). */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "sandbox/builder.h"

static int list_append(char ***list, size_t *count, const char *text)
{
	char **more = cell__realloc(*list, (*count + 2) * sizeof *more);
	if (!more)
		return -1;
	*list = more;
	more[*count] = cell__strdup(text);
	more[*count + 1] = NULL;
	return more[(*count)++] ? 0 : -1;
}

int cell__plan_env_init(struct cell__plan_env *env, const char *const *paths)
{
	size_t n_folders = 0, n_links = 0, n = 0;
	int rc = 0;
	*env = (struct cell__plan_env){ 0 };
	while (paths[n])
		n++;
	char **reals = cell__alloc(n + 1, sizeof *reals);
	if (!reals)
		return -1;
	for (size_t i = 0; i < n; i++)
		reals[i] = realpath(paths[i], NULL);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		bool covered = !reals[i] || cell__builder_is_system(reals[i]);
		for (size_t k = 0; reals[i] && k < n; k++)
			covered |= k != i && reals[k] && cell__path_is_under(reals[i], reals[k]) &&
				   (strcmp(reals[i], reals[k]) != 0 || k < i);
		if (!covered)
			rc |= list_append(&env->folders, &n_folders, reals[i]);
		if (reals[i] && strcmp(reals[i], paths[i]) != 0 && !cell__builder_is_system(paths[i]))
			rc |= list_append(&env->links, &n_links, paths[i]) | list_append(&env->links, &n_links, reals[i]);
	}
	for (size_t i = 0; i < n; i++)
		free(reals[i]);
	free(reals);
	return rc;
}

void cell__plan_env_finish(struct cell__plan_env *env)
{
	cell__strings_free(env->folders);
	cell__strings_free(env->links);
	*env = (struct cell__plan_env){ 0 };
}
