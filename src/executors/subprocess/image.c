/*
 * The fork of a sandboxed kernel: its memory is carried into another one (kernel/ext/image.c).
 *
 *     host ── FORK + file ──▶ source: writes its memory to the file ── FORKED ──▶ host
 *     host ── LOAD + file ──▶ fresh kernel, in a jail of its own, confined as every other: continues from there ── READY ──▶ host
 *
 * The fresh kernel is started, or taken from the pool, and confined while the source writes.  A point is a file alone: it has no process,
 * and whatever the code does, it cannot reach it.  The file is sealed once it is written; the host reads nothing of it.
 *
 * A kernel that has written its memory goes on with it in the file.  What it writes next has only pages that changed, and needs that file too:
 * the kernel names the files by their inodes, and the host knows which ones it has.
 *
 * The same file, written to a disk and read again, is a session that was saved: cell__sub_image_woken() takes files of any origin.
 */
#define _GNU_SOURCE
#include "executors/subprocess/kernel.h"

#include "durable/durable.h"
#include "spawn/process_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(CELL_SAVED_MEMORIES <= CELL_SUB_BASES, "a saved memory and those that it refers to");

#define CONFINE_HEIR 1 /* id of an INIT frame: a failure is kept for the answer to LOAD */
#define IMAGE_SIZE ((off_t)1 << 42) /* larger than any memory */

struct cell__sub_image {
	int refs;
	int fd;
	uint64_t id, source; /* source: the kernel that writes it; 0: it is written */
	bool written, drops, portable, ends;
	struct cell__process_memory *process; /* the source's, which is read instead of the file; or NULL */
	uint64_t inode;
	struct cell__sub_image *used[CELL_SUB_BASES]; /* earlier ones that it refers to */
	uint64_t named[CELL_SUB_BASES]; /* by which it refers to them: in one that was saved, not what they have now */
	size_t n_used;
	struct cell_error error; /* code != 0: it will not be */
	json_t *left; /* what a saved session goes without; or NULL */
	struct cell__sub_image *next;
};

static void unref(struct cell__sub_image *image)
{
	if (!image || --image->refs > 0)
		return;
	while (image->n_used > 0)
		unref(image->used[--image->n_used]);
	cell__close_fd(&image->fd);
	cell__process_memory_unref(image->process);
	json_decref(image->left);
	free(image);
}

static void leave_bases(struct cell__sub_kernel *kernel)
{
	while (kernel->n_bases > 0)
		unref(kernel->bases[--kernel->n_bases]);
}

/* The kernel's memory is in this image and those that it refers to. */
static void take_bases(struct cell__sub_kernel *kernel, struct cell__sub_image *image)
{
	struct cell__sub_image *bases[CELL_SUB_BASES];
	size_t n = 0;
	image->refs++;
	bases[n++] = image;
	for (size_t i = 0; i < image->n_used && n < CELL_SUB_BASES; i++) {
		image->used[i]->refs++;
		bases[n++] = image->used[i];
	}
	leave_bases(kernel);
	memcpy(kernel->bases, bases, sizeof bases);
	kernel->n_bases = n;
}

void cell__sub_image_leave(struct cell__sub_kernel *kernel)
{
	leave_bases(kernel);
	unref(cell__take_ptr(kernel->image));
}

int64_t cell__subprocess_kept(const struct cell__kernel *base)
{
	const struct cell__sub_kernel *kernel = (const struct cell__sub_kernel *)base;
	struct stat st;
	return kernel->is_image && fstat(kernel->image->fd, &st) == 0 ? (int64_t)st.st_blocks * 512 : -1;
}

/* ---- writing ---- */

/* The request of a save that ends the kernel.  One that can be read does not write its pages: they are copied once, and take no memory meanwhile. */
static char *ask_to_end(const struct cell__sub_kernel *source, unsigned flags, struct cell__sub_image *image, int *ret_wait_fd)
{
	json_t *ask = json_pack("{s:b, s:b, s:b, s:b}", "image", 1, "drop", 1, "save", 1, "ends", 1);
	image->process = flags & CELL__FORK_READS ? cell__process_memory_create(source->pid, ret_wait_fd) : NULL;
	if (image->process)
		json_object_set_new(ask, "reads", json_string(cell__process_memory_token(image->process)));
	char *text = json_dumps(ask, JSON_COMPACT);
	json_decref(ask);
	return text;
}

