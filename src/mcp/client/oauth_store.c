/* Tokens in files: one for each server's URL, mode 0600, replaced as a whole. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/random.h"
#include "mcp/client/oauth.h"

#define MAX_FILE (256u * 1024u)

/* The folder, which must be the caller's own and closed to others. */
static int open_dir(const struct cell__oauth *oauth, bool make, struct cell_error *err)
{
	struct stat found;
	if (!oauth->dir)
		return cell_fail(err, CELL_E_INVALID, 0, "there is no folder for tokens: set oauth_dir");
	if (make && mkdir(oauth->dir, 0700) < 0 && errno != EEXIST)
		return cell_fail(err, CELL_E_IO, errno, "create the folder for tokens %s", oauth->dir);
	int fd = open(oauth->dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return cell_fail(err, errno == ENOENT ? CELL_E_NOT_FOUND : CELL_E_IO, errno, "open the folder for tokens %s", oauth->dir);
	if (fstat(fd, &found) < 0 || found.st_uid != geteuid() || (found.st_mode & 022)) {
		close(fd);
		return cell_fail(err, CELL_E_FORBIDDEN, 0,
				 "the folder for tokens %s can be written by others; make it yours, with mode 0700", oauth->dir);
	}
	return fd;
}

static int name_file(const struct cell__oauth *oauth, char name[80])
{
	unsigned char hash[EVP_MAX_MD_SIZE];
	unsigned size;
	if (EVP_Digest(oauth->url, strlen(oauth->url), hash, &size, EVP_sha256(), NULL) != 1)
		return -1;
	for (unsigned i = 0; i < 32; i++)
		snprintf(name + 2 * i, 80 - 2 * i, "%02x", hash[i]);
	memcpy(name + 64, ".json", 6);
	return 0;
}

int cell__oauth_load(const struct cell__oauth *oauth, json_t **ret_kept, struct cell_error *err)
{
	char name[80];
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	CELL_AUTO_FD int dir = open_dir(oauth, false, err);
	if (dir < 0 && err->code == CELL_E_NOT_FOUND)
		return cell_fail(err, CELL_E_NOT_FOUND, 0, "nobody has logged in at %.120s", oauth->url);
	if (dir < 0 || name_file(oauth, name) < 0)
		return -1;
	if (cell__file_read(dir, name, CELL_FILE_NO_LINK, MAX_FILE, &text, NULL) < 0)
		return errno == ENOENT ? cell_fail(err, CELL_E_NOT_FOUND, 0, "nobody has logged in at %.120s", oauth->url)
				       : cell_fail(err, CELL_E_IO, errno, "read the tokens of %.120s", oauth->url);
	json_t *kept = json_loadb(text.data, text.size, 0, NULL);
	const char *url = json_string_value(json_object_get(kept, "url"));
	explicit_bzero(text.data, text.size);
	if (!url || strcmp(url, oauth->url) != 0) {
		json_decref(kept);
		return cell_fail(err, CELL_E_NOT_FOUND, 0, "the kept tokens of %.120s cannot be read", oauth->url);
	}
	*ret_kept = kept;
	return 0;
}

static int write_temp(int dir, const char *temp, const char *text, struct cell_error *err)
{
	CELL_AUTO_FD int fd = openat(dir, temp, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0 || fchmod(fd, 0600) < 0 || cell__fd_write_all(fd, text, strlen(text)) < 0 || fsync(fd) < 0)
		return cell_fail(err, CELL_E_IO, errno, "write tokens");
	return 0;
}

int cell__oauth_keep(const struct cell__oauth *oauth, const json_t *kept, struct cell_error *err)
{
	char name[80], temp[40] = ".new-", *text;
	CELL_AUTO_FD int dir = open_dir(oauth, true, err);
	if (dir < 0 || name_file(oauth, name) < 0)
		return -1;
	cell__random_hex(temp + 5, 16);
	text = json_dumps(kept, JSON_INDENT(1));
	int rc = text ? write_temp(dir, temp, text, err) : cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	if (text)
		explicit_bzero(text, strlen(text));
	free(text);
	if (rc == 0 && renameat(dir, temp, dir, name) < 0)
		rc = cell_fail(err, CELL_E_IO, errno, "keep the tokens of %.120s", oauth->url);
	if (rc < 0)
		unlinkat(dir, temp, 0);
	return rc;
}

int cell__oauth_forget(const struct cell__oauth *oauth, struct cell_error *err)
{
	char name[80];
	CELL_AUTO_FD int dir = open_dir(oauth, false, err);
	if (dir < 0 || name_file(oauth, name) < 0)
		return -1;
	if (unlinkat(dir, name, 0) < 0)
		return cell_fail(err, errno == ENOENT ? CELL_E_NOT_FOUND : CELL_E_IO, errno == ENOENT ? 0 : errno,
				 "nobody has logged in at %.120s", oauth->url);
	return 0;
}
