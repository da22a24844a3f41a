#define _GNU_SOURCE
#include "session/venv.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "store/store.h"

#define OURS ".workcell"
#define BUSY ".workcell-busy"
#define SYNCED ".workcell-synced"
#define CONFIGURED ".workcell-configured"
#define SHORT_HEX 8

/* ---- hashes ---- */

static void hash_parts(const void *const parts[], const size_t sizes[], size_t n, char *out, size_t n_chars)
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	bool ok = context && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1;
	for (size_t i = 0; ok && i < n; i++) /* each with its size, so that parts cannot run into each other */
		ok = EVP_DigestUpdate(context, &sizes[i], sizeof sizes[i]) == 1 &&
		     EVP_DigestUpdate(context, parts[i], sizes[i]) == 1;
	ok = ok && EVP_DigestFinal_ex(context, digest, NULL) == 1;
	EVP_MD_CTX_free(context);
	/* No digest, which only a lack of memory brings: a name that nothing else has is the safe answer. */
	if (!ok)
		cell__random_hex(out, n_chars);
	for (size_t i = 0; ok && i < n_chars; i++)
		out[i] = "0123456789abcdef"[i % 2 ? digest[i / 2] & 15 : digest[i / 2] >> 4];
	out[n_chars] = '\0';
}

void cell__venv_key(const char *real, const char *version, const char *root, char out[static CELL__VENV_KEY_SIZE])
{
	const void *parts[] = { real, version, root };
	const size_t sizes[] = { strlen(real), strlen(version), strlen(root) };
	hash_parts(parts, sizes, 3, out, CELL__VENV_KEY_SIZE - 1);
}

/* ---- interpreters ---- */

static char *join(const char *dir, const char *name)
{
	struct cell__buf buf = CELL_BUF_INIT;
	if (cell__buf_printf(&buf, "%s/%s", dir, name) < 0)
		return NULL;
	return cell__buf_take(&buf);
}

static bool is_program(const char *file)
{
	struct stat st;
	return stat(file, &st) == 0 && S_ISREG(st.st_mode) && access(file, X_OK) == 0;
}

char *cell__venv_find_program(const char *name, const char *path)
{
	if (strchr(name, '/')) {
		/* Links stay: a venv's python is known by its own name, not by that of the file behind it. */
		char cwd[PATH_MAX];
		if (!is_program(name)) {
			errno = ENOENT;
			return NULL;
		}
		if (name[0] == '/')
			return cell__strdup(name);
		return getcwd(cwd, sizeof cwd) ? join(cwd, name) : NULL;
	}
	while (*path) {
		size_t n = strcspn(path, ":");
		struct cell__buf file = CELL_BUF_INIT;
		/* Relative entries would mean something else to the spawner. */
		if (path[0] == '/' && cell__buf_printf(&file, "%.*s/%s", (int)n, path, name) == 0 && is_program(file.data))
			return cell__buf_take(&file);
		cell__buf_finish(&file);
		path += n + (path[n] == ':');
	}
	errno = ENOENT;
	return NULL;
}

int cell__venv_identify(const char *python, char **ret_real, char ret_stamp[static CELL__VENV_KEY_SIZE])
{
	struct stat st;
	char *real = realpath(python, NULL);
	if (!real || stat(real, &st) < 0) {
		free(real);
		return -1;
	}
	const int64_t numbers[] = { (int64_t)st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec, (int64_t)st.st_ino };
	const void *parts[] = { real, numbers };
	const size_t sizes[] = { strlen(real), sizeof numbers };
	hash_parts(parts, sizes, 2, ret_stamp, CELL__VENV_KEY_SIZE - 1);
	*ret_real = real;
	return 0;
}

bool cell__venv_version_ok(const char *version)
{
	size_t n = strspn(version, "abcdefghijklmnopqrstuvwxyz");
	if (n == 0 || version[n] != '-' || strlen(version) >= CELL__VENV_VERSION_SIZE)
		return false;
	const char *at = version + n;
	for (int i = 0; i < 3; i++) {
		at++;
		n = strspn(at, "0123456789");
		if (n == 0 || n > 6)
			return false;
		at += n;
		if (*at != (i < 2 ? '.' : '\0'))
			return false;
	}
	return true;
}

