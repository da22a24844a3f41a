/* Saved sessions, see durable.h. */
#define _GNU_SOURCE
#include "durable/durable.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include "base/base.h"
#include "base/file.h"
#include "base/random.h"
#include "base/tree.h"
#include "durable/known.h"
#include "durable/redis_place.h"
#include "wire/redis_url.h"

#define IMAGE_SIZE ((off_t)1 << 42) /* as executors/subprocess/image.c makes them */
#define OPEN_TRIES 8

struct cell__durable {
	int home_fd, fd, lock_fd; /* DIR, DIR/ID, DIR/ID/lock */
	char *dir;
	char id[33];
	char *name, *url; /* of this program, for others; folder */
	uint64_t number;
	struct cell__redis_place *remote; /* in Redis; NULL: in a folder */
	unsigned char key[32];
	bool sealed, packs, syncs;
	bool rests; /* others may have it */
	bool read; /* state is that of the disk */
	bool unsure; /* in Redis: a save failed that may have been carried out, so that state may not be there any more */
	struct cell__saved state;
};

static void close_memory(struct cell__memory *memory)
{
	while (memory->n > 0)
		cell__close_fd(&memory->fds[--memory->n]);
}

void cell__memory_point_close(struct cell__memory_point *point)
{
	close_memory(&point->memory);
	cell__close_fd(&point->layer_fd);
	free(cell__take_ptr(point->name));
}

void cell__memories_let_go(struct cell__memories *memories)
{
	close_memory(&memories->own);
	cell__close_fd(&memories->layer_fd);
	for (size_t i = 0; i < memories->n_points; i++) {
		close_memory(&memories->points[i].memory);
		cell__close_fd(&memories->points[i].layer_fd);
	}
}

void cell__memories_close(struct cell__memories *memories)
{
	cell__memories_let_go(memories);
	cell__early_destroy(cell__take_ptr(memories->early));
	cell__process_memory_unref(cell__take_ptr(memories->process));
	for (size_t i = 0; i < memories->n_points; i++)
		cell__memory_point_close(&memories->points[i]);
	free(cell__take_ptr(memories->points));
	memories->n_points = 0;
}

int cell__durable_key(const char *text, unsigned char ret_key[32], bool *ret_has, struct cell_error *err)
{
	*ret_has = text && *text;
	if (*ret_has && (strlen(text) != 64 || !cell__saved_from_hex(text, ret_key, 32)))
		return cell_fail(err, CELL_E_INVALID, 0, "the key of saved sessions is not 64 hexadecimal digits in lower case");
	return 0;
}

/* ---- files that were checked ---- */

/* All that is said of a file's content: its key and the checksums of its pieces. */
static bool sum_file(const struct cell__saved_file *file, unsigned char ret_sum[32])
{
	EVP_MD_CTX *ctx = EVP_MD_CTX_new();
	bool ok = ctx && EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) == 1 && EVP_DigestUpdate(ctx, file->key, sizeof file->key) == 1;
	for (size_t i = 0; ok && i < file->n_pieces; i++)
		ok = EVP_DigestUpdate(ctx, &file->pieces[i].offset, sizeof file->pieces[i].offset) == 1 &&
		     EVP_DigestUpdate(ctx, &file->pieces[i].size, sizeof file->pieces[i].size) == 1 &&
		     EVP_DigestUpdate(ctx, file->pieces[i].checksum, sizeof file->pieces[i].checksum) == 1;
	ok = ok && EVP_DigestFinal_ex(ctx, ret_sum, NULL) == 1;
	EVP_MD_CTX_free(ctx);
	return ok;
}

static void note_known(int fd, const struct cell__saved_file *file)
{
	unsigned char sum[32];
	if (sum_file(file, sum))
		cell__known_add(fd, sum);
}

/* ---- places ---- */