static int ask_source(struct cell__sub_kernel *source, unsigned flags, struct cell__sub_image **ret_image, struct cell_error *err)
{
	struct cell__subprocess *sub = source->sub;
	const bool speculates = flags & CELL__FORK_SPECULATE, saves = flags & CELL__FORK_SAVE;
	/* Several forks of one state: it is written once. */
	if (!speculates && !saves && source->asked_image && source->asked_image->drops == ((flags & CELL__FORK_DROP) != 0)) {
		*ret_image = source->asked_image;
		source->asked_image->refs++;
		return 0;
	}
	const bool portable = saves && (flags & CELL__FORK_PORTABLE);
	const char *text = portable                  ? "{\"image\":true,\"drop\":true,\"save\":true,\"portable\":true}"
			   : flags & CELL__FORK_ENDS ? NULL
			   : saves                   ? "{\"image\":true,\"drop\":true,\"save\":true}"
			   : speculates              ? "{\"image\":true,\"drop\":false,\"speculate\":true}"
			   : flags & CELL__FORK_DROP ? "{\"image\":true,\"drop\":true}"
						     : "{\"image\":true,\"drop\":false}";
	struct cell__sub_image *image = cell__alloc(1, sizeof *image);
	if (!image)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a fork");
	*image = (struct cell__sub_image){ .drops = flags & CELL__FORK_DROP,
					   .portable = portable,
					   .ends = flags & CELL__FORK_ENDS,
					   .refs = 2,
					   .id = sub->supervisor->next_id++,
					   .source = source->id };
	image->fd = memfd_create("workcell-image", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	CELL_AUTO_FD int wait_fd = -1;
	CELL_AUTO_FREE char *ends = text ? NULL : ask_to_end(source, flags, image, &wait_fd);
	text = text ? text : ends;
	const int fds[] = { image->fd, wait_fd };
	/* Nothing of it is used; see kernel/ext/image.c. */
	int rc = !text ? cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a fork")
		 : image->fd < 0 || ftruncate(image->fd, IMAGE_SIZE) < 0
			 ? cell_fail(err, CELL_E_IO, errno, "make a file for the memory of a kernel")
			 : cell__link_send_fds(source->link, CELL_FRAME_FORK, (uint32_t)image->id, text, strlen(text), NULL, 0, fds,
					       wait_fd < 0 ? 1 : 2, err);
	if (rc < 0) {
		image->refs = 1;
		unref(image);
		return -1;
	}
	source->forks_asked++;
	source->asked_image = speculates || saves ? NULL : image;
	image->next = sub->images;
	sub->images = image;
	*ret_image = image;
	return 0;
}

/* It is written, or will not be. */
static void end_image(struct cell__subprocess *sub, struct cell__sub_image *image)
{
	struct cell__sub_image **at = &sub->images;
	while (*at != image)
		at = &(*at)->next;
	*at = image->next;
	struct cell__sub_kernel *source = cell__sub_kernel_by_id(sub, image->source);
	if (source && source->asked_image == image)
		source->asked_image = NULL;
	image->source = 0;
	for (struct cell__sub_kernel *kernel = sub->kernels, *next; kernel; kernel = next) {
		next = kernel->next;
		if (kernel->image != image || kernel->gone.fn)
			continue;
		if (kernel->error.code == 0)
			kernel->error = image->error;
		if (kernel->is_image && image->written) {
			kernel->state = CELL_KERNEL_LIVE;
			uv_timer_stop(&kernel->timer);
			kernel->events->ready(kernel->owner);
		} else if (kernel->is_image || (!image->written && kernel->state == CELL_KERNEL_WAITING)) {
			cell__sub_kernel_gone_later(kernel);
		} else if (!image->written) {
			cell__sub_kernel_kill(kernel);
		} else if (kernel->state == CELL_KERNEL_OPENING) {
			cell__sub_kernel_configure(kernel);
		}
	}
	unref(image);
}

/* The earlier images that it names must be those of its own memory. */
static int find_used(const struct cell__sub_kernel *source, struct cell__sub_image *image, const json_t *inodes)
{
	size_t i, k;
	json_t *inode;
	json_array_foreach(inodes, i, inode) {
		for (k = 0; k < source->n_bases; k++)
			if (source->bases[k]->inode == (uint64_t)json_integer_value(inode))
				break;
		if (k == source->n_bases || image->n_used == CELL_SUB_BASES - 1)
			return cell_fail(&image->error, CELL_E_PROTOCOL, 0, "the kernel names memory that is not its own");
		source->bases[k]->refs++;
		image->named[image->n_used] = source->bases[k]->inode;
		image->used[image->n_used++] = source->bases[k];
	}
	return 0;
}

/* [address, place, number, place]; anything else is refused when it is opened. */
static void take_said(struct cell__sub_image *image, const json_t *said)
{
	const struct cell__process_said numbers = { .token_at = (uint64_t)json_integer_value(json_array_get(said, 0)),
						    .table_at = (uint64_t)json_integer_value(json_array_get(said, 1)),
						    .n_parts = (uint64_t)json_integer_value(json_array_get(said, 2)),
						    .first_at = (uint64_t)json_integer_value(json_array_get(said, 3)) };
	if (image->process)
		cell__process_memory_said(image->process, &numbers);
}

static void take_image(struct cell__sub_kernel *source, struct cell__sub_image *image, const json_t *answer)
{
	const json_t *used = json_object_get(answer, "image");
	struct stat st;
	if (!json_is_array(used)) {
		cell__sub_branch_refused(answer, &image->error);
		return;
	}
	if (find_used(source, image, used) < 0)
		return;
	image->left = json_incref(json_object_get(answer, "left"));
	take_said(image, json_object_get(answer, "reads"));
	if (fstat(image->fd, &st) == 0) {
		image->inode = st.st_ino;
		if (!image->portable && !image->ends && !json_is_true(json_object_get(answer, "stays")))
			take_bases(source, image); /* its memory is there, whatever comes of the fork */
		/* Not F_SEAL_WRITE, which waits for other CPUs: what a mapping of the source can still change are its own forks. */
		image->written = fcntl(image->fd, F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) == 0;
	}
	if (!image->written)
		cell_fail(&image->error, CELL_E_IO, errno, "seal the memory of a kernel");
}

bool cell__sub_image_answered(struct cell__sub_kernel *source, uint32_t id, const json_t *answer)
{
	struct cell__sub_image *image = source->sub->images;
	while (image && (image->source != source->id || (uint32_t)image->id != id))
		image = image->next;
	if (!image)
		return false;
	take_image(source, image, answer);
	end_image(source->sub, image);
	return true;
}

void cell__sub_image_source_gone(struct cell__sub_kernel *source)
{
	for (struct cell__sub_image *image = source->sub->images, *next; image; image = next) {
		next = image->next;
		if (image->source != source->id)
			continue;
		cell_fail(&image->error, CELL_E_KERNEL, 0, "the kernel ended before it forked");
		end_image(source->sub, image);
	}
}

/* ---- loading ---- */

/* The numbers of its files, if a kernel cannot find them out: it knows a memfd that was never saved by its inode.  NULL: it can. */
static char *name_files(const struct cell__sub_image *image, const char *init)
{
	bool named = image->inode & CELL_MEMORY_ON_DISK;
	for (size_t i = 0; i < image->n_used; i++)
		named = named || image->used[i]->inode & CELL_MEMORY_ON_DISK || image->named[i] != image->used[i]->inode;
	json_t *load = named ? json_loads(init, 0, NULL) : NULL;
	if (!load)
		return NULL;
	json_object_set_new(load, "inodes", json_pack("[I]", (json_int_t)image->inode));
	json_object_set_new(load, "live", json_pack("[I]", (json_int_t)image->inode));
	for (size_t i = 0; i < image->n_used; i++) {
		json_array_append_new(json_object_get(load, "inodes"), json_integer((json_int_t)image->named[i]));
		json_array_append_new(json_object_get(load, "live"), json_integer((json_int_t)image->used[i]->inode));
	}
	char *text = json_dumps(load, JSON_COMPACT);
	json_decref(load);
	return text;
}

bool cell__sub_image_load(struct cell__sub_kernel *kernel, const struct cell__buf *session, struct cell_error *err)
{
	struct cell__sub_image *image = kernel->image;
	int fds[CELL_LINK_MAX_FDS] = { image->fd };
	size_t n = 1;
	if (!image->written) {
		/* It has time until then: the session's plan is carried out now.  Its own answer tells whether that worked. */
		if (!session ||
		    cell__link_send(kernel->link, CELL_FRAME_INIT, CONFINE_HEIR, NULL, 0, session->data, session->size, err) < 0)
			return !session;
		kernel->kind = CONFINE_HEIR;
		return true;
	}
	for (size_t i = 0; i < image->n_used; i++)
		fds[n++] = image->used[i]->fd;
	CELL_AUTO_FREE char *text = kernel->woken ? NULL : name_files(image, kernel->init);
	const char *init = text ? text : kernel->init;
	take_bases(kernel, image);
	return cell__link_send_fds(kernel->link, CELL_FRAME_LOAD, 0, init, strlen(init), session ? session->data : NULL,
				   session ? session->size : 0, fds, n, err) == 0;
}

void cell__subprocess_image(const struct cell__kernel *base, struct cell__image_files *ret_files, const json_t **ret_left)
{
	const struct cell__sub_image *image = ((const struct cell__sub_kernel *)base)->image;
	*ret_files = (struct cell__image_files){
		.fds = { image->fd }, .inodes = { image->inode }, .live = { image->inode }, .n = 1, .process = image->process
	};
	for (size_t i = 0; i < image->n_used; i++) {
		ret_files->fds[ret_files->n] = image->used[i]->fd;
		ret_files->inodes[ret_files->n] = image->named[i];
		ret_files->live[ret_files->n++] = image->used[i]->inode;
	}
	*ret_left = image->left;
}

/* One file of a saved session. */
static struct cell__sub_image *adopt(int fd, uint64_t number, struct cell_error *err)
{
	struct cell__sub_image *image = cell__alloc(1, sizeof *image);
	if (!image) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
		return NULL;
	}
	*image = (struct cell__sub_image){ .refs = 1, .fd = fcntl(fd, F_DUPFD_CLOEXEC, 0), .written = true };
	if (image->fd < 0) {
		cell_fail(err, CELL_E_IO, errno, "the memory of a kernel");
		unref(image);
		return NULL;
	}
	image->inode = number;
	return image;
}

