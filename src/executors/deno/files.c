#define _GNU_SOURCE
#include "executors/deno/files.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "executors/deno/deno.h"

int cell__deno_write_snapshot(const char *path, const char *bytes, size_t size)
{
	char temp[PATH_MAX + 32], tail[9];
	int error = 0;
	cell__random_hex(tail, 8);
	snprintf(temp, sizeof temp, "%s.%s", path, tail);
	CELL_AUTO_FD int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return errno;
	/* No fsync: a file that a crash left torn is found out by its hash. */
	if (cell__fd_write_all(fd, bytes, size) < 0 || rename(temp, path) < 0)
		error = errno;
	if (error)
		unlink(temp);
	return error;
}

/* Appends it: all of them together have a limit. */
static int read_file(const char *folder, const char *name, struct cell__buf *out, struct cell_error *err)
{
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/%s", folder, name);
	if (cell__file_read(AT_FDCWD, path, CELL_FILE_NO_LINK, CELL_WHEELS_BYTES - out->size, out, NULL) == 0)
		return 0;
	if (errno == EFBIG)
		return cell_fail(err, CELL_E_LIMIT, 0, "the packages in %.150s are too large", folder);
	return cell__file_fail(err, NULL, path, CELL_WHEELS_BYTES, errno);
}

static bool hash_fits(const char *bytes, size_t size, const char *expected)
{
	uint8_t digest[EVP_MAX_MD_SIZE];
	char text[2 * EVP_MAX_MD_SIZE + 1];
	unsigned n = 0;
	if (EVP_Digest(size ? bytes : "", size, digest, &n, EVP_sha256(), NULL) != 1)
		return false;
	for (unsigned i = 0; i < n; i++)
		snprintf(text + 2 * i, 3, "%02x", digest[i]);
	return strcmp(text, expected) == 0;
}

int cell__deno_read_wheels(const char *folder, json_t **ret_manifest, struct cell__buf *bytes, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	json_t *row;
	size_t i;
	if (read_file(folder, CELL_WHEELS_MANIFEST, &text, err) < 0)
		return -1;
	*ret_manifest = json_loadb(text.data ? text.data : "", text.size, 0, NULL);
	if (!json_is_array(*ret_manifest))
		return cell_fail(err, CELL_E_INVALID, 0, "%.150s/" CELL_WHEELS_MANIFEST " is not a valid manifest", folder);
	json_array_foreach(*ret_manifest, i, row) {
		const char *name, *hash;
		json_int_t size;
		size_t before = bytes->size;
		if (json_unpack(row, "[s, I, s]", &name, &size, &hash) < 0 || strchr(name, '/'))
			return cell_fail(err, CELL_E_INVALID, 0, "%.150s/" CELL_WHEELS_MANIFEST " is not a valid manifest", folder);
		if (read_file(folder, name, bytes, err) < 0)
			return -1;
		if (bytes->size - before != (size_t)size || !hash_fits(bytes->data + before, (size_t)size, hash))
			return cell_fail(err, CELL_E_INVALID, 0,
					 "%.60s in %.100s was changed after its installation; remove that folder and call deps.sync()",
					 name, folder);
	}
	return 0;
}