static int open_home(const char *dir, bool creates, int *ret_fd, struct cell_error *err)
{
	struct stat st;
	if (creates && mkdir(dir, 0700) < 0 && errno != EEXIST)
		return cell_fail(err, CELL_E_IO, errno, "the folder of saved sessions %.150s", dir);
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0) {
		int sys = errno;
		cell__close_fd(&fd);
		return cell_fail(err, sys == ENOENT ? CELL_E_NOT_FOUND : CELL_E_IO, sys, "the folder of saved sessions %.150s", dir);
	}
	if (st.st_mode & 022) {
		cell__close_fd(&fd);
		return cell_fail(err, CELL_E_INVALID, 0, "other users can write to the folder of saved sessions %.120s: chmod go-w", dir);
	}
	*ret_fd = fd;
	return 0;
}

static int write_lock(struct cell__durable *durable, struct cell_error *err)
{
	char name[CELL_LEASE_NAME_BYTES + 1], url[CELL_LEASE_NAME_BYTES + 1], text[2 * CELL_LEASE_NAME_BYTES + 64];
	durable->number = cell__lease_read(durable->lock_fd, name, url) + 1;
	int n = snprintf(text, sizeof text, "%llu %s %s\n", (unsigned long long)durable->number, durable->name, durable->url);
	if (pwrite(durable->lock_fd, text, (size_t)n, 0) != n || ftruncate(durable->lock_fd, n) < 0)
		return cell_fail(err, CELL_E_IO, errno, "lock the saved session %s", durable->id);
	return 0;
}