static ssize_t read_small(const char *file, char *out, size_t size)
{
	CELL_AUTO_FD int fd = open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	ssize_t n = fd < 0 ? -1 : read(fd, out, size - 1);
	out[n > 0 ? n : 0] = '\0';
	return n;
}

bool cell__venv_is_script(const char *file)
{
	CELL_AUTO_FD int fd = open(file, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	char start[2];
	return fd >= 0 && read(fd, start, 2) == 2 && memcmp(start, "#!", 2) == 0;
}

bool cell__venv_version_load(const char *dir, const char *stamp, char out[static CELL__VENV_VERSION_SIZE])
{
	CELL_AUTO_BUF struct cell__buf file = CELL_BUF_INIT;
	return cell__buf_printf(&file, "%s/.python-%s", dir, stamp) == 0 &&
	       read_small(file.data, out, CELL__VENV_VERSION_SIZE) > 0 && cell__venv_version_ok(out);
}

void cell__venv_version_save(const char *dir, const char *stamp, const char *version)
{
	CELL_AUTO_BUF struct cell__buf name = CELL_BUF_INIT;
	/* Only saves a question; when it cannot be written it is asked again. */
	if (cell__buf_printf(&name, ".python-%s", stamp) == 0)
		(void)cell__venv_write(dir, name.data, version, strlen(version));
}

/* ---- folders ---- */

int cell__venv_mkdir_all(const char *path)
{
	CELL_AUTO_FREE char *copy = cell__strdup(path);
	if (!copy) {
		errno = ENOMEM;
		return -1;
	}
	for (char *at = copy + 1; *at; at++)
		if (*at == '/') {
			*at = '\0';
			if (mkdir(copy, 0700) < 0 && errno != EEXIST && access(copy, F_OK) < 0)
				return -1;
			*at = '/';
		}
	return mkdir(copy, 0700) < 0 && errno != EEXIST ? -1 : 0;
}

static int remove_at(int dir_fd, const char *name, int depth)
{
	if (unlinkat(dir_fd, name, 0) == 0 || errno == ENOENT)
		return 0;
	if (errno != EISDIR && errno != EPERM)
		return -1;
	if (depth >= CELL__VENV_DEPTH) {
		errno = ELOOP;
		return -1;
	}
	int fd = openat(dir_fd, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	if (!dir) {
		int error = errno;
		cell__close_fd(&fd);
		errno = error;
		return -1;
	}
	(void)fchmod(fd, 0700); /* a package may have made it read-only */
	int rc = 0, error = 0;
	struct dirent *entry;
	while ((entry = readdir(dir)))
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
		    remove_at(dirfd(dir), entry->d_name, depth + 1) < 0) {
			rc = -1;
			error = errno;
		}
	closedir(dir);
	if (rc == 0)
		return unlinkat(dir_fd, name, AT_REMOVEDIR);
	errno = error;
	return rc;
}

int cell__venv_remove_tree(const char *path)
{
	return remove_at(AT_FDCWD, path, 0);
}

static const char *last_of(const char *dir)
{
	const char *slash = strrchr(dir, '/');
	return slash ? slash + 1 : dir;
}

char *cell__venv_sibling(const char *dir, const char *kind, bool unique)
{
	struct cell__buf buf = CELL_BUF_INIT;
	const char *name = last_of(dir);
	char hex[SHORT_HEX + 1];
	cell__random_hex(hex, SHORT_HEX);
	if (cell__buf_printf(&buf, "%.*s.%s.%s%s%s", (int)(name - dir), dir, name, kind, unique ? "-" : "",
			     unique ? hex : "") < 0)
		return NULL;
	return cell__buf_take(&buf);
}

int cell__venv_lock(const char *dir, int *ret_fd, struct cell_error *err)
{
	CELL_AUTO_FREE char *file = cell__venv_sibling(dir, "lock", false);
	if (!file)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
	CELL_AUTO_FD int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return cell_fail(err, CELL_E_IO, errno, "open %s", file);
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno == EWOULDBLOCK || errno == EINTR)
			return 1;
		return cell_fail(err, CELL_E_IO, errno, "lock %s", file);
	}
	/* Somebody may have removed the file between the two: a lock on what nobody else finds is none. */
	struct stat mine, named;
	if (fstat(fd, &mine) < 0 || stat(file, &named) < 0 || mine.st_ino != named.st_ino ||
	    mine.st_dev != named.st_dev)
		return 1;
	*ret_fd = cell__take_fd(&fd);
	return 0;
}

