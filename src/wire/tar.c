#include "wire/tar.h"

#include <stdio.h>
#include <string.h>

/* Offsets and sizes of the fields of a head. */
enum { NAME = 0, MODE = 100, SIZE = 124, MTIME = 136, SUM = 148, TYPE = 156, TARGET = 157, MAGIC = 257, PREFIX = 345 };
enum { NAME_BYTES = 100, MODE_BYTES = 8, SIZE_BYTES = 12, SUM_BYTES = 8, PREFIX_BYTES = 155 };
#define OCTAL_SIZE_MAX 077777777777ull /* eleven digits */

void cell__tar_init(struct cell__tar *tar)
{
	*tar = (struct cell__tar){ .more = CELL_BUF_INIT };
}

void cell__tar_finish(struct cell__tar *tar)
{
	cell__buf_finish(&tar->more);
}

bool cell__tar_is_whole(const struct cell__tar *tar)
{
	return tar->ended;
}

static int fail(struct cell_error *err, const char *words)
{
	return cell_fail(err, CELL_E_INVALID, 0, "the archive is damaged: %s", words);
}

/* ---- numbers ---- */

/* Octal digits, or, with the highest bit set, a binary number.  -1: neither. */
static int read_number(const char *field, size_t size, uint64_t *ret_number)
{
	uint64_t number = 0;
	size_t i = 0;
	if ((unsigned char)field[0] & 0x80) {
		if ((unsigned char)field[0] != 0x80)
			return -1;
		for (i = 1; i < size; i++) {
			if (number >> 55)
				return -1;
			number = number << 8 | (unsigned char)field[i];
		}
		*ret_number = number;
		return 0;
	}
	while (i < size && field[i] == ' ')
		i++;
	for (; i < size && field[i] >= '0' && field[i] <= '7'; i++)
		number = number << 3 | (uint64_t)(field[i] - '0'); /* at most 12 digits */
	for (; i < size; i++)
		if (field[i] != ' ' && field[i] != '\0')
			return -1;
	*ret_number = number;
	return 0;
}

static bool has_sum(const char *block)
{
	uint64_t given;
	unsigned sum = 0;
	int old_sum = 0; /* of signed bytes, as some programs once counted */
	if (read_number(block + SUM, SUM_BYTES, &given) < 0)
		return false;
	for (size_t i = 0; i < CELL_TAR_BLOCK; i++) {
		char byte = i >= SUM && i < SUM + SUM_BYTES ? ' ' : block[i];
		sum += (unsigned char)byte;
		old_sum += (signed char)byte;
	}
	return given == sum || (old_sum >= 0 && given == (unsigned)old_sum);
}

static bool is_zero(const char *block)
{
	for (size_t i = 0; i < CELL_TAR_BLOCK; i++)
		if (block[i])
			return false;
	return true;
}

/* ---- extended heads ---- */

static int take_text(char *out, const char *text, size_t size, struct cell_error *err)
{
	if (size >= CELL_TAR_MAX_PATH)
		return cell_fail(err, CELL_E_LIMIT, 0, "a path of the archive has %zu bytes; %u are allowed", size, CELL_TAR_MAX_PATH - 1);
	if (memchr(text, '\0', size))
		return fail(err, "a path has a NUL");
	memcpy(out, text, size);
	out[size] = '\0';
	return 0;
}

static int take_size(struct cell__tar *tar, const char *text, size_t size, struct cell_error *err)
{
	uint64_t number = 0;
	if (size == 0 || size > 18)
		return fail(err, "the size of a file is not a number");
	for (size_t i = 0; i < size; i++) {
		if (text[i] < '0' || text[i] > '9')
			return fail(err, "the size of a file is not a number");
		number = number * 10 + (uint64_t)(text[i] - '0');
	}
	tar->size = number;
	tar->has_size = true;
	return 0;
}

