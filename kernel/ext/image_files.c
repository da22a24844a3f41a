/*
 * Which file a mapping is of, so that it can be found again on another machine, where its inode is another one.
 *
 * A library or a program is known by the build-id that its linker wrote, which is read from the memory that the mapping has anyway; any
 * other file by its content.  That is read once: what is known of a file is kept with its inode, size and times of change, which no program can
 * set.  A kernel inherits what its zygote knows, because a confined kernel cannot open all of those files.
 *
 * An image that was made on this machine is not read for that at all: files whose inode, size and times are still the same are the same.
 */
#define _GNU_SOURCE
#include "image.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#else
#include <sys/auxv.h>
#endif

#define HEADERS_MAX 64u            /* of a program */
#define NOTE_MAX 1024u
#define HEAD_BYTES 4096u           /* that are read of a file at once: mostly all that is needed */
#define READ_AT_ONCE ((size_t)256 << 10)
#define WHOLE_MAX ((uint64_t)256 << 20) /* of a larger file without a build-id: its size, its time of change, its first and last part */
#define PART ((uint64_t)1 << 20)

/* ---- sums: against accidents; who can change files can change what runs anyway ---- */

#define FACTOR_1 0x9e3779b97f4a7c15ull
#define FACTOR_2 0xc2b2ae3d27d4eb4full

static uint64_t turned(uint64_t value, unsigned bits)
{
	return value << bits | value >> (64 - bits);
}

static void add_word(struct file_id *id, uint64_t word)
{
	id->words[0] = turned(id->words[0] ^ (word * FACTOR_1), 29) * FACTOR_2 + 1;
	id->words[1] = turned(id->words[1] + (word ^ FACTOR_2), 37) * FACTOR_1 + 3;
}

static void add_bytes(struct file_id *id, const void *bytes, size_t size)
{
	uint64_t word;
	for (; size >= sizeof word; size -= sizeof word, bytes = (const char *)bytes + sizeof word) {
		memcpy(&word, bytes, sizeof word);
		add_word(id, word);
	}
	word = 0;
	memcpy(&word, bytes, size);
	add_word(id, word ^ (uint64_t)size << 56);
}

/* Never all zeros, which means that a file is not known. */
static void end_id(struct file_id *id)
{
	for (int i = 0; i < 2; i++) {
		id->words[i] ^= id->words[i] >> 32;
		id->words[i] *= FACTOR_1;
		id->words[i] ^= id->words[i] >> 29;
	}
	id->words[0] |= 1;
}

static uint64_t stamp_of(const struct stat *st)
{
	struct file_id id = { { 1, 2 } };
	const uint64_t words[] = { st->st_dev,
				   st->st_ino,
				   (uint64_t)st->st_size,
				   (uint64_t)st->st_mtim.tv_sec,
				   (uint64_t)st->st_mtim.tv_nsec,
				   (uint64_t)st->st_ctim.tv_sec,
				   (uint64_t)st->st_ctim.tv_nsec };
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		add_word(&id, words[i]);
	end_id(&id);
	return id.words[0];
}

/* ---- build-ids ---- */

/* Reads of a file: from the memory that it is mapped to, or from a descriptor. */
struct source {
	const struct mappings *maps; /* or NULL */
	const struct area *first;
	int fd;
	uint64_t offset; /* of what was read last */
	size_t n_read;
	unsigned char room[HEAD_BYTES];
};

static bool is_of_file(const struct area *area, const struct area *first)
{
	return area->kind == first->kind && area->device == first->device && area->inode == first->inode;
}

/* at: in the address space of a program that begins at 0; offset: of the file.  What was read last is kept: a file's head has mostly all. */
static const void *read_part(struct source *source, uint64_t at, uint64_t offset, size_t size)
{
	if (!source->maps) {
		uint64_t from = source->n_read && offset >= source->offset ? offset - source->offset : source->n_read;
		if (from <= source->n_read && size <= source->n_read - from)
			return source->room + from;
		ssize_t n = pread(source->fd, source->room, sizeof source->room, (off_t)offset);
		source->n_read = n > 0 ? (size_t)n : 0;
		source->offset = offset;
		return size <= source->n_read ? source->room : NULL;
	}
	uint64_t from = source->first->start + at;
	const struct area *end = source->maps->areas + source->maps->n_areas;
	for (const struct area *area = source->first; area < end && area->start <= from; area++)
		if (from < area->end && size <= area->end - from && is_of_file(area, source->first) && area->prot & PROT_READ)
			return (const void *)(uintptr_t)from;
	return NULL;
}

