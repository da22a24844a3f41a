/* Pieces of saved sessions, see pieces.h. */
#define _GNU_SOURCE
#include "durable/pieces.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <openssl/evp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"

#define THREADS 4
#define LEVEL (-5) /* of zstd: about as fast as the checksum */
#define TAG 16
#define PART_BYTES (128u << 10) /* that are copied and summed at once */
#define FOLLOW_PIECES 4096u           /* that are written before the memory is complete: 4 GB */
#define FOLLOW_PAUSE_NS 200000
#define FOLLOW_PAUSES 2500u           /* then nothing more is expected: 0.5 s */
#define MAGIC "WCELLSV2"

/* ---- compression ---- */

/* Loaded with its first use: a program that saves nothing does not wait for it.  Without it, pieces are stored as they are. */
static struct {
	pthread_once_t once;
	bool there;
	size_t (*bound)(size_t);
	size_t (*compress)(void *, size_t, const void *, size_t, int);
	size_t (*decompress)(void *, size_t, const void *, size_t);
	unsigned (*is_error)(size_t);
} zstd = { .once = PTHREAD_ONCE_INIT };

static void load_zstd(void)
{
	void *library = dlopen("libzstd.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return;
	*(void **)&zstd.bound = dlsym(library, "ZSTD_compressBound");
	*(void **)&zstd.compress = dlsym(library, "ZSTD_compress");
	*(void **)&zstd.decompress = dlsym(library, "ZSTD_decompress");
	*(void **)&zstd.is_error = dlsym(library, "ZSTD_isError");
	zstd.there = zstd.bound && zstd.compress && zstd.decompress && zstd.is_error;
}

static bool has_zstd(void)
{
	pthread_once(&zstd.once, load_zstd);
	return zstd.there;
}

/* ---- seals ---- */

/* encrypts: into out, which may be in; else the way back.  False: it was not sealed so, or libcrypto failed. */
static bool crypt_piece(bool encrypts, const unsigned char key[32], uint64_t number, const char *about, const unsigned char *in,
			size_t size, unsigned char *out, unsigned char tag[TAG])
{
	unsigned char nonce[12] = { 0 };
	int n;
	memcpy(nonce, &number, sizeof number);
	EVP_CIPHER_CTX *ctx = EVP_CIPHER_CTX_new();
	bool ok = ctx && size <= INT_MAX && EVP_CipherInit_ex(ctx, EVP_aes_256_gcm(), NULL, key, nonce, encrypts) == 1 &&
		  (!*about || EVP_CipherUpdate(ctx, NULL, &n, (const unsigned char *)about, (int)strlen(about)) == 1) &&
		  EVP_CipherUpdate(ctx, out, &n, in, (int)size) == 1;
	if (ok && !encrypts)
		ok = EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_SET_TAG, TAG, tag) == 1;
	ok = ok && EVP_CipherFinal_ex(ctx, out + size, &n) == 1;
	if (ok && encrypts)
		ok = EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_GCM_GET_TAG, TAG, tag) == 1;
	EVP_CIPHER_CTX_free(ctx);
	return ok;
}

static bool sum_state(const void *bytes, size_t size, unsigned char out[CELL_SAVED_CHECKSUM])
{
	return EVP_Digest(bytes, size, out, NULL, EVP_sha256(), NULL) == 1;
}

