/* Making a layer, and its states: keeping one, going back to one. */
#define _GNU_SOURCE
#include "layer/internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <search.h>
#include <stdio.h>
#include <string.h>
#include <linux/capability.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/fsuid.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/xattr.h>

#include "base/tree.h"

#define MARK "user.workcell.layer"
#define FOLDER "workcell-layer-" /* and six more characters */
#define FOLDER_TRIES 8
#define MOUNT_INODES 16u /* overlayfs makes two or three folders for its work */

/* ---- making ---- */

static char *path_in(const char *folder, const char *name)
{
	struct cell__buf path = CELL_BUF_INIT;
	return cell__buf_printf(&path, "%s/%s", folder, name) < 0 ? NULL : cell__buf_take(&path);
}

static int fail_folder(struct cell_error *err, const char *path)
{
	return cell_fail(err, errno == ENOSPC || errno == EDQUOT ? CELL_E_LIMIT : CELL_E_IO, errno, "make a layer in %.160s", path);
}

static int open_real(const char *path)
{
	return open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* The merged folder has the mode of the upper one. */
static int make_upper(struct cell__layer *layer)
{
	struct stat st;
	if (fstat(layer->base_fd, &st) < 0 || (mkdirat(layer->folder_fd, "upper", 0700) < 0))
		return -1;
	cell__close_fd(&layer->upper_fd);
	layer->upper_fd = cell__open_folder(layer->folder_fd, "upper");
	if (layer->upper_fd < 0 || (layer->form == CELL_LAYER_OVERLAY && fsetxattr(layer->upper_fd, MARK, layer->mark, 32, 0) < 0))
		return -1;
	return fchmod(layer->upper_fd, (st.st_mode & 0777) | 0700);
}

/*
 * The folder is locked as long as this process lives: cell__layer_reclaim() removes those without a lock.  It may be faster than our lock,
 * and then there is another folder.
 */
static int make_folder(struct cell__layer *layer, struct cell_error *err)
{
	struct stat st;
	for (int i = 0; i < FOLDER_TRIES; i++) {
		layer->folder = path_in(layer->home, FOLDER "XXXXXX");
		if (!layer->folder)
			return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a layer");
		if (!mkdtemp(layer->folder)) {
			free(cell__take_ptr(layer->folder));
			return fail_folder(err, layer->home);
		}
		layer->folder_fd = open_real(layer->folder);
		if (layer->folder_fd >= 0 && flock(layer->folder_fd, LOCK_EX) == 0 && fstat(layer->folder_fd, &st) == 0 && st.st_nlink > 0)
			return 0;
		if (layer->folder_fd < 0 && errno != ENOENT)
			break;
		cell__close_fd(&layer->folder_fd);
		free(cell__take_ptr(layer->folder));
		errno = ENOENT;
	}
	return fail_folder(err, layer->home);
}

void cell__layer_reclaim(const char *home)
{
	DIR *dir = opendir(home);
	const struct dirent *entry;
	struct stat st;
	while (dir && (entry = readdir(dir))) {
		if (strncmp(entry->d_name, FOLDER, strlen(FOLDER)) != 0 || strlen(entry->d_name) != strlen(FOLDER) + 6)
			continue;
		CELL_AUTO_FD int fd = openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
		if (fd >= 0 && fstat(fd, &st) == 0 && st.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0)
			(void)cell__tree_remove(dirfd(dir), entry->d_name);
	}
	if (dir)
		closedir(dir);
}

static int make_folders(struct cell__layer *layer, struct cell_error *err)
{
	struct stat st;
	layer->base_fd = open_real(layer->base);
	if (layer->base_fd < 0)
		return cell_fail(err, CELL_E_INVALID, errno, "workspace %.160s", layer->base);
	if (make_folder(layer, err) < 0)
		return -1;
	layer->upper = path_in(layer->folder, "upper");
	layer->work = path_in(layer->folder, "work");
	layer->points = path_in(layer->folder, "points");
	if (!layer->upper || !layer->work || !layer->points)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a layer");
	if (layer->folder_fd < 0 || make_upper(layer) < 0 || mkdirat(layer->folder_fd, "work", 0700) < 0 ||
	    mkdirat(layer->folder_fd, "points", 0700) < 0 || fstatat(layer->folder_fd, "points", &st, 0) < 0)
		return fail_folder(err, layer->folder);
	layer->made = layer->copied = st.st_ctim;
	return 0;
}

/* The time by the clock of the file system. */
static int stamp(const struct cell__layer *layer, struct timespec *ret_time)
{
	struct stat st;
	CELL_AUTO_FD int fd = openat(layer->folder_fd, "stamp", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	int rc = fd < 0 ? -1 : fstat(fd, &st);
	if (fd >= 0)
		(void)unlinkat(layer->folder_fd, "stamp", 0);
	if (rc == 0)
		*ret_time = st.st_ctim;
	return rc;
}

static int copy_into(struct cell__layer *layer, int from_fd, int to_fd, bool overlay, struct cell_error *err)
{
	struct cell__copying copying = { .max_bytes = layer->max_bytes, .max_files = layer->max_files, .overlay = overlay };
	return cell__copy_folder(&copying, from_fd, to_fd, err);
}

static struct cell__layer *allocate(const char *base, const char *home, enum cell__layer_form form, struct cell_error *err)
{
	struct cell__layer *layer = cell__alloc(1, sizeof *layer);
	if (layer) {
		*layer = (struct cell__layer){
			.form = form,
			.base_fd = -1,
			.folder_fd = -1,
			.upper_fd = -1,
			.tmp_fd = -1,
			.view_fd = -1,
		};
		pthread_mutex_init(&layer->lock, NULL);
		layer->base = cell__strdup(base);
		layer->home = cell__strdup(home);
		cell__random_hex(layer->mark, 32);
	}
	if (!layer || !layer->base || !layer->home) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a layer");
		cell__layer_destroy(layer);
		return NULL;
	}
	return layer;
}

int cell__layer_create(const char *base, const char *home, enum cell__layer_form form, uint64_t max_bytes, uint64_t max_files,
		       struct cell__layer **ret_layer, struct cell_error *err)
{
	struct cell__layer *layer = allocate(base, home, form, err);
	if (!layer)
		return -1;
	layer->max_bytes = max_bytes;
	layer->max_files = max_files;
	int rc = make_folders(layer, err);
	if (rc == 0 && form == CELL_LAYER_COPY) {
		rc = copy_into(layer, layer->base_fd, layer->upper_fd, false, err);
		if (rc == 0 && stamp(layer, &layer->copied) < 0)
			rc = fail_folder(err, layer->folder);
	}
	if (rc < 0) {
		cell__layer_destroy(layer);
		return -1;
	}
	*ret_layer = layer;
	return 0;
}

int cell__layer_add_tmp(struct cell__layer *layer, struct cell_error *err)
{
	CELL_AUTO_FREE char *tmp = path_in(layer->folder, "tmp");
	if (!tmp)
		return cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a layer");
	if (mkdirat(layer->folder_fd, "tmp", 0700) < 0 || (layer->tmp_fd = cell__open_folder(layer->folder_fd, "tmp")) < 0)
		return fail_folder(err, layer->folder);
	layer->tmp = cell__take_ptr(tmp);
	return 0;
}

void cell__layer_destroy(struct cell__layer *layer)
{
	if (!layer)
		return;
	cell__close_fd(&layer->view_fd);
	cell__close_fd(&layer->upper_fd);
	cell__close_fd(&layer->tmp_fd);
	cell__close_fd(&layer->folder_fd);
	cell__close_fd(&layer->base_fd);
	if (layer->folder)
		(void)cell__tree_remove(AT_FDCWD, layer->folder);
	tdestroy(layer->committed, free);
	char *const texts[] = { layer->base, layer->home, layer->folder, layer->upper, layer->work, layer->points, layer->tmp };
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
		free(texts[i]);
	pthread_mutex_destroy(&layer->lock);
	free(layer);
}

enum cell__layer_form cell__layer_form(const struct cell__layer *layer)
{
	return layer->form;
}

const char *cell__layer_word(const struct cell__layer *layer)
{
	return layer->form == CELL_LAYER_OVERLAY ? "overlay" : "copy";
}

const char *cell__layer_folder(const struct cell__layer *layer)
{
	return layer->folder;
}

const char *cell__layer_upper(const struct cell__layer *layer)
{
	return layer->upper;
}

const char *cell__layer_tmp(const struct cell__layer *layer)
{
	return layer->tmp;
}

const char *cell__layer_work(const struct cell__layer *layer)
{
	return layer->work;
}

const char *cell__layer_points(const struct cell__layer *layer)
{
	return layer->points;
}

void cell__layer_attach(struct cell__layer *layer, int view_fd)
{
	pthread_mutex_lock(&layer->lock);
	cell__close_fd(&layer->view_fd);
	layer->view_fd = view_fd;
	pthread_mutex_unlock(&layer->lock);
}

static int open_in_root(int root_fd, const char *path)
{
	struct open_how how = { .flags = O_RDONLY | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_IN_ROOT | RESOLVE_NO_SYMLINKS };
	return (int)syscall(SYS_openat2, root_fd, path, &how, sizeof how);
}

int cell__layer_find_view(const struct cell__layer *layer, int root_fd, int *ret_fd, struct cell_error *err)
{
	char mark[33] = "";
	CELL_AUTO_FD int view = open_in_root(root_fd, layer->base);
	if (view < 0)
		return cell_fail(err, CELL_E_IO, errno, "reach the files of the session's kernel");
	if (layer->form == CELL_LAYER_OVERLAY && (fgetxattr(view, MARK, mark, 32) != 32 || strcmp(mark, layer->mark) != 0))
		return cell_fail(err, CELL_E_IO, 0, "the files of the process are not those of the layer");
	*ret_fd = cell__take_fd(&view);
	return 0;
}

int cell__layer_open_view(const struct cell__layer *layer, int64_t pid, int *ret_fd, struct cell_error *err)
{
	char path[64];
	snprintf(path, sizeof path, "/proc/%lld/root", (long long)pid);
	CELL_AUTO_FD int root = open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (root < 0)
		return cell_fail(err, CELL_E_IO, errno, "reach the files of the session's kernel");
	return cell__layer_find_view(layer, root, ret_fd, err);
}

/* With the lock held. */
static int attach_process(struct cell__layer *layer, int64_t pid, struct cell_error *err)
{
	int view = -1;
	if (cell__layer_open_view(layer, pid, &view, err) < 0)
		return -1;
	cell__close_fd(&layer->view_fd);
	layer->view_fd = view;
	return 0;
}

/* ---- keeping a state ---- */

bool cell__layer_fits(const struct cell__layer *layer, const struct cell__layer *other)
{
	return layer->form == other->form && !layer->tmp == !other->tmp && strcmp(layer->base, other->base) == 0;
}

static int make_in(int dir_fd, const char *name)
{
	return mkdirat(dir_fd, name, 0700) < 0 ? -1 : cell__open_folder(dir_fd, name);
}

struct cell__frozen *cell__frozen_begin(struct cell__layer *layer, struct cell_error *err)
{
	struct cell__frozen *frozen = cell__alloc(1, sizeof *frozen);
	if (!frozen) {
		cell_fail(err, CELL_E_NOMEM, 0, "out of memory for a point");
		return NULL;
	}
	frozen->layer = layer;
	pthread_mutex_lock(&layer->lock);
	snprintf(frozen->name, sizeof frozen->name, "%u", layer->next_point++);
	pthread_mutex_unlock(&layer->lock);
	CELL_AUTO_FD int points = cell__open_folder(layer->folder_fd, "points");
	CELL_AUTO_FD int folder = points < 0 ? -1 : make_in(points, frozen->name);
	CELL_AUTO_FD int upper = folder < 0 ? -1 : make_in(folder, "upper");
	CELL_AUTO_FD int tmp = upper < 0 || !layer->tmp ? -1 : make_in(folder, "tmp");
	if (upper >= 0 && (tmp >= 0 || !layer->tmp))
		return frozen;
	fail_folder(err, layer->points);
	cell__frozen_destroy(frozen);
	return NULL;
}

static int freeze(struct cell__layer *layer, struct cell__frozen *frozen, struct cell_error *err)
{
	struct stat st;
	CELL_AUTO_FD int upper = cell__open_frozen(frozen, "upper");
	if (upper < 0 || fstat(upper, &st) < 0)
		return fail_folder(err, layer->points);
	frozen->at = st.st_ctim;
	frozen->made = layer->made;
	if (copy_into(layer, layer->upper_fd, upper, layer->form == CELL_LAYER_OVERLAY, err) < 0)
		return -1;
	if (!layer->tmp)
		return 0;
	CELL_AUTO_FD int tmp = cell__open_frozen(frozen, "tmp");
	return tmp < 0 ? fail_folder(err, layer->points) : copy_into(layer, layer->tmp_fd, tmp, false, err);
}

int cell__layer_freeze(struct cell__layer *layer, struct cell__frozen **ret_frozen, struct cell_error *err)
{
	struct cell__frozen *frozen = cell__frozen_begin(layer, err);
	if (!frozen)
		return -1;
	pthread_mutex_lock(&layer->lock);
	int rc = freeze(layer, frozen, err);
	pthread_mutex_unlock(&layer->lock);
	if (rc < 0) {
		cell__frozen_destroy(frozen);
		return -1;
	}
	*ret_frozen = frozen;
	return 0;
}

void cell__frozen_destroy(struct cell__frozen *frozen)
{
	if (!frozen)
		return;
	CELL_AUTO_FD int points = cell__open_folder(frozen->layer->folder_fd, "points");
	if (points >= 0)
		(void)cell__tree_remove(points, frozen->name);
	free(frozen);
}

int cell__open_frozen(const struct cell__frozen *frozen, const char *part)
{
	CELL_AUTO_FD int points = cell__open_folder(frozen->layer->folder_fd, "points");
	CELL_AUTO_FD int folder = points < 0 ? -1 : cell__open_folder(points, frozen->name);
	return folder < 0 ? -1 : cell__open_folder(folder, part);
}

/* ---- going back ---- */

/* Folders of the same path: as the code sees it, its changes, the changes that it had, the real one; -1: there is none. */
struct place {
	int view, upper, state, base;
	bool hides; /* the state shows nothing of base */
	bool whole; /* names of the view and of base count too */
};

struct restoring {
	bool overlay;
	struct timespec at;
	unsigned depth;
};

static int restore_folder(struct restoring *restoring, const struct place *place, struct cell_error *err);

static int fail_restore(struct cell_error *err, const char *name)
{
	CELL_AUTO_BUF struct cell__buf shown = CELL_BUF_INIT;
	int sys = errno;
	(void)cell__path_shown(name, &shown);
	return cell_fail(err, sys == ENOSPC || sys == EDQUOT ? CELL_E_LIMIT : CELL_E_IO, sys, "restore \"%.120s\" of the workspace",
			 shown.data ? shown.data : "?");
}

static bool is_as_wanted(const struct restoring *restoring, const struct place *place, const char *name, const struct stat *view,
			 int from_dir, const struct stat *wanted)
{
	if (((view->st_mode ^ wanted->st_mode) & (S_IFMT | 0777)) != 0)
		return false;
	if (S_ISREG(view->st_mode) && view->st_size != wanted->st_size)
		return false;
	if (S_ISREG(view->st_mode) && cell__time_before(&view->st_ctim, &restoring->at) && view->st_mtim.tv_sec == wanted->st_mtim.tv_sec &&
	    view->st_mtim.tv_nsec == wanted->st_mtim.tv_nsec)
		return true;
	return cell__same_content(place->view, from_dir, name, view, wanted) == 1;
}

/* By a rename, so that a process that reads it sees one or the other. */
static int restore_file(int view_fd, const char *name, const struct stat *view, int from_dir, const struct stat *wanted)
{
	char temporary[48] = ".workcell-restored-";
	cell__random_hex(temporary + strlen(temporary), 16);
	if (view && S_ISDIR(view->st_mode) && cell__tree_remove(view_fd, name) < 0)
		return -1;
	if (cell__copy_name(from_dir, name, wanted, view_fd, temporary, false) < 0 || renameat(view_fd, temporary, view_fd, name) < 0) {
		int error = errno;
		(void)unlinkat(view_fd, temporary, 0);
		errno = error;
		return error == ENOENT ? 0 : -1; /* a kind of file that is not kept */
	}
	return 0;
}

static int restore_into(struct restoring *restoring, const struct place *place, const char *name, const struct stat *view, int from_dir,
			const struct stat *wanted, bool in_state, struct cell_error *err)
{
	struct stat st;
	bool fresh = !view || !S_ISDIR(view->st_mode);
	if (restoring->depth >= CELL_LAYER_MAX_DEPTH)
		return cell_fail(err, CELL_E_LIMIT, 0, "the workspace has more than %u folders in folders", CELL_LAYER_MAX_DEPTH);
	if ((view && fresh && cell__tree_remove(place->view, name) < 0) || (fresh && mkdirat(place->view, name, 0700) < 0))
		return fail_restore(err, name);
	CELL_AUTO_FD int into = cell__open_folder(place->view, name);
	CELL_AUTO_FD int state = in_state ? cell__open_folder(from_dir, name) : -1;
	CELL_AUTO_FD int base = !place->hides && cell__stat_at(place->base, name, &st) == 1 && S_ISDIR(st.st_mode)
					? cell__open_folder(place->base, name)
					: -1;
	CELL_AUTO_FD int upper = cell__stat_at(place->upper, name, &st) == 1 && S_ISDIR(st.st_mode) ? cell__open_folder(place->upper, name)
												    : -1;
	if (into < 0 || (in_state && state < 0))
		return fail_restore(err, name);
	bool hides = place->hides || (state >= 0 && restoring->overlay && cell__is_opaque(state));
	struct place inner = {
		.view = into,
		.upper = upper,
		.state = state,
		.base = hides ? -1 : base,
		.hides = hides,
		.whole = place->whole || fresh || hides || (upper >= 0 && cell__is_opaque(upper)),
	};
	restoring->depth++;
	int rc = restore_folder(restoring, &inner, err);
	restoring->depth--;
	if (rc == 0 && fstat(into, &st) == 0 && ((st.st_mode ^ wanted->st_mode) & 0777) && fchmod(into, wanted->st_mode & 0777) < 0)
		return fail_restore(err, name);
	return rc;
}

static int restore_name(struct restoring *restoring, const struct place *place, const char *name, struct cell_error *err)
{
	struct stat state, base, upper, view;
	int in_state = cell__stat_at(place->state, name, &state), in_base = place->hides ? 0 : cell__stat_at(place->base, name, &base);
	int in_upper = cell__stat_at(place->upper, name, &upper), in_view = cell__stat_at(place->view, name, &view);
	if (in_state < 0 || in_base < 0 || in_upper < 0 || in_view < 0)
		return fail_restore(err, name);
	if (in_state == 0 && in_upper == 0 && in_view == 1 && !place->hides)
		return 0; /* base shows */
	bool whiteout = in_state == 1 && restoring->overlay && cell__is_whiteout(&state);
	const struct stat *wanted = in_state == 1 && !whiteout ? &state : in_state == 0 && in_base == 1 ? &base : NULL;
	int from_dir = wanted == &state ? place->state : place->base;
	if (!wanted)
		return in_view == 1 && cell__tree_remove(place->view, name) < 0 ? fail_restore(err, name) : 0;
	if (S_ISDIR(wanted->st_mode))
		return restore_into(restoring, place, name, in_view == 1 ? &view : NULL, from_dir, wanted, wanted == &state, err);
	if (in_view == 1 && is_as_wanted(restoring, place, name, &view, from_dir, wanted))
		return 0;
	return restore_file(place->view, name, in_view == 1 ? &view : NULL, from_dir, wanted) < 0 ? fail_restore(err, name) : 0;
}

static int restore_folder(struct restoring *restoring, const struct place *place, struct cell_error *err)
{
	struct cell__names names = { 0 };
	int rc = 0;
	const int folders[] = { place->upper, place->state, place->whole ? place->view : -1, place->whole ? place->base : -1 };
	for (size_t i = 0; i < 4 && rc == 0; i++)
		if (folders[i] >= 0 && cell__names_add(&names, folders[i]) < 0)
			rc = fail_restore(err, ".");
	for (size_t i = 0; rc == 0 && i < names.count; i++)
		rc = restore_name(restoring, place, names.items[i], err);
	cell__names_finish(&names);
	return rc;
}

/*
 * A sandbox with a uid of its own has file systems on which the caller's uid does not exist, and new files cannot be the caller's.  They
 * are made as the owner of the folder, by this thread alone, which keeps its rights to the other files.
 */
static void set_caps(const struct cell__acting *acting)
{
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct caps[2];
	memcpy(caps, acting->caps, sizeof caps);
	(void)syscall(SYS_capset, &head, caps);
}

struct cell__acting cell__act_as_owner(int fd)
{
	struct cell__acting acting = { 0 };
	struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct stat st;
	if (fd < 0 || geteuid() != 0 || fstat(fd, &st) < 0 || st.st_uid == 0 || syscall(SYS_capget, &head, acting.caps) < 0)
		return acting;
	acting.on = true;
	(void)setfsgid(st.st_gid);
	(void)setfsuid(st.st_uid);
	set_caps(&acting); /* the change of the uid took some */
	return acting;
}

void cell__act_as_caller(const struct cell__acting *acting)
{
	if (!acting->on)
		return;
	(void)setfsuid(geteuid());
	(void)setfsgid(getegid());
	set_caps(acting);
}

/* No process sees the upper folder: another takes its place. */
static int replace_upper(struct cell__layer *layer, const struct cell__frozen *frozen, struct cell_error *err)
{
	if (cell__tree_remove(layer->folder_fd, "upper") < 0 || make_upper(layer) < 0)
		return fail_folder(err, layer->folder);
	if (!frozen)
		return 0;
	CELL_AUTO_FD int state = cell__open_frozen(frozen, "upper");
	return state < 0 ? fail_folder(err, layer->points) : copy_into(layer, state, layer->upper_fd, true, err);
}

/* Temporary files have no base; those of now stay where the changes of the workspace are discarded. */
static int restore_tmp(struct cell__layer *layer, const struct cell__frozen *frozen, struct timespec at, struct cell_error *err)
{
	if (!layer->tmp || !frozen)
		return 0;
	CELL_AUTO_FD int state = cell__open_frozen(frozen, "tmp");
	if (state < 0)
		return fail_folder(err, layer->points);
	struct restoring restoring = { .at = at };
	struct place place = { .view = layer->tmp_fd, .upper = -1, .state = state, .base = -1, .hides = true, .whole = true };
	return restore_folder(&restoring, &place, err);
}

static int restore(struct cell__layer *layer, const struct cell__frozen *frozen, struct cell_error *err)
{
	bool overlay = layer->form == CELL_LAYER_OVERLAY;
	struct restoring restoring = { .overlay = overlay, .at = frozen ? frozen->at : layer->made };
	if (frozen && frozen->layer != layer)
		restoring.at = (struct timespec){ 0 }; /* times of other files say nothing about these */
	if (overlay && layer->view_fd < 0)
		return replace_upper(layer, frozen, err);
	CELL_AUTO_FD int state = frozen ? cell__open_frozen(frozen, "upper") : -1;
	if (frozen && state < 0)
		return fail_folder(err, layer->points);
	struct place place = {
		.view = overlay ? layer->view_fd : layer->upper_fd,
		.upper = overlay ? layer->upper_fd : -1,
		.state = overlay || frozen ? state : layer->base_fd,
		.base = overlay ? layer->base_fd : -1,
		.hides = !overlay,
		.whole = !overlay,
	};
	if (!overlay && !frozen)
		restoring.at = layer->copied;
	struct cell__acting acting = cell__act_as_owner(overlay ? layer->view_fd : -1);
	int rc = restore_folder(&restoring, &place, err);
	cell__act_as_caller(&acting);
	if (rc == 0)
		rc = restore_tmp(layer, frozen, restoring.at, err);
	/* From base it is a new copy. */
	if (rc == 0 && !overlay && !frozen && (stamp(layer, &layer->copied) < 0))
		rc = fail_folder(err, layer->folder);
	return rc;
}

int cell__layer_restore(struct cell__layer *layer, int64_t pid, const struct cell__frozen *frozen, struct cell_error *err)
{
	struct timespec made = { 0 };
	pthread_mutex_lock(&layer->lock);
	/* An empty layer has seen base as it is now. */
	int rc = pid ? attach_process(layer, pid, err) : 0;
	if (rc == 0 && !frozen && stamp(layer, &made) < 0)
		rc = fail_folder(err, layer->folder);
	if (rc == 0)
		rc = restore(layer, frozen, err);
	if (rc == 0)
		layer->made = frozen ? frozen->made : made;
	if (pid)
		cell__close_fd(&layer->view_fd);
	pthread_mutex_unlock(&layer->lock);
	return rc;
}

int cell__layer_check_room(const struct cell__layer *layer, struct cell_error *err)
{
	struct statvfs room;
	/* File systems without a fixed number of inodes have 0 of 0. */
	if (layer->form != CELL_LAYER_OVERLAY || fstatvfs(layer->upper_fd, &room) < 0 || room.f_files == 0 || room.f_favail >= MOUNT_INODES)
		return 0;
	errno = ENOSPC;
	return fail_folder(err, layer->folder);
}

/* ---- another layer ---- */

static _Thread_local struct cell__layer *copies_to; /* twalk_r() is not in glibc 2.28 */

static void copy_record(const void *node, VISIT visit, int depth)
{
	const struct cell__committed *record = *(struct cell__committed *const *)node;
	(void)depth;
	if (visit != postorder && visit != leaf)
		return;
	struct stat base = { .st_ino = record->base_ino, .st_ctim = record->base_ctime };
	struct stat upper = { .st_ino = record->upper_ino, .st_ctim = record->upper_ctime };
	(void)cell__layer_remember(copies_to, record->path, &base, &upper); /* missing: the file counts as changed underneath */
}

static int fork_layer(struct cell__layer *from, const struct cell__frozen *frozen, struct cell__layer *to, struct cell_error *err)
{
	if (make_folders(to, err) < 0)
		return -1;
	CELL_AUTO_FD int state = frozen ? cell__open_frozen(frozen, "upper") : -1;
	if (frozen && state < 0)
		return fail_folder(err, from->points);
	to->made = frozen ? frozen->made : from->made;
	copies_to = to;
	twalk(from->committed, copy_record);
	if (copy_into(to, frozen ? state : from->upper_fd, to->upper_fd, from->form == CELL_LAYER_OVERLAY, err) < 0)
		return -1;
	if (from->tmp) {
		CELL_AUTO_FD int tmp = frozen ? cell__open_frozen(frozen, "tmp") : -1;
		if (frozen && tmp < 0)
			return fail_folder(err, from->points);
		if (cell__layer_add_tmp(to, err) < 0 || copy_into(to, frozen ? tmp : from->tmp_fd, to->tmp_fd, false, err) < 0)
			return -1;
	}
	/* Every file of the copy is new, so none can be known to be untouched by its times: contents are compared. */
	to->copied = to->made;
	return 0;
}

int cell__layer_fork(struct cell__layer *layer, const struct cell__frozen *frozen, struct cell__layer **ret_layer, struct cell_error *err)
{
	struct cell__layer *fork = allocate(layer->base, layer->home, layer->form, err);
	if (!fork)
		return -1;
	fork->max_bytes = layer->max_bytes;
	fork->max_files = layer->max_files;
	pthread_mutex_lock(&layer->lock);
	int rc = fork_layer(layer, frozen, fork, err);
	pthread_mutex_unlock(&layer->lock);
	if (rc < 0) {
		cell__layer_destroy(fork);
		return -1;
	}
	*ret_layer = fork;
	return 0;
}