static bool read_note(const unsigned char *note, size_t size, struct file_id *ret_id)
{
	ElfW(Nhdr) head;
	for (size_t at = 0; at + sizeof head <= size;) {
		memcpy(&head, note + at, sizeof head);
		size_t name = at + sizeof head, text = name + (((size_t)head.n_namesz + 3) & ~(size_t)3);
		if (head.n_namesz > size || head.n_descsz > size || text + head.n_descsz > size)
			return false;
		if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == 4 && memcmp(note + name, "GNU", 4) == 0) {
			*ret_id = (struct file_id){ { 3, head.n_descsz } };
			add_bytes(ret_id, note + text, head.n_descsz);
			end_id(ret_id);
			return true;
		}
		at = text + (((size_t)head.n_descsz + 3) & ~(size_t)3);
	}
	return false;
}

static bool read_build_id(struct source *source, struct file_id *ret_id)
{
	ElfW(Ehdr) head;
	ElfW(Phdr) headers[HEADERS_MAX];
	uint64_t base = 0;
	const void *at = read_part(source, 0, 0, sizeof head);
	if (!at || memcmp(at, ELFMAG, SELFMAG) != 0)
		return false;
	memcpy(&head, at, sizeof head);
	if (head.e_phentsize != sizeof *headers || head.e_phnum == 0 || head.e_phnum > HEADERS_MAX)
		return false;
	if (!(at = read_part(source, head.e_phoff, head.e_phoff, head.e_phnum * sizeof *headers)))
		return false;
	memcpy(headers, at, head.e_phnum * sizeof *headers);
	for (unsigned i = 0; i < head.e_phnum; i++)
		if (headers[i].p_type == PT_LOAD) {
			base = headers[i].p_vaddr - headers[i].p_offset; /* of a program that is not moved */
			break;
		}
	for (unsigned i = 0; i < head.e_phnum; i++) {
		size_t size = headers[i].p_filesz;
		if (headers[i].p_type != PT_NOTE || size == 0 || size > NOTE_MAX)
			continue;
		at = read_part(source, headers[i].p_vaddr - base, headers[i].p_offset, size);
		if (at && read_note(at, size, ret_id))
			return true;
	}
	return false;
}

/* ---- contents ---- */

static bool add_content(struct file_id *id, int fd, char *room, uint64_t from, uint64_t to)
{
	while (from < to) {
		size_t size = to - from < READ_AT_ONCE ? (size_t)(to - from) : READ_AT_ONCE;
		ssize_t n = pread(fd, room, size, (off_t)from);
		if (n != (ssize_t)size)
			return false;
		add_bytes(id, room, size);
		from += size;
	}
	return true;
}

static bool read_content(int fd, const struct stat *st, struct file_id *ret_id)
{
	uint64_t size = (uint64_t)st->st_size;
	struct file_id id = { { 5, size } };
	/* Not a variable: its pages would be saved. */
	char *room = mmap(NULL, READ_AT_ONCE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (room == MAP_FAILED)
		return false;
	bool ok;
	if (size <= WHOLE_MAX) {
		ok = add_content(&id, fd, room, 0, size);
	} else {
		add_word(&id, (uint64_t)st->st_mtim.tv_sec);
		ok = add_content(&id, fd, room, 0, PART) && add_content(&id, fd, room, size - PART, size);
	}
	munmap(room, READ_AT_ONCE);
	end_id(&id);
	if (ok)
		*ret_id = id;
	return ok;
}

static bool read_file(int fd, const struct stat *st, struct file_id *ret_id)
{
	struct source source;
	source.maps = NULL;
	source.fd = fd;
	source.n_read = 0;
	return S_ISREG(st->st_mode) && (read_build_id(&source, ret_id) || read_content(fd, st, ret_id));
}

/* ---- what is known ---- */

static struct known_file *find_known(uint64_t device, uint64_t inode)
{
	struct handover *handover = &wc_image_handover;
	for (uint64_t i = 0; i < handover->n_known; i++)
		if (handover->known[i].device == device && handover->known[i].inode == inode)
			return &handover->known[i];
	return NULL;
}

void wc_known_add(struct handover *handover, const struct known_file *file)
{
	if (handover->n_known < IMAGE_KNOWN_FILES)
		handover->known[handover->n_known++] = *file;
}

/* Data that others may write to is the same file whatever it contains. */
static bool is_living(const struct area *area)
{
	return area->shared && area->prot & PROT_WRITE;
}

static void learn(struct area *area, const char *path)
{
	struct known_file *known = find_known(area->device, area->inode);
	struct stat st;
	int fd = -1;
	bool there = stat(path, &st) == 0 && st.st_ino == area->inode && S_ISREG(st.st_mode);
	if (known && (!there || known->stamp == stamp_of(&st))) {
		area->id = known->id;
		area->stamp = known->stamp;
		return;
	}
	if (there)
		fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | O_NOFOLLOW);
	if (fd < 0)
		return; /* it is known by its inode, on this machine */
	struct known_file file = { .device = area->device, .inode = area->inode };
	if (fstat(fd, &st) == 0 && st.st_ino == area->inode && read_file(fd, &st, &file.id)) {
		area->id = file.id;
		area->stamp = file.stamp = stamp_of(&st);
		if (known)
			*known = file;
		else
			wc_known_add(&wc_image_handover, &file);
	}
	close(fd);
}