/* MAGIC, whether it is sealed, zeros up to 16, a random number (8), zeros (8), the tag or the checksum (32) */
int cell__seal(const unsigned char *key, const char *about, const struct cell__buf *body, struct cell__buf *out, struct cell_error *err)
{
	unsigned char head[CELL_PIECES_SEAL] = MAGIC;
	uint64_t number = 0;
	head[8] = key != NULL;
	if (getrandom(&number, sizeof number, 0) != sizeof number)
		return cell_fail(err, CELL_E_IO, errno, "random numbers");
	memcpy(head + 16, &number, sizeof number);
	if (cell__buf_add(out, head, sizeof head) < 0 || cell__buf_add(out, body->data, body->size) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
	unsigned char *bytes = (unsigned char *)out->data + sizeof head, *seal = (unsigned char *)out->data + 32;
	if (!(key ? crypt_piece(true, key, number, about, bytes, body->size, bytes, seal) : sum_state(bytes, body->size, seal)))
		return cell_fail(err, CELL_E_IO, 0, "libcrypto could not seal a saved session");
	return 0;
}

int cell__unseal(const unsigned char *key, const char *about, const char *bytes, size_t size, struct cell__buf *out, struct cell_error *err)
{
	unsigned char sum[CELL_SAVED_CHECKSUM], seal[CELL_SAVED_CHECKSUM];
	uint64_t number;
	if (size >= CELL_PIECES_SEAL && memcmp(bytes, MAGIC, 7) == 0 && bytes[7] >= '0' && bytes[7] <= '9' && bytes[7] != MAGIC[7])
		return cell_fail(err, CELL_E_DIFFERS, 0,
				 "the session was saved in format %c, and this version reads %c: wake it with the version that saved it",
				 bytes[7], MAGIC[7]);
	if (size < CELL_PIECES_SEAL || memcmp(bytes, MAGIC, 8) != 0)
		return cell_fail(err, CELL_E_DAMAGED, 0, "the saved session is damaged: its description has no head");
	if ((bytes[8] != 0) != (key != NULL))
		return cell_fail(err, CELL_E_DIFFERS, 0,
				 key ? "the session was saved without a key, and one is given"
				     : "the session was saved with a key, and none is given");
	memcpy(&number, bytes + 16, sizeof number);
	memcpy(seal, bytes + 32, sizeof seal);
	if (cell__buf_add(out, bytes + CELL_PIECES_SEAL, size - CELL_PIECES_SEAL) < 0)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
	unsigned char *body = (unsigned char *)out->data;
	bool good = key ? crypt_piece(false, key, number, about, body, out->size, body, seal)
			: sum_state(body, out->size, sum) && memcmp(sum, seal, sizeof sum) == 0;
	if (!good)
		return cell_fail(err, CELL_E_DAMAGED, 0,
				 key ? "the saved session is damaged, or was saved with another key"
				     : "the saved session is damaged: its checksum");
	return 0;
}

/*
 * The checksum of a piece that is not encrypted: a GMAC, four times as fast as SHA-256 with the instructions of current processors.  Its key is
 * in the description, so it finds damage and does not prove who wrote the piece.
 */
struct mac {
	EVP_CIPHER_CTX *ctx;
	bool ok;
};

/* A thread's own. */
struct room {
	struct mac mac;
	unsigned char *raw, *packed;
};

static void mac_begin(struct mac *mac, const unsigned char key[32], uint64_t number)
{
	unsigned char nonce[12] = { 0 };
	memcpy(nonce, &number, sizeof number);
	mac->ok = mac->ctx && EVP_EncryptInit_ex(mac->ctx, EVP_aes_256_gcm(), NULL, key, nonce) == 1;
}

static void mac_add(struct mac *mac, const void *bytes, size_t size)
{
	int n;
	mac->ok = mac->ok && EVP_EncryptUpdate(mac->ctx, NULL, &n, bytes, (int)size) == 1;
}

/* False: libcrypto failed. */
static bool mac_end(struct mac *mac, unsigned char out[CELL_SAVED_CHECKSUM])
{
	unsigned char unused[TAG];
	int n;
	memset(out, 0, CELL_SAVED_CHECKSUM);
	return mac->ok && EVP_EncryptFinal_ex(mac->ctx, unused, &n) == 1 &&
	       EVP_CIPHER_CTX_ctrl(mac->ctx, EVP_CTRL_GCM_GET_TAG, TAG, out) == 1;
}

/* ---- threads ---- */

struct work {
	void (*step)(struct work *work, size_t i, struct room *room);
	struct cell__saved_file *file;
	const struct cell__saved_file *given;
	int from_fd, to_fd;
	const struct cell__process_memory *process; /* that has what is read; NULL: from_fd has it */
	const struct cell__pieces_io *io; /* instead of the file on the disk; or NULL */
	bool sealed, packs;
	size_t early; /* pieces from the second one to before this one are written already */
	atomic_size_t next;
	atomic_uint_fast64_t end, bytes; /* of the file on the disk; of the memory */
	atomic_int code; /* 0, or what went wrong first */
	atomic_int sys;
	struct cell_error io_err; /* of the one who set the code */
};

static void give_up_io(struct work *work, const struct cell_error *err)
{
	int none = 0;
	if (atomic_compare_exchange_strong(&work->code, &none, err->code))
		work->io_err = *err;
}

static void give_up(struct work *work, int code, int sys)
{
	int none = 0;
	if (atomic_compare_exchange_strong(&work->code, &none, code))
		atomic_store(&work->sys, sys);
}

static bool read_at(int fd, void *data, size_t size, uint64_t at)
{
	while (size > 0) {
		ssize_t n = pread(fd, data, size, (off_t)at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			errno = n < 0 ? errno : ENODATA;
			return false;
		}
		data = (char *)data + n;
		size -= (size_t)n;
		at += (uint64_t)n;
	}
	return true;
}

static bool write_at(int fd, const void *data, size_t size, uint64_t at)
{
	while (size > 0) {
		ssize_t n = pwrite(fd, data, size, (off_t)at);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0) {
			errno = n < 0 ? errno : EIO;
			return false;
		}
		data = (const char *)data + n;
		size -= (size_t)n;
		at += (uint64_t)n;
	}
	return true;
}