static int take_record(struct cell__tar *tar, const char *key, size_t key_size, const char *value, size_t size, struct cell_error *err)
{
	if (key_size == 4 && memcmp(key, "path", 4) == 0) {
		tar->has_path = true;
		return take_text(tar->entry.path, value, size, err);
	}
	if (key_size == 8 && memcmp(key, "linkpath", 8) == 0) {
		tar->has_target = true;
		return take_text(tar->entry.target, value, size, err);
	}
	if (key_size == 4 && memcmp(key, "size", 4) == 0)
		return take_size(tar, value, size, err);
	if (key_size > 10 && memcmp(key, "GNU.sparse", 10) == 0)
		return cell_fail(err, CELL_E_INVALID, 0, "the archive has a sparse file, which is not supported");
	return 0;
}

/* Lines "LENGTH KEY=VALUE\n", where the length is that of the whole line. */
static int take_records(struct cell__tar *tar, struct cell_error *err)
{
	const char *at = tar->more.data ? tar->more.data : "";
	size_t left = tar->more.size;
	while (left > 0) {
		size_t length = 0, digits = 0;
		while (digits < left && digits < 6 && at[digits] >= '0' && at[digits] <= '9')
			length = length * 10 + (size_t)(at[digits++] - '0');
		if (digits == 0 || digits == left || at[digits] != ' ' || length > left || length < digits + 3 || at[length - 1] != '\n')
			return fail(err, "an extended head is malformed");
		const char *key = at + digits + 1, *end = at + length - 1, *equals = memchr(key, '=', (size_t)(end - key));
		if (!equals)
			return fail(err, "an extended head is malformed");
		if (take_record(tar, key, (size_t)(equals - key), equals + 1, (size_t)(end - equals - 1), err) < 0)
			return -1;
		at += length;
		left -= length;
	}
	return 0;
}

static int take_more(struct cell__tar *tar, struct cell_error *err)
{
	const char *text = tar->more.data ? tar->more.data : "";
	size_t size = tar->more.size;
	char type = tar->more_type;
	tar->more_type = '\0';
	if (type == 'g')
		return 0; /* defaults for all entries: none that we use makes sense there */
	if (type == 'x')
		return take_records(tar, err);
	while (size > 0 && text[size - 1] == '\0')
		size--;
	if (type == 'L')
		tar->has_path = true;
	else
		tar->has_target = true;
	return take_text(type == 'L' ? tar->entry.path : tar->entry.target, text, size, err);
}

/* ---- heads ---- */

static int take_names(struct cell__tar *tar, struct cell_error *err)
{
	const char *block = tar->block;
	char *path = tar->entry.path;
	size_t size = strnlen(block + NAME, NAME_BYTES), prefix = strnlen(block + PREFIX, PREFIX_BYTES);
	/* "ustar\0": POSIX; "ustar  " is GNU's, which has other fields there. */
	if (memcmp(block + MAGIC, "ustar", 6) != 0)
		prefix = 0;
	if (!tar->has_path) {
		int n = snprintf(path, CELL_TAR_MAX_PATH, "%.*s%s%.*s", (int)prefix, block + PREFIX, prefix ? "/" : "", (int)size,
				 block + NAME);
		if (n <= 0)
			return fail(err, "an entry has no name");
	}
	if (!tar->has_target)
		snprintf(tar->entry.target, CELL_TAR_MAX_PATH, "%.*s", NAME_BYTES, block + TARGET);
	tar->has_path = tar->has_target = false;
	if (!*path)
		return fail(err, "an entry has no name");
	return 0;
}