/* All of a file have what the first has; a library is a row of them. */
void wc_files_name(struct mappings *maps)
{
	struct area *first = NULL;
	struct source source;
	source.maps = maps;
	for (size_t i = 0; i < maps->n_areas; i++) {
		struct area *area = &maps->areas[i];
		const char *path = maps->texts + area->path;
		bool is_code = area->kind == AREA_SYSTEM && strcmp(path, "[vdso]") == 0;
		if ((area->kind != AREA_FILE && area->kind != AREA_SYSTEM) || is_living(area))
			continue;
		if (first && is_of_file(area, first) && area->kind == AREA_FILE) {
			area->id = first->id;
			area->stamp = first->stamp;
			continue;
		}
		first = area;
		/* Only where the linker has mapped it: such a file is not made shorter by anybody who lets the program live. */
		for (size_t k = i; k < maps->n_areas && is_of_file(&maps->areas[k], area); k++)
			is_code = is_code || (!maps->areas[k].shared && maps->areas[k].prot & PROT_EXEC);
		source.first = area;
		if (is_code && area->offset == 0 && area->prot & PROT_READ && read_build_id(&source, &area->id))
			continue;
		if (area->kind == AREA_FILE)
			learn(area, path);
	}
}

bool wc_same_id(const struct area *a, const struct area *b)
{
	if (a->id.words[0] && b->id.words[0])
		return a->id.words[0] == b->id.words[0] && a->id.words[1] == b->id.words[1];
	return a->device == b->device && a->inode == b->inode;
}

bool wc_file_is(int fd, const struct area *area, struct known_file *ret_known)
{
	struct stat st;
	struct area now = *area;
	*ret_known = (struct known_file){ 0 };
	if (fstat(fd, &st) < 0)
		return false;
	if (is_living(area))
		return S_ISREG(st.st_mode) ? (uint64_t)st.st_size + IMAGE_PAGE > area->offset + (area->end - area->start)
					   : st.st_ino == area->inode;
	now.inode = st.st_ino;
	now.stamp = stamp_of(&st);
	if (area->stamp && now.stamp == area->stamp) {
		*ret_known = (struct known_file){ .device = area->device, .inode = area->inode, .stamp = area->stamp, .id = area->id };
		return true;
	}
	if (!area->id.words[0])
		return st.st_ino == area->inode;
	if (!read_file(fd, &st, &now.id))
		return false;
	*ret_known = (struct known_file){ .device = st.st_dev, .inode = st.st_ino, .stamp = now.stamp, .id = now.id };
	return wc_same_id(area, &now);
}

/* image_learn(): reads what this process has mapped; for a zygote, when it has time */
PyObject *wc_image_learn(PyObject *self, PyObject *unused)
{
	(void)self;
	(void)unused;
	struct scratch scratch;
	struct mappings maps;
	if (wc_scratch_place(&scratch, NULL, 0, IMAGE_SCRATCH_BYTES) < 0)
		return PyErr_SetFromErrno(PyExc_OSError);
	int rc = wc_mappings_read(&scratch, &maps);
	if (rc == 0)
		wc_files_name(&maps);
	int error = errno;
	munmap(scratch.base, IMAGE_SCRATCH_BYTES);
	errno = error;
	if (rc < 0)
		return PyErr_SetFromErrno(PyExc_OSError);
	Py_RETURN_NONE;
}

/* ---- the processor ---- */

/* libc and others have chosen their functions by what the processor can do. */
void wc_processor(uint64_t out[IMAGE_PROCESSOR_WORDS])
{
	memset(out, 0, IMAGE_PROCESSOR_WORDS * sizeof *out);
#if defined(__x86_64__)
	/* No code is chosen by OSXSAVE, APIC ids and the like. */
	unsigned a, b, c, d;
	if (__get_cpuid(1, &a, &b, &c, &d))
		out[0] = (uint64_t)c << 32 | d;
	if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
		out[1] = (uint64_t)b << 32 | c;
		out[2] = d;
	}
	if (__get_cpuid_count(0xd, 1, &a, &b, &c, &d))
		out[2] |= (uint64_t)a << 32;
	if (__get_cpuid(0x80000001, &a, &b, &c, &d))
		out[3] = (uint64_t)c << 32 | d;
#else
	out[0] = getauxval(AT_HWCAP);
	out[1] = getauxval(AT_HWCAP2);
#endif
}

bool wc_processor_has(const uint64_t needs[IMAGE_PROCESSOR_WORDS])
{
	uint64_t here[IMAGE_PROCESSOR_WORDS];
	wc_processor(here);
	for (int i = 0; i < IMAGE_PROCESSOR_WORDS; i++)
		if (needs[i] & ~here[i])
			return false;
	return true;
}
