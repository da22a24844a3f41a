#define _GNU_SOURCE
#include "deps/venv.h"

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

#include "base/file.h"
#include "base/tree.h"
#include "storage/file.h"
#include "storage/store.h"

#define OURS ".workcell"
#define BUSY ".workcell-busy"
#define SYNCED ".workcell-synced"
#define CONFIGURED ".workcell-configured"
#define SEAL ".workcell-seal"
#define SHORT_HEX 8

/* ---- hashes ---- */

static void hash_parts(const void *const parts[], const size_t sizes[], size_t n, char *out, size_t n_chars)
{
	unsigned char digest[EVP_MAX_MD_SIZE];
	EVP_MD_CTX *context = EVP_MD_CTX_new();
	bool ok = context && EVP_DigestInit_ex(context, EVP_sha256(), NULL) == 1;
	for (size_t i = 0; ok && i < n; i++) /* each with its size, so that parts cannot run into each other */
		ok = EVP_DigestUpdate(context, &sizes[i], sizeof sizes[i]) == 1 && EVP_DigestUpdate(context, parts[i], sizes[i]) == 1;
	ok = ok && EVP_DigestFinal_ex(context, digest, NULL) == 1;
	EVP_MD_CTX_free(context);
	/* The digest failed, which only a lack of memory causes: a unique name is the safe answer. */
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
		/* Relative entries would have another meaning for the spawner. */
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
	return cell__buf_printf(&file, "%s/.python-%s", dir, stamp) == 0 && read_small(file.data, out, CELL__VENV_VERSION_SIZE) > 0 &&
	       cell__venv_version_ok(out);
}

void cell__venv_version_save(const char *dir, const char *stamp, const char *version)
{
	CELL_AUTO_BUF struct cell__buf name = CELL_BUF_INIT;
	/* Only a cache: if it cannot be written, the interpreter is asked again. */
	if (cell__buf_printf(&name, ".python-%s", stamp) == 0)
		(void)cell__venv_write(dir, name.data, version, strlen(version));
}

/* The stamp is that of the file behind the name; a venv's own settings matter too, and may change without it. */
static int answer_name(const char *python, const char *stamp, struct cell__buf *out)
{
	struct stat st = { 0 };
	char key[CELL__VENV_KEY_SIZE];
	const char *slash = strrchr(python, '/');
	CELL_AUTO_BUF struct cell__buf settings = CELL_BUF_INIT;
	if (!slash || cell__buf_printf(&settings, "%.*s/../pyvenv.cfg", (int)(slash - python), python) < 0)
		return -1;
	(void)stat(settings.data, &st); /* most have none */
	const int64_t numbers[] = { (int64_t)st.st_size, st.st_mtim.tv_sec, st.st_mtim.tv_nsec, (int64_t)st.st_ino };
	const void *parts[] = { python, stamp, numbers };
	const size_t sizes[] = { strlen(python), strlen(stamp), sizeof numbers };
	hash_parts(parts, sizes, 3, key, sizeof key - 1);
	return cell__buf_printf(out, ".files-%s", key);
}

int cell__venv_answer_load(const char *dir, const char *python, const char *stamp, struct cell__buf *out)
{
	CELL_AUTO_BUF struct cell__buf name = CELL_BUF_INIT;
	return answer_name(python, stamp, &name) < 0 ? -1 : cell__venv_read(dir, name.data, CELL__VENV_ANSWER_BYTES, out);
}

void cell__venv_answer_save(const char *dir, const char *python, const char *stamp, const struct cell__buf *answer)
{
	CELL_AUTO_BUF struct cell__buf name = CELL_BUF_INIT;
	if (answer_name(python, stamp, &name) == 0)
		(void)cell__venv_write(dir, name.data, answer->data, answer->size);
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

int cell__venv_remove_tree(const char *path)
{
	return cell__tree_remove(AT_FDCWD, path);
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
	if (cell__buf_printf(&buf, "%.*s.%s.%s%s%s", (int)(name - dir), dir, name, kind, unique ? "-" : "", unique ? hex : "") < 0)
		return NULL;
	return cell__buf_take(&buf);
}

int cell__venv_lock(const char *file, int *ret_fd, struct cell_error *err)
{
	CELL_AUTO_FD int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return cell_fail(err, CELL_E_IO, errno, "open %s", file);
	if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno == EWOULDBLOCK || errno == EINTR)
			return 1;
		return cell_fail(err, CELL_E_IO, errno, "lock %s", file);
	}
	/* The file may have been removed between the two: a lock on a file that no other process finds is useless. */
	struct stat mine, named;
	if (fstat(fd, &mine) < 0 || stat(file, &named) < 0 || mine.st_ino != named.st_ino || mine.st_dev != named.st_dev)
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
			(void)cell__tree_remove(dirfd(stream), entry->d_name); /* tried again next time */
	closedir(stream);
}