static int take_head(struct cell__tar *tar, struct cell_error *err)
{
	const char *block = tar->block;
	char type = block[TYPE];
	uint64_t size, mode, mtime;
	if (!has_sum(block))
		return fail(err, "the checksum of an entry is wrong; is it a tar archive, without compression?");
	if (read_number(block + SIZE, SIZE_BYTES, &size) < 0)
		return fail(err, "the size of an entry is not a number");
	if (read_number(block + MODE, MODE_BYTES, &mode) < 0)
		mode = 0644;
	if (read_number(block + MTIME, SIZE_BYTES, &mtime) < 0)
		mtime = 0;
	if (type == 'x' || type == 'g' || type == 'L' || type == 'K') {
		if (size > CELL_TAR_MAX_EXTENDED)
			return cell_fail(err, CELL_E_LIMIT, 0, "an extended head of the archive has %llu bytes; %u are allowed",
					 (unsigned long long)size, CELL_TAR_MAX_EXTENDED);
		tar->more.size = 0;
		tar->more_type = type;
		tar->more_left = (size_t)size;
		tar->padding = (size_t)(-size % CELL_TAR_BLOCK);
		return tar->more_left ? 0 : take_more(tar, err);
	}
	if (take_names(tar, err) < 0)
		return -1;
	if (tar->has_size)
		size = tar->size;
	tar->has_size = false;
	struct cell__tar_entry *entry = &tar->entry;
	size_t length = strlen(entry->path);
	if (type == '5' || ((type == '\0' || type == '0') && entry->path[length - 1] == '/'))
		entry->type = CELL_TAR_FOLDER;
	else if (type == '\0' || type == '0' || type == '7')
		entry->type = CELL_TAR_FILE;
	else if (type == '2')
		entry->type = CELL_TAR_LINK;
	else
		return cell_fail(err, CELL_E_INVALID, 0, "the archive has %s; only files, folders and symbolic links are accepted",
				 type == '1'                  ? "a hard link"
				 : type == '3' || type == '4' ? "a device"
				 : type == '6'                ? "a pipe"
				 : type == 'S'                ? "a sparse file"
							      : "an entry of an unknown kind");
	if (entry->type != CELL_TAR_FILE && size > 0)
		return fail(err, "a folder or a link has contents");
	entry->size = size;
	entry->mode = (unsigned)mode & 0777;
	entry->mtime = (int64_t)mtime;
	tar->in_file = entry->type == CELL_TAR_FILE;
	tar->left = size;
	tar->padding = (size_t)(-size % CELL_TAR_BLOCK);
	return CELL_TAR_ENTRY;
}

/* ---- the stream ---- */

static size_t least(size_t size, uint64_t other)
{
	return other < size ? (size_t)other : size;
}

int cell__tar_next(struct cell__tar *tar, const char **bytes, size_t *size, const char **ret_data, size_t *ret_size, struct cell_error *err)
{
	for (;;) {
		size_t n;
		if (tar->ended) { /* what follows the end is filler */
			*bytes += *size;
			*size = 0;
			return CELL_TAR_MORE;
		}
		if (tar->in_file && tar->left == 0) {
			tar->in_file = false;
			return CELL_TAR_DONE;
		}
		if (*size == 0)
			return CELL_TAR_MORE;
		if (tar->in_file) {
			n = least(*size, tar->left);
			*ret_data = *bytes;
			*ret_size = n;
			tar->left -= n;
			*bytes += n;
			*size -= n;
			return CELL_TAR_DATA;
		}
		if (tar->more_left > 0) {
			n = least(*size, tar->more_left);
			if (cell__buf_add(&tar->more, *bytes, n) < 0)
				return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for an archive");
			tar->more_left -= n;
			*bytes += n;
			*size -= n;
			if (tar->more_left == 0 && take_more(tar, err) < 0)
				return -1;
			continue;
		}
		if (tar->padding > 0) {
			n = least(*size, tar->padding);
			tar->padding -= n;
			*bytes += n;
			*size -= n;
			continue;
		}
		n = least(*size, CELL_TAR_BLOCK - tar->have);
		memcpy(tar->block + tar->have, *bytes, n);
		tar->have += n;
		*bytes += n;
		*size -= n;
		if (tar->have < CELL_TAR_BLOCK)
			continue;
		tar->have = 0;
		if (is_zero(tar->block)) {
			tar->ended = true;
			continue;
		}
		int rc = take_head(tar, err);
		if (rc != 0)
			return rc;
	}
}

