#include "session/card.h"

#include <stdatomic.h>
#include <string.h>

struct card {
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

const struct cell_call_info *cell__card_create(const struct cell_call_info *info, char *args)
{
	size_t n = strlen(info->request_id) + strlen(info->tool) + strlen(info->callable) + strlen(info->session_id) + 4;
	struct card *card = cell__alloc(1, sizeof *card + n);
	if (!card) {
		free(args);
		return NULL;
	}
	char *at = card->texts;
	card->info = *info;
	card->info.request_id = put(&at, info->request_id);
	card->info.tool = put(&at, info->tool);
	card->info.callable = put(&at, info->callable);
	card->info.session_id = put(&at, info->session_id);
	card->info.args = args;
	card->info.args_size = strlen(args);
	atomic_init(&card->refs, 1);
	return &card->info;
}

const struct cell_call_info *cell__card_ref(const struct cell_call_info *info)
{
	atomic_fetch_add(&((struct card *)info)->refs, 1);
	return info;
}

void cell__card_unref(const struct cell_call_info *info)
{
	struct card *card = (struct card *)info;
	if (!card || atomic_fetch_sub(&card->refs, 1) != 1)
		return;
	free((char *)card->info.args);
	free(card);
}