/* Its owner holds the lock all its life; names are not used twice, so the lock's file can go as well. */
static void sweep_one(DIR *parent, const char *parent_path, const char *name, bool sandbox)
{
	CELL_AUTO_BUF struct cell__buf lock = CELL_BUF_INIT;
	CELL_AUTO_FD int held = -1;
	if (cell__buf_printf(&lock, sandbox ? "%s/%s/" CELL__VENV_LOCK : "%s/.%s.lock", parent_path, name) < 0)
		return;
	/* In the sandbox's folder: an owner that has made it and not locked it yet loses only an empty folder. */
	if (sandbox && access(lock.data, F_OK) < 0)
		return;
	if (cell__venv_lock(lock.data, &held, NULL) != 0)
		return;
	CELL_AUTO_FREE char *dir = join(parent_path, name);
	if (dir && !sandbox)
		cell__venv_sweep(dir);
	if (cell__tree_remove(dirfd(parent), name) == 0 && !sandbox)
		unlink(lock.data);
}

void cell__venv_sweep_private(const char *parent, bool sandbox)
{
	const char *prefix = sandbox ? CELL__VENV_PRIVATE : "." CELL__VENV_PRIVATE;
	DIR *stream = opendir(parent);
	if (!stream)
		return;
	struct dirent *entry;
	while ((entry = readdir(stream))) {
		size_t n = strlen(entry->d_name);
		if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0)
			continue;
		if (!sandbox && (n < 6 || strcmp(entry->d_name + n - 5, ".lock") != 0))
			continue;
		CELL_AUTO_FREE char *name = sandbox ? cell__strdup(entry->d_name) : cell__strndup(entry->d_name + 1, n - 6);
		if (name)
			sweep_one(stream, parent, name, sandbox);
	}
	closedir(stream);
}

static bool has_file(const char *dir, const char *name)
{
	CELL_AUTO_FREE char *file = join(dir, name);
	struct stat st;
	return file && lstat(file, &st) == 0 && S_ISREG(st.st_mode);
}

/* Below a folder of ours, or one that a person named. */
static int open_inside(const char *dir, const char *path, int flags, bool hostile)
{
	CELL_AUTO_FD int fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC | (hostile ? O_NOFOLLOW : 0));
	if (fd < 0)
		return -1;
	return hostile ? cell__path_open(fd, path, flags, 0) : openat(fd, path, flags | O_CLOEXEC);
}