static bool sum_piece(struct room *room, const unsigned char key[32], size_t i, const void *bytes, size_t size,
		      unsigned char out[CELL_SAVED_CHECKSUM])
{
	mac_begin(&room->mac, key, i);
	mac_add(&room->mac, bytes, size);
	return mac_end(&room->mac, out);
}

static bool read_source(const struct work *work, void *data, size_t size, uint64_t at)
{
	return work->process ? cell__process_memory_read(work->process, work->from_fd, data, size, at)
			     : read_at(work->from_fd, data, size, at);
}

/* Compressed where that helps, encrypted where that is asked for, one behind the other. */
static void pack_piece(struct work *work, size_t i, struct room *room)
{
	struct cell__saved_piece *piece = &work->file->pieces[i];
	unsigned char *bytes = room->raw;
	if (!read_source(work, room->raw, piece->size, piece->offset)) {
		give_up(work, CELL_E_IO, errno);
		return;
	}
	piece->stored = piece->size;
	piece->codec = CELL_SAVED_PLAIN;
	if (work->packs && has_zstd()) {
		size_t n = zstd.compress(room->packed, CELL_SAVED_STORED_BYTES, room->raw, piece->size, LEVEL);
		if (!zstd.is_error(n) && n < piece->size - piece->size / 16) {
			piece->stored = (uint32_t)n;
			piece->codec = CELL_SAVED_ZSTD;
			bytes = room->packed;
		}
	}
	memset(piece->checksum, 0, sizeof piece->checksum);
	if (!(work->sealed ? crypt_piece(true, work->file->key, i, "", bytes, piece->stored, bytes, piece->checksum)
			   : sum_piece(room, work->file->key, i, bytes, piece->stored, piece->checksum))) {
		give_up(work, CELL_E_IO, 0);
		return;
	}
	piece->at = atomic_fetch_add(&work->end, piece->stored);
	struct cell_error err;
	if (work->io && work->io->put(work->io->arg, work->file->name, i, bytes, piece->stored, &err) < 0)
		give_up_io(work, &err);
	if (!work->io && !write_at(work->to_fd, bytes, piece->stored, piece->at))
		give_up(work, CELL_E_IO, errno);
	atomic_fetch_add(&work->bytes, piece->size);
}

/*
 * As it is, where it is: the file can be mapped.  Summed and written in parts that stay in the processor's cache.  Larger writes save little, and file
 * systems take memory for them in pages so large that they are seldom there, or have never been used before: a page that a virtual machine's
 * host has to find first takes ten times as long to write to.
 */
static void copy_piece(struct work *work, size_t i, struct room *room)
{
	struct cell__saved_piece *piece = &work->file->pieces[i];
	mac_begin(&room->mac, work->file->key, i);
	for (uint32_t done = 0, n; done < piece->size; done += n) {
		n = piece->size - done < PART_BYTES ? piece->size - done : PART_BYTES;
		if (!read_source(work, room->raw, n, piece->offset + done)) {
			give_up(work, CELL_E_IO, errno);
			return;
		}
		mac_add(&room->mac, room->raw, n);
		if (!write_at(work->to_fd, room->raw, n, piece->offset + done)) {
			give_up(work, CELL_E_IO, errno);
			return;
		}
	}
	piece->at = piece->offset;
	piece->stored = piece->size;
	piece->codec = CELL_SAVED_PLAIN;
	if (!mac_end(&room->mac, piece->checksum))
		give_up(work, CELL_E_IO, 0);
	atomic_fetch_add(&work->bytes, piece->size);
	atomic_fetch_add(&work->end, piece->size);
}