void cell__venv_sweep(const char *dir)
{
	const char *name = last_of(dir);
	CELL_AUTO_FREE char *parent = cell__strndup(dir, (size_t)(name - dir));
	CELL_AUTO_BUF struct cell__buf made = CELL_BUF_INIT, old = CELL_BUF_INIT;
	if (!parent || cell__buf_printf(&made, ".%s.new-", name) < 0 || cell__buf_printf(&old, ".%s.old-", name) < 0)
		return;
	DIR *stream = opendir(parent);
	if (!stream)
		return;
	struct dirent *entry;
	while ((entry = readdir(stream)))
		if (strncmp(entry->d_name, made.data, made.size) == 0 || strncmp(entry->d_name, old.data, old.size) == 0)
			(void)remove_at(dirfd(stream), entry->d_name, 0); /* what resists is met again next time */
	closedir(stream);
}

void cell__venv_sweep_private(const char *parent)
{
	DIR *stream = opendir(parent);
	if (!stream)
		return;
	struct dirent *entry;
	while ((entry = readdir(stream))) {
		if (strncmp(entry->d_name, "." CELL__VENV_PRIVATE, sizeof "." CELL__VENV_PRIVATE - 1) != 0)
			continue;
		size_t n = strlen(entry->d_name);
		if (n < 6 || strcmp(entry->d_name + n - 5, ".lock") != 0)
			continue;
		/* Its owner holds the lock all its life; names are not used twice, so the file can go as well. */
		CELL_AUTO_FREE char *name = cell__strndup(entry->d_name + 1, n - 6);
		CELL_AUTO_FREE char *dir = name ? join(parent, name) : NULL;
		CELL_AUTO_FD int lock = -1;
		if (!dir || cell__venv_lock(dir, &lock, NULL) != 0)
			continue;
		cell__venv_sweep(dir);
		if (remove_at(dirfd(stream), name, 0) == 0)
			unlinkat(dirfd(stream), entry->d_name, 0);
	}
	closedir(stream);
}

static bool has_file(const char *dir, const char *name)
{
	CELL_AUTO_FREE char *file = join(dir, name);
	struct stat st;
	return file && lstat(file, &st) == 0 && S_ISREG(st.st_mode);
}

enum cell__venv_state cell__venv_look(const char *dir)
{
	struct stat st;
	if (lstat(dir, &st) < 0)
		return errno == ENOENT ? CELL__VENV_ABSENT : CELL__VENV_FOREIGN;
	if (has_file(dir, "pyvenv.cfg"))
		return CELL__VENV_PRESENT;
	DIR *stream = opendir(dir);
	if (!stream)
		return CELL__VENV_FOREIGN;
	bool empty = true;
	struct dirent *entry;
	while (empty && (entry = readdir(stream)))
		empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
	closedir(stream);
	return empty ? CELL__VENV_ABSENT : CELL__VENV_FOREIGN;
}

bool cell__venv_is_ours(const char *dir)
{
	return has_file(dir, OURS);
}

bool cell__venv_is_busy(const char *dir)
{
	return has_file(dir, BUSY);
}

int cell__venv_set_busy(const char *dir, bool busy)
{
	if (busy)
		return cell__venv_write(dir, BUSY, "", 0);
	CELL_AUTO_FREE char *file = join(dir, BUSY);
	if (!file) {
		errno = ENOMEM;
		return -1;
	}
	return unlink(file) < 0 && errno != ENOENT ? -1 : 0;
}