enum cell__venv_state cell__venv_inspect(const char *dir, bool hostile)
{
	struct stat st;
	if (lstat(dir, &st) < 0)
		return errno == ENOENT ? CELL__VENV_ABSENT : CELL__VENV_FOREIGN;
	if (hostile && !S_ISDIR(st.st_mode))
		return CELL__VENV_FOREIGN;
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

bool cell__venv_is_busy(const char *notes)
{
	return has_file(notes, BUSY);
}

int cell__venv_set_busy(const char *notes, bool busy)
{
	if (busy)
		return cell__venv_write(notes, BUSY, "", 0);
	CELL_AUTO_FREE char *file = join(notes, BUSY);
	if (!file) {
		errno = ENOMEM;
		return -1;
	}
	return unlink(file) < 0 && errno != ENOENT ? -1 : 0;
}

static int write_in(int dir_fd, const char *name, const void *bytes, size_t size)
{
	CELL_AUTO_BUF struct cell__buf temp = CELL_BUF_INIT;
	char hex[SHORT_HEX + 1];
	cell__random_hex(hex, SHORT_HEX);
	if (cell__buf_printf(&temp, "%s.%s", name, hex) < 0) {
		errno = ENOMEM;
		return -1;
	}
	CELL_AUTO_FD int fd = openat(dir_fd, temp.data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return -1;
	if (cell__fd_write_all(fd, bytes, size) == 0 && renameat(dir_fd, temp.data, dir_fd, name) == 0)
		return 0;
	int error = errno;
	unlinkat(dir_fd, temp.data, 0);
	errno = error;
	return -1;
}

int cell__venv_write(const char *dir, const char *name, const void *bytes, size_t size)
{
	CELL_AUTO_FD int fd = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	return fd < 0 ? -1 : write_in(fd, name, bytes, size);
}

int cell__venv_write_hostile(const char *dir, const char *name, const void *bytes, size_t size)
{
	CELL_AUTO_FD int fd = open(dir, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? -1 : write_in(fd, name, bytes, size);
}

int cell__venv_read(const char *dir, const char *name, size_t max, struct cell__buf *out)
{
	CELL_AUTO_FD int dir_fd = open(dir, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	CELL_AUTO_FD int fd = dir_fd < 0 ? -1 : cell__path_open(dir_fd, name, O_RDONLY | O_NONBLOCK, 0);
	return fd < 0 ? -1 : cell__file_read_fd(fd, max, out, NULL);
}

/* ---- the seal: whether its interpreter is still the one that it was made with ---- */

static int make_seal(const char *dir, struct cell__buf *out)
{
	static const char *const links[] = { "python", "python3" };
	CELL_AUTO_FD int bin = open_inside(dir, "bin", O_PATH | O_DIRECTORY, true);
	if (bin < 0)
		return -1;
	for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
		char target[PATH_MAX];
		ssize_t n = readlinkat(bin, links[i], target, sizeof target);
		if (n < 0 && errno != ENOENT)
			return -1;
		if (cell__buf_add(out, target, n > 0 ? (size_t)n : 0) < 0 || cell__buf_add(out, "\n", 1) < 0)
			return -1;
	}
	return cell__venv_read(dir, "pyvenv.cfg", CELL__VENV_SETTINGS_BYTES, out);
}

int cell__venv_set_seal(const char *notes, const char *dir)
{
	CELL_AUTO_BUF struct cell__buf seal = CELL_BUF_INIT;
	return make_seal(dir, &seal) < 0 ? -1 : cell__venv_write(notes, SEAL, seal.data, seal.size);
}

bool cell__venv_is_sealed(const char *notes, const char *dir)
{
	CELL_AUTO_BUF struct cell__buf seal = CELL_BUF_INIT, noted = CELL_BUF_INIT;
	return make_seal(dir, &seal) == 0 && cell__venv_read(notes, SEAL, CELL__VENV_SETTINGS_BYTES + 2 * PATH_MAX + 2, &noted) == 0 &&
	       seal.size == noted.size && memcmp(seal.data, noted.data, seal.size) == 0;
}

int cell__venv_move_lock(const char *dir, const char *file)
{
	/* Confined installers write to that folder: anything they left in its place is removed. */
	CELL_AUTO_FD int made = open(file, O_RDONLY | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
	if (made < 0 && cell__venv_remove_tree(file) == 0)
		made = open(file, O_RDONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	CELL_AUTO_FD int fd = open(dir, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (made < 0 || fd < 0)
		return -1;
	if (unlinkat(fd, ".lock", 0) < 0 && errno == EISDIR && cell__tree_remove(fd, ".lock") < 0)
		return -1;
	return symlinkat(file, fd, ".lock");
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
	CELL_AUTO_BUF struct cell__buf text = CELL_BUF_INIT, changed = CELL_BUF_INIT;
	if (cell__file_read_fd(fd, CELL__VENV_SCRIPT_BYTES, &text, NULL) < 0)
		return errno == EFBIG || errno == EINVAL || errno == EISDIR ? 0 : -1;
	if (memchr(text.data, '\0', text.size) || !memmem(text.data, text.size, from, strlen(from)))
		return 0;
	if (replace_all(&text, from, to, &changed) < 0) {
		errno = ENOMEM;
		return -1;
	}
	if (ftruncate(fd, 0) < 0 || lseek(fd, 0, SEEK_SET) < 0)
		return -1;
	return cell__fd_write_all(fd, changed.data, changed.size);
}

static int rename_in_scripts(const char *made, const char *dir)
{
	CELL_AUTO_FD int made_fd = open(made, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (made_fd < 0 || rename_in_file(made_fd, "pyvenv.cfg", made, dir) < 0)
		return -1;
	CELL_AUTO_FD int bin = openat(made_fd, "bin", O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	DIR *stream = bin < 0 ? NULL : fdopendir(bin);
	if (!stream)
		return -1;
	(void)cell__take_fd(&bin); /* the stream's now */
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
	/* Move it away first, in one step: no process ever sees half of it. */
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

int cell__venv_adopt(const char *made, const char *dir, const char *notes, struct cell_error *err)
{
	int rc = 0;
	/* Where the notes are in the venv itself, they come with it. */
	if (rename_in_scripts(made, dir) < 0 || cell__venv_write(strcmp(notes, dir) == 0 ? made : notes, OURS, "", 0) < 0)
		rc = cell_fail(err, CELL_E_IO, errno, "finish the venv %s", made);
	else if (take_place(made, dir) < 0)
		rc = cell_fail(err, CELL_E_IO, errno, "put the venv at %s", dir);
	if (rc < 0)
		(void)cell__venv_remove_tree(made);
	return rc;
}

/* ---- its content ---- */

char *cell__venv_site(const char *dir, const char *version, bool hostile)
{
	const char *number = strchr(version, '-');
	const char *second = number ? strrchr(number, '.') : NULL;
	const char *word = strncmp(version, "pypy", 4) == 0 ? "pypy" : "python";
	struct cell__buf site = CELL_BUF_INIT;
	if (!second || cell__buf_printf(&site, "%s/lib/%s%.*s/site-packages", dir, word, (int)(second - number - 1), number + 1) < 0) {
		errno = ENOMEM;
		return NULL;
	}
	CELL_AUTO_FD int fd = open_inside(dir, site.data + strlen(dir) + 1, O_PATH | O_DIRECTORY, hostile);
	if (fd >= 0)
		return cell__buf_take(&site);
	cell__buf_finish(&site);
	errno = ENOENT;
	return NULL;
}

/* *ret_dist: "my-pkg==1.0" for "My.Pkg-1.0.dist-info", NULL for a name of another form.  -1: out of memory. */
static int dist_of(const char *entry, char **ret_dist)
{
	*ret_dist = NULL;
	static const char suffix[] = ".dist-info";
	size_t size = strlen(entry);
	if (size <= sizeof suffix - 1 || strcmp(entry + size - (sizeof suffix - 1), suffix) != 0)
		return 0;
	size -= sizeof suffix - 1;
	const char *dash = memrchr(entry, '-', size);
	if (!dash || dash == entry || !isalnum((unsigned char)entry[0]))
		return 0;
	/* The package's author chose the name: it must not contain line breaks or control characters. */
	for (const char *at = entry; at < entry + size; at++)
		if (!isalnum((unsigned char)*at) && !strchr("-_.+!", *at))
			return 0;
	struct cell__buf out = CELL_BUF_INIT;
	int rc = 0;
	for (const char *at = entry; at < dash; at++) {
		bool separator = strchr("-_.", *at) != NULL;
		char c = separator ? '-' : (char)tolower((unsigned char)*at);
		if (!separator || (out.size > 0 && out.data[out.size - 1] != '-'))
			rc |= cell__buf_add(&out, &c, 1);
	}
	rc |= cell__buf_printf(&out, "==%.*s\n", (int)(entry + size - dash - 1), dash + 1);
	if (rc == 0)
		*ret_dist = cell__buf_take(&out);
	cell__buf_finish(&out);
	return rc;
}

static int compare_texts(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int cell__venv_listing(const char *dir, const char *site, bool hostile, struct cell__buf *out, struct cell_error *err)
{
	int fd = open_inside(dir, site + strlen(dir) + 1, O_RDONLY | O_DIRECTORY, hostile);
	DIR *stream = fd < 0 ? NULL : fdopendir(fd);
	if (!stream) {
		cell_fail(err, CELL_E_IO, errno, "open %s", site);
		cell__close_fd(&fd);
		return -1;
	}
	char **dists = NULL;
	size_t n = 0, room = 0, seen = 0;
	int rc = 0;
	struct dirent *entry;
	while (rc == 0 && (entry = readdir(stream))) {
		if (hostile && ++seen > CELL__VENV_ENTRIES) {
			rc = cell_fail(err, CELL_E_LIMIT, 0, "more than %u files and folders in %s", CELL__VENV_ENTRIES, site);
			break;
		}
		char *dist;
		if (dist_of(entry->d_name, &dist) < 0) {
			rc = cell_fail(err, CELL_E_NOMEM, 0, "out of memory");
			break;
		}
		if (!dist)
			continue;
		if (n == room) {
			room = room ? room * 2 : 64;
			char **more = n < CELL__VENV_DISTS ? cell__realloc(dists, room * sizeof *dists) : NULL;
			if (!more) {
				free(dist);
				rc = n < CELL__VENV_DISTS ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory")
							  : cell_fail(err, CELL_E_LIMIT, 0, "too many packages in %s", site);
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

const char *cell__venv_listed(const struct cell__buf *listing, const char *name, size_t name_size, size_t *ret_size)
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

int cell__venv_set_synced(const char *notes, const struct cell__buf *listing, json_t *configured)
{
	char hash[CELL__VENV_HASH_SIZE];
	if (synced_hash(listing, configured, hash) < 0)
		return -1;
	return cell__venv_write(notes, SYNCED, hash, strlen(hash));
}

bool cell__venv_is_synced(const char *notes, const struct cell__buf *listing, json_t *configured)
{
	char hash[CELL__VENV_HASH_SIZE], found[CELL__VENV_HASH_SIZE + 1];
	CELL_AUTO_FREE char *file = join(notes, SYNCED);
	return file && synced_hash(listing, configured, hash) == 0 && read_small(file, found, sizeof found) > 0 && strcmp(found, hash) == 0;
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
	json_t *all = NULL, *good = json_array();
	if (!file || !good) {
		json_decref(good);
		return -1;
	}
	if (cell__file_read(AT_FDCWD, file, CELL_FILE_NO_LINK, CELL__VENV_CONFIGURED_BYTES, &text, NULL) == 0)
		all = json_loadb(text.data, text.size, 0, NULL);
	/* Code in a session can write there too: only valid specifiers count. */
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