static void check_piece(struct work *work, size_t i, struct room *room)
{
	const struct cell__saved_piece *piece = &work->given->pieces[i];
	unsigned char sum[CELL_SAVED_CHECKSUM];
	mac_begin(&room->mac, work->given->key, i);
	for (uint32_t done = 0, n; done < piece->size; done += n) {
		n = piece->size - done < PART_BYTES ? piece->size - done : PART_BYTES;
		if (!read_at(work->from_fd, room->raw, n, piece->at + done)) {
			give_up(work, errno == ENODATA ? CELL_E_DAMAGED : CELL_E_IO, errno);
			return;
		}
		mac_add(&room->mac, room->raw, n);
	}
	if (!mac_end(&room->mac, sum))
		give_up(work, CELL_E_IO, 0);
	else if (memcmp(sum, piece->checksum, sizeof sum) != 0)
		give_up(work, CELL_E_DAMAGED, 0);
}

static void unpack_piece(struct work *work, size_t i, struct room *room)
{
	const struct cell__saved_piece *piece = &work->given->pieces[i];
	unsigned char sum[CELL_SAVED_CHECKSUM], *bytes = room->packed;
	struct cell_error err;
	if (work->io && work->io->get(work->io->arg, work->given->name, i, room->packed, piece->stored, &err) < 0) {
		give_up_io(work, &err);
		return;
	}
	if (!work->io && !read_at(work->from_fd, room->packed, piece->stored, piece->at)) {
		give_up(work, errno == ENODATA ? CELL_E_DAMAGED : CELL_E_IO, errno);
		return;
	}
	memcpy(sum, piece->checksum, sizeof sum);
	bool good = work->sealed ? crypt_piece(false, work->given->key, i, "", room->packed, piece->stored, room->packed, sum)
				 : sum_piece(room, work->given->key, i, room->packed, piece->stored, sum) &&
					   memcmp(sum, piece->checksum, sizeof sum) == 0;
	if (good && piece->codec == CELL_SAVED_ZSTD) {
		if (!has_zstd()) {
			give_up(work, CELL_E_UNSUPPORTED, 0);
			return;
		}
		size_t n = zstd.decompress(room->raw, CELL_SAVED_PIECE_BYTES, room->packed, piece->stored);
		good = !zstd.is_error(n) && n == piece->size;
		bytes = room->raw;
	}
	if (!good)
		give_up(work, CELL_E_DAMAGED, 0);
	else if (!write_at(work->to_fd, bytes, piece->size, piece->offset))
		give_up(work, CELL_E_IO, errno);
}

static void *work_on(void *arg)
{
	struct work *work = arg;
	size_t n = work->given->n_pieces, i;
	struct room room = { .mac = { .ctx = EVP_CIPHER_CTX_new() } };
	room.raw = cell__alloc(1, CELL_SAVED_STORED_BYTES + 64);
	room.packed = cell__alloc(1, CELL_SAVED_STORED_BYTES + 64);
	if (!room.raw || !room.packed || !room.mac.ctx)
		give_up(work, CELL_E_NOMEM, 0);
	while (atomic_load(&work->code) == 0 && (i = atomic_fetch_add(&work->next, 1)) < n)
		if (i == 0 || i >= work->early)
			work->step(work, i, &room);
	EVP_CIPHER_CTX_free(room.mac.ctx);
	free(room.raw);
	free(room.packed);
	return NULL;
}

static size_t threads_for(size_t n_pieces)
{
	cpu_set_t set;
	size_t n = sched_getaffinity(0, sizeof set, &set) == 0 ? (size_t)CPU_COUNT(&set) : 1;
	n = n > THREADS ? THREADS : n;
	return n_pieces / 4 + 1 < n ? n_pieces / 4 + 1 : n;
}

static void work_together(struct work *work)
{
	pthread_t threads[THREADS];
	size_t n = 0, wanted = threads_for(work->given->n_pieces - (work->early ? work->early - 1 : 0)) - 1;
	while (n < wanted && pthread_create(&threads[n], NULL, work_on, work) == 0)
		n++;
	work_on(work);
	while (n > 0)
		pthread_join(threads[--n], NULL);
}

/* ---- files ---- */