/* A memory that was saved; NULL: err has the reason. */
static struct cell__sub_image *adopt_memory(const struct cell__image_files *files, struct cell_error *err)
{
	struct cell__sub_image *image = adopt(files->fds[0], files->live[0], err);
	for (size_t i = 1; image && i < files->n; i++) {
		struct cell__sub_image *used = image->n_used < CELL_SUB_BASES - 1 ? adopt(files->fds[i], files->live[i], err) : NULL;
		if (used) {
			image->named[image->n_used] = files->inodes[i];
			image->used[image->n_used++] = used;
		} else {
			unref(image);
			image = NULL;
		}
	}
	return image;
}

int cell__sub_image_woken(struct cell__sub_kernel *kernel, const struct cell__image_files *files, struct cell_error *err)
{
	kernel->image = adopt_memory(files, err);
	kernel->woken = true;
	return kernel->image ? 0 : -1;
}

char *cell__sub_image_wake_json(const struct cell__kernel_spec *spec)
{
	const struct cell__image_files *files = spec->woken;
	CELL_AUTO_FREE char *options = cell__kernel_spec_json(spec);
	/* The portable form is read by a kernel that is otherwise as a new one: it needs the options of its session. */
	json_t *load = json_pack("{s:s, s:b, s:b, s:o, s:[], s:[]}", "session", spec->session_id, "heir", 1, "woken", 1, "spec",
				 options ? json_loads(options, 0, NULL) : NULL, "inodes", "live");
	for (size_t i = 0; load && i < files->n; i++) {
		json_array_append_new(json_object_get(load, "inodes"), json_integer((json_int_t)files->inodes[i]));
		json_array_append_new(json_object_get(load, "live"), json_integer((json_int_t)files->live[i]));
	}
	char *text = load ? json_dumps(load, JSON_COMPACT) : NULL;
	json_decref(load);
	return text;
}

