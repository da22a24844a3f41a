/*
 * wire/tar.  Input: two bytes that say where the archive is split, then the archive.  Whole or in two pieces the same entries and bytes come
 * out, within the bounds; checksums are made right, so that the input is read beyond the first head.
 */
#include "base/base.h"
#include "fuzz.h"
#include "wire/tar.h"

struct found {
	uint64_t sum, bytes;
	int entries, rc;
	bool whole;
};

static void take(struct cell__tar *tar, const uint8_t *data, size_t left, struct found *found)
{
	uint8_t *copy = fuzz_copy(data, left);
	const char *bytes = (const char *)copy, *part = NULL;
	size_t n = 0;
	struct cell_error err;
	while (found->rc >= 0 && (found->rc = cell__tar_next(tar, &bytes, &left, &part, &n, &err)) > CELL_TAR_MORE) {
		const struct cell__tar_entry *entry = &tar->entry;
		if (found->rc == CELL_TAR_ENTRY) {
			MUST(*entry->path && strlen(entry->path) < CELL_TAR_MAX_PATH && strlen(entry->target) < CELL_TAR_MAX_PATH);
			MUST(entry->mode <= 0777 && entry->type <= CELL_TAR_LINK);
			MUST(entry->type == CELL_TAR_FILE || entry->size == 0);
			found->entries++;
			for (const char *at = entry->path; *at; at++)
				found->sum = found->sum * 31 + (unsigned char)*at;
		} else if (found->rc == CELL_TAR_DATA) {
			MUST(n > 0);
			found->bytes += n;
			for (size_t i = 0; i < n; i++)
				found->sum = found->sum * 31 + (unsigned char)part[i];
		}
	}
	MUST(found->rc != CELL_TAR_MORE || left == 0);
	MUST(tar->more.size <= CELL_TAR_MAX_EXTENDED);
	free(copy);
}

/* Makes the sum of each block right that could be a head. */
static void mend(uint8_t *data, size_t size)
{
	for (size_t at = 0; at + CELL_TAR_BLOCK <= size; at += CELL_TAR_BLOCK) {
		unsigned sum = 0;
		if (data[at] == 0)
			continue;
		memset(data + at + 148, ' ', 8);
		for (size_t i = 0; i < CELL_TAR_BLOCK; i++)
			sum += data[at + i];
		snprintf((char *)data + at + 148, 8, "%06o", sum);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct found whole = { 0 }, pieces = { 0 };
	struct cell__tar tar;
	if (size < 2)
		return 0;
	size_t split = data[0] | (size_t)data[1] << 8;
	size -= 2;
	uint8_t *mended = fuzz_copy(data + 2, size);
	mend(mended, size);
	split = split > size ? size : split;
	cell__tar_init(&tar);
	take(&tar, mended, size, &whole);
	whole.whole = cell__tar_is_whole(&tar);
	cell__tar_finish(&tar);
	cell__tar_init(&tar);
	take(&tar, mended, split, &pieces);
	take(&tar, mended + split, size - split, &pieces);
	pieces.whole = cell__tar_is_whole(&tar);
	cell__tar_finish(&tar);
	free(mended);
	MUST(whole.rc == pieces.rc && whole.entries == pieces.entries && whole.bytes == pieces.bytes && whole.sum == pieces.sum);
	MUST(whole.whole == pieces.whole);
	return 0;
}