static bool is_in_place(const struct cell__durable *durable)
{
	struct stat ours, there;
	return fstat(durable->fd, &ours) == 0 && fstatat(durable->home_fd, durable->id, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
	       ours.st_ino == there.st_ino && ours.st_dev == there.st_dev;
}

/* Before something is replaced: the lock's file is still the one that was locked here, with the number that was written then. */
static int check_lock(const struct cell__durable *durable, struct cell_error *err)
{
	char name[CELL_LEASE_NAME_BYTES + 1], url[CELL_LEASE_NAME_BYTES + 1];
	CELL_AUTO_FD int fd = openat(durable->fd, "lock", O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	uint64_t number = fd >= 0 ? cell__lease_read(fd, name, url) : 0;
	if (fd >= 0 && number == durable->number && is_in_place(durable))
		return 0;
	return cell__lease_fail_lost(err, durable->id, number ? name : "", number ? url : "");
}

/* 1: it is there and locked.  0: it was removed meanwhile. */
static int lock_place(struct cell__durable *durable, bool creates, struct cell_error *err)
{
	char name[CELL_LEASE_NAME_BYTES + 1], url[CELL_LEASE_NAME_BYTES + 1];
	struct stat st;
	if (creates && mkdirat(durable->home_fd, durable->id, 0700) < 0 && errno != EEXIST)
		return cell_fail(err, CELL_E_IO, errno, "make a folder in %.150s", durable->dir);
	durable->fd = openat(durable->home_fd, durable->id, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	if (durable->fd < 0)
		return creates && errno == ENOENT ? 0 : cell__lease_fail_missing(err, durable->id);
	durable->lock_fd = openat(durable->fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600);
	if (durable->lock_fd < 0 || fstat(durable->lock_fd, &st) < 0)
		return cell_fail(err, CELL_E_IO, errno, "lock the saved session %s", durable->id);
	if (!S_ISREG(st.st_mode))
		return cell_fail(err, CELL_E_DAMAGED, 0, "the saved session %s is damaged: its lock is not a file", durable->id);
	if (flock(durable->lock_fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK)
			return cell_fail(err, CELL_E_IO, errno, "lock the saved session %s", durable->id);
		(void)cell__lease_read(durable->lock_fd, name, url);
		return cell__lease_conflict(err, durable->id, name, url);
	}
	if (is_in_place(durable))
		return write_lock(durable, err) < 0 ? -1 : 1;
	return creates ? 0 : cell__lease_fail_missing(err, durable->id);
}

static void free_place(struct cell__durable *durable)
{
	cell__saved_finish(&durable->state);
	cell__close_fd(&durable->lock_fd);
	cell__close_fd(&durable->fd);
	cell__close_fd(&durable->home_fd);
	cell__redis_place_close(durable->remote);
	explicit_bzero(durable->key, sizeof durable->key);
	free(durable->dir);
	free(durable->name);
	free(durable->url);
	free(durable);
}

static int take_folder(struct cell__durable *durable, bool creates, struct cell_error *err)
{
	int locked = 0;
	if (durable->home_fd < 0 && open_home(durable->dir, creates, &durable->home_fd, err) < 0)
		return -1;
	for (int i = 0; locked == 0 && i < OPEN_TRIES; i++) {
		cell__close_fd(&durable->fd);
		cell__close_fd(&durable->lock_fd);
		locked = lock_place(durable, creates, err);
	}
	if (locked == 0)
		return cell_fail(err, CELL_E_CONFLICT, 0, "the session %s is being removed", durable->id);
	return locked < 0 ? -1 : 0;
}

/* The lock or the lease; what was read before may be old. */
static int take(struct cell__durable *durable, bool creates, struct cell_error *err)
{
	if ((durable->remote ? cell__redis_place_take(durable->remote, creates, err) : take_folder(durable, creates, err)) < 0)
		return -1;
	durable->rests = durable->read = durable->unsure = false;
	return 0;
}

static int init_place(struct cell__durable *durable, const char *dir, const char *key, const struct cell__lease_host *host,
		      struct cell_error *err)
{
	char name[96];
	durable->dir = cell__strdup(dir);
	durable->name = cell__strdup(cell__lease_name(host, name, sizeof name));
	durable->url = cell__strdup(host && host->url ? host->url : "");
	if (!durable->dir || !durable->name || !durable->url)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
	if ((host && cell__lease_check(host, err) < 0) || cell__durable_key(key, durable->key, &durable->sealed, err) < 0)
		return -1;
	return cell__redis_url_is(dir) ? cell__redis_place_open(dir, durable->id, host, &durable->remote, err) : 0;
}

int cell__durable_open_as(const char *dir, const char *id, const char *key, bool creates, const struct cell__lease_host *host,
			  struct cell__durable **ret_durable, struct cell_error *err)
{
	if (!cell__saved_is_id(id))
		return cell_fail(err, CELL_E_INVALID, 0, "\"%.40s\" is not the id of a session", id);
	struct cell__durable *durable = cell__alloc(1, sizeof *durable);
	if (!durable)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
	durable->home_fd = durable->fd = durable->lock_fd = -1;
	durable->syncs = true;
	durable->rests = true;
	strcpy(durable->id, id);
	if (init_place(durable, dir, key, host, err) < 0 || take(durable, creates, err) < 0) {
		free_place(durable);
		return -1;
	}
	*ret_durable = durable;
	return 0;
}

int cell__durable_open(const char *dir, const char *id, const char *key, bool creates, struct cell__durable **ret_durable,
		       struct cell_error *err)
{
	return cell__durable_open_as(dir, id, key, creates, NULL, ret_durable, err);
}

bool cell__durable_holds(const struct cell__durable *durable)
{
	return !durable->rests && (!durable->remote || cell__redis_place_holds(durable->remote));
}

uint64_t cell__durable_number(const struct cell__durable *durable)
{
	return durable->remote ? cell__redis_place_number(durable->remote) : durable->number;
}

void cell__durable_settings(struct cell__durable *durable, bool packs, bool syncs)
{
	durable->packs = packs;
	durable->syncs = syncs;
}

/*
 * No kernel maps them any more: they end where their content ends.  The kernel of a fork may, here or in another program, and must find them as
 * they are: who has one to map holds a lock of it.
 */
void cell__durable_rest(struct cell__durable *durable)
{
	for (size_t i = 0; durable->read && !durable->remote && i < durable->state.n_files; i++) {
		const struct cell__saved_file *file = &durable->state.files[i];
		const struct cell__saved_piece *last = &file->pieces[file->n_pieces - 1];
		struct stat st;
		unsigned char sum[32];
		if (durable->sealed || file->is_layer || !cell__pieces_flat(file))
			continue;
		CELL_AUTO_FD int fd = openat(durable->fd, file->name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
		bool is_large = fd >= 0 && fstat(fd, &st) == 0 && st.st_size == IMAGE_SIZE && flock(fd, LOCK_EX | LOCK_NB) == 0 &&
				sum_file(file, sum);
		bool is_known = is_large && cell__known_has(fd, sum);
		if (is_large && ftruncate(fd, (off_t)(last->offset + last->size)) == 0 && is_known)
			cell__known_add(fd, sum);
	}
}

void cell__durable_release(struct cell__durable *durable)
{
	if (durable->rests || !durable->read)
		return;
	durable->rests = true;
	if (durable->remote)
		cell__redis_place_release(durable->remote);
	cell__close_fd(&durable->lock_fd);
	cell__close_fd(&durable->fd);
}

bool cell__durable_is_released(const struct cell__durable *durable)
{
	return durable->rests;
}

int cell__durable_take(struct cell__durable *durable, struct cell_error *err)
{
	const struct cell__saved *saved;
	if (!durable->rests)
		return 0;
	/* Its next save counts on, and removes the files of this one. */
	return take(durable, false, err) < 0 || cell__durable_state(durable, &saved, err) < 0 ? -1 : 0;
}

void cell__durable_close(struct cell__durable *durable)
{
	struct stat st;
	if (!durable)
		return;
	if (!durable->remote && !durable->rests && !durable->read && fstatat(durable->fd, "state", &st, AT_SYMLINK_NOFOLLOW) < 0 &&
	    errno == ENOENT)
		(void)cell__durable_remove(durable, NULL);
	else
		free_place(durable);
}

/* ---- reading ---- */

static int read_state(struct cell__durable *durable, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf bytes = CELL_BUF_INIT, body = CELL_BUF_INIT;
	if (durable->remote && cell__redis_place_read(durable->remote, &bytes, err) < 0)
		return -1;
	if (!durable->remote && cell__file_read(durable->fd, "state", CELL_FILE_NO_LINK, CELL_SAVED_STATE_BYTES, &bytes, NULL) < 0)
		return errno == ENOENT ? cell__lease_fail_missing(err, durable->id)
				       : cell_fail(err, errno == EFBIG ? CELL_E_DAMAGED : CELL_E_IO, errno, "read the saved session %s",
						   durable->id);
	cell__saved_finish(&durable->state);
	if (cell__unseal(durable->sealed ? durable->key : NULL, durable->id, bytes.data, bytes.size, &body, err) < 0)
		return -1;
	if (cell__saved_read(body.data, body.size, &durable->state, err) < 0)
		return -1;
	if (strcmp(durable->state.id, durable->id) != 0)
		return cell_fail(err, CELL_E_DAMAGED, 0, "the saved session %s has the files of another one", durable->id);
	return 0;
}

int cell__durable_state(struct cell__durable *durable, const struct cell__saved **ret_saved, struct cell_error *err)
{
	if ((!durable->read || durable->unsure) && read_state(durable, err) < 0)
		return -1;
	durable->read = true;
	durable->unsure = false;
	*ret_saved = &durable->state;
	return 0;
}

/*
 * The file itself, if its bytes lie where the memory has them.  A mapping of it must not grow beyond its end, so the file is made larger until the
 * session sleeps again: a hole, which takes no room.  1: *ret_fd is it.  0: a copy is needed.
 */
static int map_memory(struct cell__durable *durable, const struct cell__saved_file *file, int *ret_fd, struct cell_error *err)
{
	unsigned char sum[32];
	if (durable->remote)
		return 0;
	CELL_AUTO_FD int fd = openat(durable->fd, file->name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	struct stat st;
	if (durable->sealed || file->is_layer || !cell__pieces_flat(file) || fd < 0 || fstat(fd, &st) < 0 || !S_ISREG(st.st_mode))
		return 0;
	if (!sum_file(file, sum))
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
	if (!cell__known_has(fd, sum) && cell__pieces_check(fd, file, err) < 0)
		return -1;
	/* The kernel gets a descriptor that does not write. */
	CELL_AUTO_FD int kernels = openat(durable->fd, file->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (kernels < 0)
		return cell_fail(err, CELL_E_IO, errno, "read the saved session %s", durable->id);
	if (flock(kernels, LOCK_SH | LOCK_NB) < 0 || (st.st_size != IMAGE_SIZE && ftruncate(fd, IMAGE_SIZE) < 0))
		return 0; /* not on this file system */
	cell__known_add(fd, sum);
	*ret_fd = cell__take_fd(&kernels);
	return 1;
}

/* A file that a kernel can continue from; a layer's is read by us alone. */
static int read_memory(struct cell__durable *durable, const struct cell__saved_file *file, int *ret_fd, struct cell_error *err)
{
	CELL_AUTO_FD int from = durable->remote ? -1 : openat(durable->fd, file->name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
	if (from < 0 && !durable->remote)
		return cell_fail(err, errno == ENOENT ? CELL_E_DAMAGED : CELL_E_IO, errno, "read the saved session %s", durable->id);
	CELL_AUTO_FD int to = memfd_create(file->is_layer ? "workcell-layer" : "workcell-image", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (to < 0 || (!file->is_layer && ftruncate(to, IMAGE_SIZE) < 0))
		return cell_fail(err, CELL_E_IO, errno, "make a file for the memory of a kernel");
	struct cell__pieces_io io = durable->remote ? cell__redis_place_io(durable->remote) : (struct cell__pieces_io){ 0 };
	if ((durable->remote ? cell__pieces_receive(&io, file, durable->sealed, to, err)
			     : cell__pieces_read(from, file, durable->sealed, to, err)) < 0)
		return -1;
	if (!file->is_layer && fcntl(to, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) < 0)
		return cell_fail(err, CELL_E_IO, errno, "seal the memory of a kernel");
	*ret_fd = cell__take_fd(&to);
	return 0;
}

static uint64_t new_number(void)
{
	char digits[17];
	cell__random_hex(digits, 16);
	uint64_t number = strtoull(digits, NULL, 16);
	return CELL_MEMORY_ON_DISK | (number & (CELL_MEMORY_ON_DISK - 1));
}

/* The kernel that continues will refer to this one; a file on a disk gets a number that no memfd has. */
static int load_file(struct cell__durable *durable, struct cell__saved_file *file, int *ret_fd, struct cell_error *err)
{
	struct stat st;
	int mapped = map_memory(durable, file, ret_fd, err);
	if (mapped < 0 || (mapped == 0 && read_memory(durable, file, ret_fd, err) < 0))
		return -1;
	if (!mapped && fstat(*ret_fd, &st) < 0)
		return cell_fail(err, CELL_E_IO, errno, "the memory of a kernel");
	file->live = mapped ? new_number() : st.st_ino;
	return 0;
}

static int take_copy(int fd, int *ret_fd, struct cell_error *err)
{
	*ret_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	return *ret_fd >= 0 ? 0 : cell_fail(err, CELL_E_IO, errno, "the memory of a kernel");
}

static int add_memory(const struct cell__saved *saved, const int *fds, size_t i, uint64_t inode, struct cell__memory *memory,
		      struct cell_error *err)
{
	if (take_copy(fds[i], &memory->fds[memory->n], err) < 0)
		return -1;
	memory->inodes[memory->n] = inode;
	memory->live[memory->n++] = saved->files[i].live;
	return 0;
}

static int add_point(const struct cell__saved *saved, const int *fds, const struct cell__saved_point *point, struct cell__memory_point *to,
		     struct cell_error *err)
{
	*to = (struct cell__memory_point){ .name = cell__strdup(point->name),
					   .cells = point->cells,
					   .upto = point->upto,
					   .taken_ms = point->taken_ms,
					   .automatic = point->automatic,
					   .layer_fd = -1 };
	if (!to->name)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
	for (size_t i = 0; i < point->n_files; i++)
		if (add_memory(saved, fds, point->files[i], point->inodes[i], &to->memory, err) < 0)
			return -1;
	return point->layer >= 0 ? take_copy(fds[point->layer], &to->layer_fd, err) : 0;
}

static int hand_out(const struct cell__saved *saved, const int *fds, struct cell__memories *memories, struct cell_error *err)
{
	size_t n = cell__saved_memories(saved);
	for (size_t i = 0; i < n; i++)
		if (add_memory(saved, fds, i, saved->files[i].inode, &memories->own, err) < 0)
			return -1;
	if (n < saved->n_own && take_copy(fds[n], &memories->layer_fd, err) < 0)
		return -1;
	memories->points = saved->n_points ? cell__alloc(saved->n_points, sizeof *memories->points) : NULL;
	if (saved->n_points && !memories->points)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
	for (size_t i = 0; i < saved->n_points; i++)
		if (add_point(saved, fds, &saved->points[i], &memories->points[memories->n_points++], err) < 0)
			return -1;
	return 0;
}

int cell__durable_load(struct cell__durable *durable, struct cell__memories *ret_memories, struct cell_error *err)
{
	const struct cell__saved *saved;
	struct cell__memories memories = CELL_MEMORIES_INIT;
	int fds[CELL_SAVED_FILES], rc = 0;
	size_t n = 0;
	if ((durable->rests && take(durable, false, err) < 0) || cell__durable_state(durable, &saved, err) < 0)
		return -1;
	for (; rc == 0 && n < saved->n_files; n++) {
		fds[n] = -1;
		rc = load_file(durable, &durable->state.files[n], &fds[n], err);
	}
	if (rc == 0)
		rc = hand_out(saved, fds, &memories, err);
	while (n > 0)
		cell__close_fd(&fds[--n]);
	if (rc < 0)
		cell__memories_close(&memories);
	else
		*ret_memories = memories;
	return rc;
}

/* ---- writing ---- */

static const struct cell__saved_file *find_stored(const struct cell__durable *durable, uint64_t inode)
{
	for (size_t i = 0; durable->read && i < durable->state.n_files; i++)
		if (inode && durable->state.files[i].live == inode)
			return &durable->state.files[i];
	return NULL;
}

static int reuse(const struct cell__saved_file *stored, struct cell__saved_file *file, struct cell_error *err)
{
	*file = *stored;
	file->pieces = cell__alloc(stored->n_pieces, sizeof *file->pieces);
	if (!file->pieces)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
	memcpy(file->pieces, stored->pieces, stored->n_pieces * sizeof *file->pieces);
	return 0;
}

static void name_file(struct cell__saved_file *file)
{
	strcpy(file->name, "p-");
	cell__random_hex(file->name + 2, CELL_SAVED_NAME - 2);
}

static int create_file(const struct cell__durable *durable, struct cell__saved_file *file, int *ret_fd, struct cell_error *err)
{
	name_file(file);
	*ret_fd = openat(durable->fd, file->name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	return *ret_fd >= 0 ? 0 : cell_fail(err, CELL_E_IO, errno, "write the saved session %s", durable->id);
}

struct cell__early *cell__early_create(int from_fd)
{
	struct cell__early *early = cell__alloc(1, sizeof *early);
	if (!early)
		return NULL;
	early->from_fd = from_fd;
	early->to_fd = -1;
	return early;
}

void cell__early_destroy(struct cell__early *early)
{
	if (!early)
		return;
	cell__close_fd(&early->from_fd);
	cell__close_fd(&early->to_fd);
	free(early->file.pieces);
	free(early);
}

void cell__durable_follow(struct cell__durable *durable, struct cell__early *early)
{
	if (durable->remote || durable->sealed || durable->packs || create_file(durable, &early->file, &early->to_fd, NULL) < 0)
		return;
	if (cell__pieces_follow(early->from_fd, early->to_fd, &early->stage, &early->file, NULL) < 0)
		cell__close_fd(&early->to_fd);
}

/* memories: it is the first of them; or NULL. */
static int write_file(struct cell__durable *durable, int from_fd, const struct cell__memories *memories, struct cell__saved_file *file,
		      struct cell__pieces_sum *sum, struct cell_error *err)
{
	CELL_AUTO_FD int to = -1;
	struct cell__early *early = memories ? memories->early : NULL;
	struct cell__pieces_from from = { .fd = from_fd, .process = memories ? memories->process : NULL };
	if (durable->remote) {
		struct cell__pieces_io io = cell__redis_place_io(durable->remote);
		name_file(file);
		return cell__pieces_send(&from, &io, durable->sealed, true, file, sum, err); /* it goes over a network, into memory */
	}
	if (early && early->to_fd >= 0) {
		to = cell__take_fd(&early->to_fd);
		strcpy(file->name, early->file.name);
		from.early = &early->file;
	} else if (create_file(durable, file, &to, err) < 0) {
		return -1;
	}
	if (cell__pieces_write(&from, to, durable->sealed, durable->packs, file, sum, err) < 0)
		return -1;
	if (durable->syncs && fdatasync(to) < 0)
		return cell_fail(err, CELL_E_IO, errno, "write the saved session %s", durable->id);
	note_known(to, file);
	return 0;
}

static int write_state(struct cell__durable *durable, const struct cell__saved *saved, struct cell_error *err)
{
	CELL_AUTO_BUF struct cell__buf body = CELL_BUF_INIT, sealed = CELL_BUF_INIT;
	if (cell__saved_write(saved, &body, err) < 0 ||
	    cell__seal(durable->sealed ? durable->key : NULL, durable->id, &body, &sealed, err) < 0)
		return -1;
	if (durable->remote)
		return cell__redis_place_commit(durable->remote, &sealed, saved, durable->read ? &durable->state : NULL, err);
	if (check_lock(durable, err) < 0)
		return -1;
	CELL_AUTO_FD int fd = openat(durable->fd, "state.new", O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0 || cell__fd_write_all(fd, sealed.data, sealed.size) < 0 || (durable->syncs && fdatasync(fd) < 0) ||
	    renameat(durable->fd, "state.new", durable->fd, "state") < 0 || (durable->syncs && fsync(durable->fd) < 0) ||
	    (durable->syncs && !durable->read && fsync(durable->home_fd) < 0))
		return cell_fail(err, CELL_E_IO, errno, "write the saved session %s", durable->id);
	return 0;
}

static bool is_named(const struct cell__saved *saved, const char *name)
{
	for (size_t i = 0; i < saved->n_files; i++)
		if (strcmp(saved->files[i].name, name) == 0)
			return true;
	return strcmp(name, "state") == 0 || strcmp(name, "lock") == 0;
}

/* Of earlier saves, and of those that failed or were killed. */
static void remove_others(const struct cell__durable *durable, const struct cell__saved *saved)
{
	if (durable->remote)
		return; /* they expire */
	int fd = openat(durable->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
	if (!dir) {
		cell__close_fd(&fd);
		return; /* with the next save */
	}
	for (struct dirent *entry; (entry = readdir(dir));)
		if (entry->d_name[0] != '.' && !is_named(saved, entry->d_name))
			(void)unlinkat(durable->fd, entry->d_name, 0);
	closedir(dir);
}

struct writing {
	struct cell__durable *durable;
	struct cell__saved *saved;
	struct cell__pieces_sum *sum;
};

/* One file; number: by which this process knows it, 0: it is a layer's.  It is written unless the last save, or this one, has it. */
static int add_file(struct writing *writing, int fd, uint64_t number, const struct cell__memories *memories, unsigned *ret_i,
		    struct cell_error *err)
{
	struct cell__saved *saved = writing->saved;
	for (size_t i = 0; number && i < saved->n_files; i++)
		if (saved->files[i].live == number) {
			*ret_i = (unsigned)i;
			return 0;
		}
	if (saved->n_files == CELL_SAVED_FILES)
		return cell_fail(err, CELL_E_LIMIT, 0, "a saved session has at most %d files", CELL_SAVED_FILES);
	*ret_i = (unsigned)saved->n_files;
	struct cell__saved_file *file = &saved->files[saved->n_files++];
	const struct cell__saved_file *stored = find_stored(writing->durable, number);
	file->is_layer = number == 0;
	if ((stored ? reuse(stored, file, err) : write_file(writing->durable, fd, memories, file, writing->sum, err)) < 0)
		return -1;
	file->inode = file->live = number;
	return 0;
}

static int add_saved_point(struct writing *writing, const struct cell__memory_point *from, struct cell_error *err)
{
	struct cell__saved_point *point = &writing->saved->points[writing->saved->n_points++];
	unsigned layer;
	*point = (struct cell__saved_point){ .name = cell__strdup(from->name),
					     .cells = from->cells,
					     .upto = from->upto,
					     .taken_ms = from->taken_ms,
					     .automatic = from->automatic,
					     .layer = -1 };
	if (!point->name)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
	for (; point->n_files < from->memory.n; point->n_files++) {
		size_t i = point->n_files;
		if (add_file(writing, from->memory.fds[i], from->memory.live[i], NULL, &point->files[i], err) < 0)
			return -1;
		point->inodes[i] = from->memory.inodes[i];
	}
	if (from->layer_fd >= 0 && add_file(writing, from->layer_fd, 0, NULL, &layer, err) < 0)
		return -1;
	point->layer = from->layer_fd >= 0 ? (int)layer : -1;
	return 0;
}

static int write_files(struct cell__durable *durable, struct cell__saved *saved, const struct cell__memories *memories,
		       struct cell__pieces_sum *sum, struct cell_error *err)
{
	struct writing writing = { durable, saved, sum };
	const struct cell__memory *own = &memories->own;
	unsigned unused;
	for (size_t i = 0; i < own->n; i++)
		if (add_file(&writing, own->fds[i], own->live[i], i == 0 ? memories : NULL, &unused, err) < 0)
			return -1;
	if (memories->layer_fd >= 0 && add_file(&writing, memories->layer_fd, 0, NULL, &unused, err) < 0)
		return -1;
	saved->n_own = saved->n_files;
	if (memories->n_points > CELL_SAVED_POINTS)
		return cell_fail(err, CELL_E_LIMIT, 0, "a saved session has at most %d points", CELL_SAVED_POINTS);
	for (size_t i = 0; i < memories->n_points; i++)
		if (add_saved_point(&writing, &memories->points[i], err) < 0)
			return -1;
	return 0;
}

/* What is saved now, if that is not known: the next save counts on, and refers to no file that is gone. */
static int find_out(struct cell__durable *durable, struct cell_error *err)
{
	const struct cell__saved *found;
	struct cell_error why;
	if (!durable->unsure || cell__durable_state(durable, &found, &why) == 0)
		return 0;
	if (why.code != CELL_E_NOT_FOUND) {
		if (err)
			*err = why;
		return -1;
	}
	cell__saved_finish(&durable->state); /* it was the first */
	durable->read = durable->unsure = false;
	return 0;
}

int cell__durable_save(struct cell__durable *durable, struct cell__saved *saved, const struct cell__memories *memories,
		       struct cell__pieces_sum *ret_sum, struct cell_error *err)
{
	struct cell__pieces_sum sum = { 0 };
	if ((durable->rests && take(durable, false, err) < 0) || find_out(durable, err) < 0) {
		cell__saved_finish(saved);
		return -1;
	}
	strcpy(saved->id, durable->id);
	saved->generation = durable->read ? durable->state.generation + 1 : 1;
	bool is_complete = write_files(durable, saved, memories, &sum, err) == 0;
	if (!is_complete || write_state(durable, saved, err) < 0) {
		durable->unsure = is_complete && durable->remote;
		if (durable->read)
			remove_others(durable, &durable->state);
		cell__saved_finish(saved);
		return -1;
	}
	cell__saved_finish(&durable->state);
	durable->state = *saved;
	durable->read = true;
	*saved = (struct cell__saved){ 0 };
	remove_others(durable, &durable->state);
	*ret_sum = sum;
	return 0;
}

int cell__durable_remove(struct cell__durable *durable, struct cell_error *err)
{
	char gone[64];
	if (durable->rests && take(durable, false, err) < 0) {
		free_place(durable);
		return -1;
	}
	if (durable->remote) {
		const struct cell__saved *saved = NULL;
		(void)cell__durable_state(durable, &saved, NULL);
		int removed = cell__redis_place_remove(durable->remote, saved, err);
		free_place(durable);
		return removed;
	}
	/* At once: what is left of a removal that was killed has no session's name. */
	snprintf(gone, sizeof gone, "gone-");
	cell__random_hex(gone + 5, 16);
	int rc = renameat(durable->home_fd, durable->id, durable->home_fd, gone) < 0
			 ? cell_fail(err, CELL_E_IO, errno, "remove the saved session %s", durable->id)
			 : 0;
	if (rc == 0 && cell__tree_remove(durable->home_fd, gone) < 0)
		rc = cell_fail(err, CELL_E_IO, errno, "remove the saved session %s", durable->id);
	free_place(durable);
	return rc;
}