static int add_pieces(struct cell__saved_file *file, size_t *room, uint64_t from, uint64_t to, struct cell_error *err)
{
	for (; from < to; from += CELL_SAVED_PIECE_BYTES) {
		if (file->n_pieces == CELL_SAVED_PIECES)
			return cell_fail(err, CELL_E_LIMIT, 0, "a session with more than %u GB cannot be saved", CELL_SAVED_PIECES >> 10);
		if (file->n_pieces == *room) {
			*room = *room ? 2 * *room : 64;
			struct cell__saved_piece *more = cell__realloc(file->pieces, *room * sizeof *more);
			if (!more)
				return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
			file->pieces = more;
		}
		uint64_t size = to - from < CELL_SAVED_PIECE_BYTES ? to - from : CELL_SAVED_PIECE_BYTES;
		file->pieces[file->n_pieces++] = (struct cell__saved_piece){ .offset = from, .size = (uint32_t)size };
	}
	return 0;
}

/* The parts of a sparse file that have something.  process: it would have all pages, from its beginning to its end. */
static int find_pieces(int fd, struct cell__process_memory *process, struct cell__saved_file *file, struct cell_error *err)
{
	size_t room = 0;
	uint64_t bytes;
	if (process)
		return cell__process_memory_open(process, fd, &bytes, err) < 0 ? -1 : add_pieces(file, &room, 0, bytes, err);
	off_t from = lseek(fd, 0, SEEK_DATA);
	while (from >= 0) {
		off_t to = lseek(fd, from, SEEK_HOLE);
		if (to < 0)
			break;
		if (add_pieces(file, &room, (uint64_t)from, (uint64_t)to, err) < 0)
			return -1;
		from = lseek(fd, to, SEEK_DATA);
	}
	if (errno != ENXIO || file->n_pieces == 0)
		return cell_fail(err, CELL_E_IO, errno, "the memory of a kernel");
	return 0;
}

/* ---- while the memory is being written ---- */

/* Where the part that is there ends, in pieces.  The call waits for the write that is under way, so it is made once for many pieces. */
static size_t end_of(int fd, size_t i)
{
	const off_t end = lseek(fd, (off_t)i * CELL_SAVED_PIECE_BYTES, SEEK_HOLE);
	return end < 0 ? 0 : (size_t)(end / CELL_SAVED_PIECE_BYTES);
}

int cell__pieces_follow(int from_fd, int to_fd, const atomic_int *stage, struct cell__saved_file *file, struct cell_error *err)
{
	struct work work = { .file = file, .given = file, .from_fd = from_fd, .to_fd = to_fd };
	struct room room = { .mac = { .ctx = EVP_CIPHER_CTX_new() }, .raw = cell__alloc(1, CELL_SAVED_PIECE_BYTES) };
	const struct timespec pause = { .tv_nsec = FOLLOW_PAUSE_NS };
	file->pieces = cell__alloc(FOLLOW_PIECES, sizeof *file->pieces);
	file->n_pieces = 0;
	int rc = room.mac.ctx && room.raw && file->pieces ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a saved session");
	if (rc == 0 && getrandom(file->key, sizeof file->key, 0) != sizeof file->key)
		rc = cell_fail(err, CELL_E_IO, errno, "random numbers");
	/* The first piece has the tables, which are written in several steps: it is the last to be copied. */
	for (size_t i = 1, there = 0, pauses = 0;
	     rc == 0 && atomic_load(stage) == CELL_PIECES_GROWS && i < FOLLOW_PIECES && pauses < FOLLOW_PAUSES;) {
		if (i >= there && (there = end_of(from_fd, i)) <= i) {
			pauses++;
			nanosleep(&pause, NULL);
			continue;
		}
		file->pieces[i] = (struct cell__saved_piece){ .offset = (uint64_t)i * CELL_SAVED_PIECE_BYTES,
							      .size = CELL_SAVED_PIECE_BYTES };
		copy_piece(&work, i, &room);
		if (work.code)
			rc = cell_fail(err, work.code, work.sys, "write a saved session");
		else
			file->n_pieces = ++i;
		pauses = 0;
	}
	EVP_CIPHER_CTX_free(room.mac.ctx);
	free(room.raw);
	return rc;
}