static int write_all(int fd, const char *bytes, size_t size)
{
	while (size > 0) {
		ssize_t n = write(fd, bytes, size);
		if (n < 0 && errno != EINTR)
			return -1;
		if (n > 0) {
			bytes += n;
			size -= (size_t)n;
		}
	}
	return 0;
}

int cell__venv_write(const char *dir, const char *name, const void *bytes, size_t size)
{
	CELL_AUTO_FREE char *file = join(dir, name);
	CELL_AUTO_BUF struct cell__buf temp = CELL_BUF_INIT;
	char hex[SHORT_HEX + 1];
	cell__random_hex(hex, SHORT_HEX);
	if (!file || cell__buf_printf(&temp, "%s.%s", file, hex) < 0) {
		errno = ENOMEM;
		return -1;
	}
	CELL_AUTO_FD int fd = open(temp.data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -1;
	if (write_all(fd, bytes, size) == 0 && rename(temp.data, file) == 0)
		return 0;
	int error = errno;
	unlink(temp.data);
	errno = error;
	return -1;
}

/* ---- a new venv takes its place ---- */

static int replace_all(const struct cell__buf *text, const char *from, const char *to, struct cell__buf *out)
{
	const char *at = text->data, *end = text->data + text->size, *hit;
	size_t from_size = strlen(from);
	while ((hit = memmem(at, (size_t)(end - at), from, from_size))) {
		if (cell__buf_add(out, at, (size_t)(hit - at)) < 0 || cell__buf_add_str(out, to) < 0)
			return -1;
		at = hit + from_size;
	}
	return cell__buf_add(out, at, (size_t)(end - at));
}

/* Scripts and settings name the folder in which they were made. */
static int rename_in_file(int dir_fd, const char *name, const char *from, const char *to)
{
	CELL_AUTO_FD int fd = openat(dir_fd, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return errno == ELOOP || errno == EISDIR ? 0 : -1; /* bin/python is a link */
	struct stat st;
	if (fstat(fd, &st) < 0)
		return -1;
	if (!S_ISREG(st.st_mode) || st.st_size > CELL__VENV_SCRIPT_BYTES)
		return 0;
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT, changed = CELL_BUF_INIT;
	size_t size = (size_t)st.st_size;
	if (size == 0)
		return 0;
	if (cell__buf_reserve(&text, size) < 0) {
		errno = ENOMEM;
		return -1;
	}
	ssize_t n = pread(fd, text.data, size, 0);
	if (n < 0)
		return -1;
	text.size = (size_t)n;
	if (memchr(text.data, '\0', text.size) || !memmem(text.data, text.size, from, strlen(from)))
		return 0;
	if (replace_all(&text, from, to, &changed) < 0) {
		errno = ENOMEM;
		return -1;
	}
	if (ftruncate(fd, 0) < 0 || lseek(fd, 0, SEEK_SET) < 0)
		return -1;
	return write_all(fd, changed.data, changed.size);
}

static int rename_in_scripts(const char *made, const char *dir)
{
	CELL_AUTO_FREE char *bin = join(made, "bin");
	CELL_AUTO_FD int made_fd = open(made, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (!bin || made_fd < 0 || rename_in_file(made_fd, "pyvenv.cfg", made, dir) < 0)
		return -1;
	DIR *stream = opendir(bin);
	if (!stream)
		return -1;
	int rc = 0;
	struct dirent *entry;
	while (rc == 0 && (entry = readdir(stream)))
		if (entry->d_type == DT_REG || entry->d_type == DT_UNKNOWN)
			rc = entry->d_name[0] == '.' ? 0 : rename_in_file(dirfd(stream), entry->d_name, made, dir);
	int error = errno;
	closedir(stream);
	errno = error;
	return rc;
}

int cell__venv_remove(const char *dir)
{
	CELL_AUTO_FREE char *old = cell__venv_sibling(dir, "old", true);
	if (!old) {
		errno = ENOMEM;
		return -1;
	}
	/* Out of the way first, in one step: nobody ever sees half of it. */
	if (rename(dir, old) < 0)
		return errno == ENOENT ? 0 : -1;
	return cell__venv_remove_tree(old);
}

/* 0, or -1 with errno and everything as before. */
static int take_place(const char *made, const char *dir)
{
	if (rename(made, dir) == 0)
		return 0;
	if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR)
		return -1;
	CELL_AUTO_FREE char *old = cell__venv_sibling(dir, "old", true);
	if (!old) {
		errno = ENOMEM;
		return -1;
	}
	if (rename(dir, old) < 0)
		return -1;
	if (rename(made, dir) < 0) {
		int error = errno;
		(void)rename(old, dir);
		errno = error;
		return -1;
	}
	(void)cell__venv_remove_tree(old); /* a rest is swept by the next maker */
	return 0;
}

int cell__venv_adopt(const char *made, const char *dir, struct cell_error *err)
{
	int rc = 0;
	if (rename_in_scripts(made, dir) < 0 || cell__venv_write(made, OURS, "", 0) < 0)
		rc = cell_fail(err, CELL_E_IO, errno, "finish the venv %s", made);
	else if (take_place(made, dir) < 0)
		rc = cell_fail(err, CELL_E_IO, errno, "put the venv at %s", dir);
	if (rc < 0)
		(void)cell__venv_remove_tree(made);
	return rc;
}

/* ---- what is in it ---- */

char *cell__venv_site(const char *dir, const char *version)
{
	const char *number = strchr(version, '-');
	const char *second = number ? strrchr(number, '.') : NULL;
	const char *word = strncmp(version, "pypy", 4) == 0 ? "pypy" : "python";
	struct cell__buf site = CELL_BUF_INIT;
	struct stat st;
	if (!second || cell__buf_printf(&site, "%s/lib/%s%.*s/site-packages", dir, word, (int)(second - number - 1),
					number + 1) < 0) {
		errno = ENOMEM;
		return NULL;
	}
	if (stat(site.data, &st) == 0 && S_ISDIR(st.st_mode))
		return cell__buf_take(&site);
	cell__buf_finish(&site);
	errno = ENOENT;
	return NULL;
}

/* "My.Pkg-1.0.dist-info" as "my-pkg==1.0"; NULL when it is no such name, or memory is gone. */
static char *dist_of(const char *entry)
{
	static const char suffix[] = ".dist-info";
	size_t size = strlen(entry);
	if (size <= sizeof suffix - 1 || strcmp(entry + size - (sizeof suffix - 1), suffix) != 0)
		return NULL;
	size -= sizeof suffix - 1;
	const char *dash = memrchr(entry, '-', size);
	if (!dash || dash == entry || !isalnum((unsigned char)entry[0]))
		return NULL;
	struct cell__buf out = CELL_BUF_INIT;
	int rc = 0;
	for (const char *at = entry; at < dash; at++) {
		bool separator = strchr("-_.", *at) != NULL;
		char c = separator ? '-' : (char)tolower((unsigned char)*at);
		if (!separator || out.data[out.size - 1] != '-')
			rc |= cell__buf_add(&out, &c, 1);
	}
	rc |= cell__buf_printf(&out, "==%.*s\n", (int)(entry + size - dash - 1), dash + 1);
	if (rc == 0)
		return cell__buf_take(&out);
	cell__buf_finish(&out);
	return NULL;
}

static int compare_texts(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int cell__venv_listing(const char *site, struct cell__buf *out, struct cell_error *err)
{
	DIR *stream = opendir(site);
	if (!stream)
		return cell_fail(err, CELL_E_IO, errno, "open %s", site);
	char **dists = NULL;
	size_t n = 0, room = 0;
	int rc = 0;
	struct dirent *entry;
	while (rc == 0 && (entry = readdir(stream))) {
		char *dist = dist_of(entry->d_name);
		if (!dist)
			continue;
		if (n == room) {
			room = room ? room * 2 : 64;
			char **more = n < CELL__VENV_DISTS ? cell__realloc(dists, room * sizeof *dists) : NULL;
			if (!more) {
				free(dist);
				rc = cell_fail(err, CELL_E_LIMIT, 0, "too many packages in %s", site);
				break;
			}
			dists = more;
		}
		dists[n++] = dist;
	}
	closedir(stream);
	if (n > 0)
		qsort(dists, n, sizeof *dists, compare_texts);
	for (size_t i = 0; i < n; i++) {
		if (rc == 0 && cell__buf_add_str(out, dists[i]) < 0)
			rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
		free(dists[i]);
	}
	free(dists);
	return rc;
}

const char *cell__venv_listed(const struct cell__buf *listing, const char *name, size_t name_size,
			      size_t *ret_size)
{
	const char *at = listing->data;
	while (at && *at) {
		size_t line = strcspn(at, "\n");
		if (line >= name_size + 2 && memcmp(at, name, name_size) == 0 && memcmp(at + name_size, "==", 2) == 0) {
			*ret_size = line - name_size - 2;
			return at + name_size + 2;
		}
		at += line + (at[line] == '\n');
	}
	return NULL;
}

static int synced_hash(const struct cell__buf *listing, json_t *configured, char out[static CELL__VENV_HASH_SIZE])
{
	CELL_AUTO_BUF struct cell__buf specs = CELL_BUF_INIT;
	for (size_t i = 0; i < json_array_size(configured); i++)
		if (cell__buf_printf(&specs, "%s\n", json_string_value(json_array_get(configured, i))) < 0)
			return -1;
	const void *parts[] = { listing->data ? listing->data : "", specs.data ? specs.data : "" };
	const size_t sizes[] = { listing->size, specs.size };
	hash_parts(parts, sizes, 2, out, CELL__VENV_HASH_SIZE - 1);
	return 0;
}

int cell__venv_set_synced(const char *dir, const struct cell__buf *listing, json_t *configured)
{
	char hash[CELL__VENV_HASH_SIZE];
	if (synced_hash(listing, configured, hash) < 0)
		return -1;
	return cell__venv_write(dir, SYNCED, hash, strlen(hash));
}

bool cell__venv_is_synced(const char *dir, const struct cell__buf *listing, json_t *configured)
{
	char hash[CELL__VENV_HASH_SIZE], found[CELL__VENV_HASH_SIZE + 1];
	CELL_AUTO_FREE char *file = join(dir, SYNCED);
	return file && synced_hash(listing, configured, hash) == 0 && read_small(file, found, sizeof found) > 0 &&
	       strcmp(found, hash) == 0;
}

int cell__venv_set_configured(const char *dir, json_t *configured)
{
	CELL_AUTO_FREE char *text = json_dumps(configured, JSON_COMPACT);
	if (!text) {
		errno = ENOMEM;
		return -1;
	}
	return cell__venv_write(dir, CONFIGURED, text, strlen(text));
}

int cell__venv_configured(const char *dir, json_t **ret_configured)
{
	CELL_AUTO_FREE char *file = join(dir, CONFIGURED);
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT;
	CELL_AUTO_FD int fd = file ? open(file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
	struct stat st;
	json_t *all = NULL, *good = json_array();
	if (!file || !good) {
		json_decref(good);
		return -1;
	}
	if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size <= (off_t)CELL__VENV_CONFIGURED_BYTES &&
	    cell__buf_reserve(&text, (size_t)st.st_size) == 0) {
		ssize_t n = read(fd, text.data, (size_t)st.st_size);
		all = json_loadb(text.data, n > 0 ? (size_t)n : 0, 0, NULL);
	}
	/* Code in a session can write there too: only what could have been configured counts. */
	for (size_t i = 0; i < json_array_size(all); i++) {
		char spec[CELL__STORE_DEP_BYTES + 1];
		const char *found = json_string_value(json_array_get(all, i));
		if (found && cell__dep_normalise(found, spec, NULL) == 0)
			json_array_append_new(good, json_string(spec));
	}
	json_decref(all);
	*ret_configured = good;
	return 0;
}