/* ---- writing ---- */

static void put_octal(char *field, size_t size, uint64_t number)
{
	snprintf(field, size, "%0*llo", (int)size - 1, (unsigned long long)number);
}

static void fill_head(char *block, const char *name, char type, uint64_t size, unsigned mode, int64_t mtime)
{
	memset(block, 0, CELL_TAR_BLOCK);
	memcpy(block + NAME, name, strnlen(name, NAME_BYTES));
	put_octal(block + MODE, MODE_BYTES, mode & 0777);
	put_octal(block + MODE + 8, 8, 0);  /* owner */
	put_octal(block + MODE + 16, 8, 0); /* group */
	put_octal(block + SIZE, SIZE_BYTES, size <= OCTAL_SIZE_MAX ? size : 0);
	put_octal(block + MTIME, SIZE_BYTES, mtime > 0 && (uint64_t)mtime <= OCTAL_SIZE_MAX ? (uint64_t)mtime : 0);
	memset(block + SUM, ' ', SUM_BYTES);
	block[TYPE] = type;
	memcpy(block + MAGIC, "ustar", 6);
	memcpy(block + MAGIC + 6, "00", 2); /* the version */
}

static int add_block(struct cell__buf *out, char *block)
{
	unsigned sum = 0;
	for (size_t i = 0; i < CELL_TAR_BLOCK; i++)
		sum += (unsigned char)block[i];
	snprintf(block + SUM, SUM_BYTES, "%06o", sum); /* ends with a NUL and the space that is there */
	return cell__buf_add(out, block, CELL_TAR_BLOCK);
}

static int add_record(struct cell__buf *out, const char *key, const char *value)
{
	size_t rest = strlen(key) + strlen(value) + 3, length = rest;
	char digits[24];
	/* The length counts its own digits. */
	for (size_t before = 0; before != length;) {
		before = length;
		length = rest + (size_t)snprintf(digits, sizeof digits, "%zu", length);
	}
	return cell__buf_printf(out, "%zu %s=%s\n", length, key, value);
}

int cell__tar_add_head(struct cell__buf *out, const struct cell__tar_entry *entry)
{
	static const char types[] = { [CELL_TAR_FILE] = '0', [CELL_TAR_FOLDER] = '5', [CELL_TAR_LINK] = '2' };
	CELL_AUTO_BUF struct cell__buf records = CELL_BUF_INIT;
	char block[CELL_TAR_BLOCK], number[24];
	uint64_t size = entry->type == CELL_TAR_FILE ? entry->size : 0;
	int rc = 0;
	if (strlen(entry->path) > NAME_BYTES)
		rc |= add_record(&records, "path", entry->path);
	if (entry->type == CELL_TAR_LINK && strlen(entry->target) > NAME_BYTES)
		rc |= add_record(&records, "linkpath", entry->target);
	snprintf(number, sizeof number, "%llu", (unsigned long long)size);
	if (size > OCTAL_SIZE_MAX)
		rc |= add_record(&records, "size", number);
	if (rc == 0 && records.size > 0) {
		static const char zeros[CELL_TAR_BLOCK];
		fill_head(block, "././@PaxHeader", 'x', records.size, 0644, 0);
		rc = add_block(out, block);
		rc |= cell__buf_add(out, records.data, records.size);
		rc |= cell__buf_add(out, zeros, -records.size % CELL_TAR_BLOCK);
	}
	fill_head(block, entry->path, types[entry->type], size, entry->mode, entry->mtime);
	if (entry->type == CELL_TAR_LINK)
		memcpy(block + TARGET, entry->target, strnlen(entry->target, NAME_BYTES));
	rc |= add_block(out, block);
	return rc < 0 ? -1 : 0;
}

int cell__tar_add_end(struct cell__buf *out)
{
	static const char zeros[2 * CELL_TAR_BLOCK];
	return cell__buf_add(out, zeros, sizeof zeros);
}
