/*
 * The file that a kernel's memory is saved to (image.c) and loaded from (image_load.c).
 */
#ifndef WC_IMAGE_H
#define WC_IMAGE_H

#include "ext.h"
#include "wire/image_part.h"

#include <linux/filter.h>
#include <stddef.h>
#include <stdint.h>

#define IMAGE_MAGIC 0x34676d6963777777ull
#define IMAGE_PAGE ((size_t)4096)
#define IMAGE_SCRATCH_BYTES ((size_t)64 << 20) /* address space; pages are used as needed */
#define IMAGE_READS_AT_ONCE 1024u              /* IOV_MAX */
#define IMAGE_SIGNALS 64
#define IMAGE_LINKS 4 /* descriptors that lead to the host: socket, streams, lifeline */
#define IMAGE_GIVEN_MAX 4096
#define IMAGE_KNOWN_FILES 64u    /* that were read to know them */
#define IMAGE_PROCESSOR_WORDS 4

enum area_kind {
	AREA_ANON,
	AREA_FILE,
	AREA_HEAP,
	AREA_STACK,
	AREA_IMAGE, /* of an earlier image */
	AREA_SYSTEM, /* [vdso] and its data: every process has its own, and libc knows where */
	AREA_MOVED   /* by the loader; in no image */
};

/* What a file contains, wherever it is (image_files.c).  Zeros: it is known by its inode alone. */
struct file_id {
	uint64_t words[2];
};

struct area {
	uint64_t start, end, offset; /* offset: of a file */
	uint64_t device, inode;
	uint32_t kind, prot, shared, path; /* path: position among the texts */
	uint64_t stamp; /* of a file that was read for its id: its inode, size and times */
	struct file_id id; /* sizes of this and of a part are multiples of 16: see wc_scratch_take() */
};

/* Where Linux has put the program, as in struct prctl_mm_map of linux/prctl.h. */
struct places {
	uint64_t start_code, end_code, start_data, end_data, start_brk, brk, start_stack, arg_start, arg_end, env_start, env_end;
};

/* An earlier image: the number that the host knows it by, its size, and for a file on a disk what /proc/self/maps shows of it. */
#define IMAGE_ON_DISK ((uint64_t)1 << 52) /* set in the number of such a file; a memfd has that of its inode */
struct earlier {
	uint64_t number, bytes, device, inode;
};

/* A file of this process whose content was read.  The stamp is of the time when it was. */
struct known_file {
	uint64_t device, inode, stamp;
	struct file_id id;
};

/* What the loader tells the code that continues. */
struct handover {
	char given[IMAGE_GIVEN_MAX];
	uint64_t given_size;
	void *left_at; /* memory of the loader, to be unmapped */
	uint64_t left_bytes;
	uint64_t stack_from, stack_to; /* of the stack, where it is not one that Linux knows as such */
	bool has_no_zeros; /* the filter against MADV_DONTNEED is in force */
	struct earlier earlier[1 + WC_IMAGES_USED];
	uint64_t n_earlier;
	struct known_file known[IMAGE_KNOWN_FILES];
	uint64_t n_known;
};

struct image {
	uint64_t magic, bytes; /* of this and the tables */
	uint64_t n_areas, n_pieces, text_bytes;
	uint64_t heap_end, ring, ring_bytes;
	/* Of the thread: its block (FS), and what Linux was told of places in it.  0: nothing. */
	uint64_t thread, tid, robust, rseq;
	uint64_t handover, resume, jump; /* addresses of variables, and of _longjmp() */
	int32_t link[IMAGE_LINKS], stack_flags;
	uint64_t stack_at, stack_bytes; /* of signal handlers */
	uint64_t stack_from, stack_to; /* as in the handover */
	struct places places;
	uint64_t processor[IMAGE_PROCESSOR_WORDS];
	unsigned char actions[IMAGE_SIGNALS][32];
};

extern struct handover wc_image_handover;
extern struct sock_filter wc_image_no_zeros[];
extern const size_t wc_image_n_no_zeros;

/* What of the present process belongs into an image. */
void wc_image_describe(struct image *image);

/* ---- memory of our own, in neither image ---- */

struct scratch {
	char *base, *next, *end;
};

/* areas: of an image that it must not be in the way of. */
int wc_scratch_place(struct scratch *scratch, const struct area *areas, uint64_t n_areas, size_t bytes);
void *wc_scratch_take(struct scratch *scratch, size_t bytes);

/* ---- the mappings of the process ---- */

struct mappings {
	struct area *areas; /* sorted */
	size_t n_areas;
	const char *texts; /* NUL-terminated paths */
	size_t text_bytes;
};

int wc_mappings_read(struct scratch *scratch, struct mappings *out);

/* ---- image_files.c ---- */

/* Gives areas of files their ids.  It writes to wc_image_handover: before pages are looked for that have changed. */
void wc_files_name(struct mappings *maps);
/* Their ids are equal; where one has none, the inodes. */
bool wc_same_id(const struct area *a, const struct area *b);
/* A file that was opened is that of an area.  ret_known: what was learned of it. */
bool wc_file_is(int fd, const struct area *area, struct known_file *ret_known);
void wc_known_add(struct handover *handover, const struct known_file *file);
void wc_processor(uint64_t out[IMAGE_PROCESSOR_WORDS]);
/* This one can do all that the other one can. */
bool wc_processor_has(const uint64_t needs[IMAGE_PROCESSOR_WORDS]);

#endif