static struct cell__sub_kernel *create_point(struct cell__sub_kernel *source, struct cell_error *err)
{
	struct cell__sub_kernel *kernel = cell__sub_kernel_create(source->env, err);
	if (!kernel)
		return NULL;
	cell__sub_kernel_leave_fresh(kernel);
	kernel->is_image = true;
	kernel->state = CELL_KERNEL_OPENING;
	kernel->plan = cell__sandbox_plan_ref(source->plan);
	return kernel;
}

int cell__sub_image_keep(struct cell__kernel *base, struct cell__sandbox_request *request, const struct cell__image_files *files,
			 const struct cell__kernel_events *events, void *owner, struct cell__kernel **ret_kernel, struct cell_error *err)
{
	struct cell__sub_image *image = adopt_memory(files, err);
	struct cell__sub_kernel *point = image ? create_point((struct cell__sub_kernel *)base, err) : NULL;
	if (!point) {
		unref(image);
		cell__sub_request_destroy(request);
		return -1;
	}
	point->base.executor = base->executor;
	point->request = request;
	point->image = image;
	point->state = CELL_KERNEL_LIVE;
	point->events = events;
	point->owner = owner;
	*ret_kernel = &point->base;
	return 0;
}

/* The kernel that will load it: a pooled one, or one that is forked now. */
static struct cell__sub_kernel *create_heir(struct cell__sub_env *env, const struct cell__sandbox_request *request, bool *ret_pooled,
					    struct cell_error *err)
{
	struct cell__sub_pool *pool = cell__sub_pool_use(env, request ? request->plan : NULL);
	struct cell__sub_kernel *kernel = cell__sub_pool_take(env, request);
	if (pool && request)
		cell__sub_pool_learn(env, pool, request, 1);
	*ret_pooled = kernel != NULL;
	if (!kernel && cell__sub_zygote_start(env, err) == 0)
		kernel = cell__sub_kernel_create(env, err);
	return kernel;
}

