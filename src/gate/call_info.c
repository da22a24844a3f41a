#include "gate/call_info.h"

#include <stdatomic.h>
#include <string.h>

struct call_info {
	struct cell_call_info info; /* first: what others hold */
	atomic_uint refs;
	char texts[];
};

static const char *put(char **at, const char *text)
{
	char *start = *at;
	size_t n = strlen(text) + 1;
	memcpy(start, text, n);
	*at += n;
	return start;
}

const struct cell_call_info *cell__call_info_create(const struct cell_call_info *info, char *args)
{
	size_t n = strlen(info->request_id) + strlen(info->tool) + strlen(info->callable) + strlen(info->session_id) + 5 +
		   (info->span_id ? strlen(info->span_id) : 0);
	struct call_info *call_info = cell__alloc(1, sizeof *call_info + n);
	if (!call_info) {
		free(args);
		return NULL;
	}
	char *at = call_info->texts;
	call_info->info = *info;
	call_info->info.request_id = put(&at, info->request_id);
	call_info->info.tool = put(&at, info->tool);
	call_info->info.callable = put(&at, info->callable);
	call_info->info.session_id = put(&at, info->session_id);
	call_info->info.span_id = put(&at, info->span_id ? info->span_id : "");
	call_info->info.args = args;
	call_info->info.args_size = strlen(args);
	atomic_init(&call_info->refs, 1);
	return &call_info->info;
}

const struct cell_call_info *cell__call_info_ref(const struct cell_call_info *info)
{
	atomic_fetch_add(&((struct call_info *)info)->refs, 1);
	return info;
}

void cell__call_info_unref(const struct cell_call_info *info)
{
	struct call_info *call_info = (struct call_info *)info;
	if (!call_info || atomic_fetch_sub(&call_info->refs, 1) != 1)
		return;
	free((char *)call_info->info.args);
	free(call_info);
}