/* The pieces that cell__pieces_follow() has written are those of the whole file; how many of them to leave out. */
static size_t keep_early(struct cell__saved_file *file, const struct cell__saved_file *early)
{
	size_t n = 1;
	while (n < early->n_pieces && n < file->n_pieces && file->pieces[n].offset == early->pieces[n].offset &&
	       file->pieces[n].size == early->pieces[n].size) {
		file->pieces[n] = early->pieces[n];
		n++;
	}
	return n;
}

static int write_pieces(struct work *work, const struct cell__pieces_from *from, struct cell__saved_file *file,
			struct cell__pieces_sum *sum, struct cell_error *err)
{
	const struct cell__saved_file *early = from->early;
	work->file = file;
	work->given = file;
	work->from_fd = from->fd;
	work->process = from->process;
	if (find_pieces(from->fd, from->process, file, err) < 0)
		return -1;
	if (early) {
		memcpy(file->key, early->key, sizeof file->key);
		work->early = keep_early(file, early);
		for (size_t i = 1; i < work->early; i++)
			work->bytes += file->pieces[i].size;
		work->end = work->bytes;
	} else if (getrandom(file->key, sizeof file->key, 0) != sizeof file->key) {
		return cell_fail(err, CELL_E_IO, errno, "random numbers");
	}
	work_together(work);
	if (from->process && !cell__process_memory_is_same(from->process))
		return cell_fail(err, CELL_E_KERNEL, 0, "the kernel ended while it was saved");
	if (work->io_err.code && err)
		*err = work->io_err;
	if (work->code)
		return work->io_err.code ? -1 : cell_fail(err, work->code, work->sys, "write a saved session");
	sum->bytes += work->bytes;
	sum->stored += work->end;
	return 0;
}

int cell__pieces_write(const struct cell__pieces_from *from, int to_fd, bool sealed, bool packs, struct cell__saved_file *file,
		       struct cell__pieces_sum *sum, struct cell_error *err)
{
	struct work work = { .step = sealed || packs ? pack_piece : copy_piece, .to_fd = to_fd, .sealed = sealed, .packs = packs };
	return write_pieces(&work, from, file, sum, err);
}

int cell__pieces_send(const struct cell__pieces_from *from, const struct cell__pieces_io *io, bool sealed, bool packs,
		      struct cell__saved_file *file, struct cell__pieces_sum *sum, struct cell_error *err)
{
	struct work work = { .step = pack_piece, .to_fd = -1, .io = io, .sealed = sealed, .packs = packs };
	return write_pieces(&work, from, file, sum, err);
}

bool cell__pieces_flat(const struct cell__saved_file *file)
{
	for (size_t i = 0; i < file->n_pieces; i++)
		if (file->pieces[i].codec != CELL_SAVED_PLAIN || file->pieces[i].at != file->pieces[i].offset)
			return false;
	return true;
}

static int read_error(const struct work *work, const struct cell__saved_file *file, struct cell_error *err)
{
	if (work->io_err.code && err)
		*err = work->io_err;
	if (work->io_err.code)
		return -1;
	if (work->code == CELL_E_DAMAGED)
		return cell_fail(err, CELL_E_DAMAGED, 0, "the saved session is damaged: a piece of %s", file->name);
	if (work->code == CELL_E_UNSUPPORTED)
		return cell_fail(err, CELL_E_UNSUPPORTED, 0, "the session was saved with zstd, and libzstd.so.1 is not on this machine");
	return work->code ? cell_fail(err, work->code, work->sys, "read a saved session") : 0;
}

int cell__pieces_check(int from_fd, const struct cell__saved_file *file, struct cell_error *err)
{
	struct work work = { .step = check_piece, .given = file, .from_fd = from_fd };
	work_together(&work);
	return read_error(&work, file, err);
}

int cell__pieces_read(int from_fd, const struct cell__saved_file *file, bool sealed, int to_fd, struct cell_error *err)
{
	struct work work = { .step = unpack_piece, .given = file, .from_fd = from_fd, .to_fd = to_fd, .sealed = sealed };
	work_together(&work);
	return read_error(&work, file, err);
}

int cell__pieces_receive(const struct cell__pieces_io *io, const struct cell__saved_file *file, bool sealed, int to_fd,
			 struct cell_error *err)
{
	struct work work = { .step = unpack_piece, .given = file, .from_fd = -1, .io = io, .to_fd = to_fd, .sealed = sealed };
	work_together(&work);
	return read_error(&work, file, err);
}