int cell__sub_image_fork(struct cell__kernel *base, struct cell__sandbox_request *request, const char *session_id, unsigned flags,
			 const struct cell__kernel_events *events, void *owner, struct cell__kernel **ret_kernel, struct cell_error *err)
{
	struct cell__sub_kernel *source = (struct cell__sub_kernel *)base, *kernel = NULL;
	struct cell__sub_env *env = source->env;
	struct cell__sub_image *image = source->is_image ? source->image : NULL;
	bool pooled = false;
	json_t *load = json_pack("{s:s, s:b, s:b}", "session", session_id, "heir", (flags & CELL__FORK_HEIR) != 0, "speculate",
				 (flags & CELL__FORK_SPECULATE) != 0);
	CELL_AUTO_FREE char *text = load ? json_dumps(load, JSON_COMPACT) : NULL;
	json_decref(load);
	int rc = text ? 0 : cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a kernel");
	if (rc == 0 && source->is_image && (flags & CELL__FORK_POINT))
		rc = cell_fail(err, CELL_E_INVALID, 0, "a point of a point would be the same point");
	if (rc == 0 && !source->is_image && (!source->link || source->state != CELL_KERNEL_LIVE))
		rc = cell_fail(err, CELL_E_KERNEL, 0, "the kernel has ended");
	if (rc == 0)
		kernel = flags & CELL__FORK_POINT ? create_point(source, err) : create_heir(env, request, &pooled, err);
	if (rc < 0 || !kernel) {
		cell__sub_request_destroy(request);
		return -1;
	}
	kernel->base.executor = base->executor;
	kernel->request = request;
	if (image)
		image->refs++;
	else
		rc = ask_source(source, flags, &image, err);
	kernel->image = image;
	if (rc < 0) {
		if (kernel->is_image || !pooled)
			cell__sub_kernel_gone_later(kernel);
		else
			cell__sub_kernel_kill(kernel);
		return -1;
	}
	kernel->events = events;
	kernel->owner = owner;
	cell__sub_kernel_expect_answer(kernel);
	*ret_kernel = &kernel->base;
	if (kernel->is_image)
		return 0; /* ready once it is written */
	kernel->init = cell__take_ptr(text);
	cell__sub_kernel_begin(kernel, pooled);
	return 0;
}
